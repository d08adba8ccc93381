package main

// #include "glue.h"
import "C"

import (
	"context"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/etcdstore"
	"rallypoint/internal/etcdclient"
	"rallypoint/internal/etcdserver"
)

func toEtcd(config *C.rp_store_etcd_config) (opening, error) {
	var endpoint, prefix string
	if err := texts(textField{"endpoint", config.endpoint, &endpoint}, textField{"prefix", config.prefix, &prefix}); err != nil {
		return nil, err
	}
	options, err := toOptions(config.options, config.options_len)
	if err != nil {
		return nil, err
	}
	e, err := etcdclient.ParseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	if e.RunID != "" || len(e.Query) > 0 {
		return nil, invalid("the endpoint of a store ends with its hosts; %q and what follows is for a rendezvous", "/"+e.RunID)
	}
	c, err := e.Config(options)
	if err != nil {
		return nil, err
	}
	if config.prefix != nil {
		c.Prefix = strings.TrimRight(prefix, "/")
	} else if options["key_prefix"] == "" && options["etcd_prefix"] == "" {
		c.Prefix = etcdclient.DefaultPrefix + "/store"
	}
	c.Logger = logger
	return func(ctx context.Context) (store.Store, error) {
		s, err := etcdstore.Open(ctx, c)
		if err != nil {
			return nil, err
		}
		return s, nil
	}, nil
}

//export rpgo_store_open_etcd
func rpgo_store_open_etcd(config *C.rp_store_etcd_config, timeoutMS C.int64_t, out *C.uint64_t, err *C.rp_error) C.int32_t {
	return opened(openNow, toEtcd, config, timeoutMS, out, err)
}

//export rpgo_store_open_etcd_start
func rpgo_store_open_etcd_start(config *C.rp_store_etcd_config, timeoutMS C.int64_t, out *C.uint64_t, err *C.rp_error) C.int32_t {
	return opened(openLater, toEtcd, config, timeoutMS, out, err)
}

// etcdServer is what a rp_etcd_server stands for.
type etcdServer struct {
	*task[*etcdserver.Server]
	output *os.File
}

//export rpgo_etcd_server_start
func rpgo_etcd_server_start(config *C.rp_etcd_server_config, timeoutMS C.int64_t, out *C.uint64_t, err *C.rp_error) C.int32_t {
	return export(err, func() error {
		c, beside := etcdserver.Config{Retries: int(config.retries)}, ""
		err := texts(
			textField{"binary", config.binary, &c.Binary},
			textField{"beside", config.beside, &beside},
			textField{"data_dir", config.data_dir, &c.DataDir},
		)
		if err != nil {
			return err
		}
		if c.Retries < 0 || c.Retries > 100 {
			return invalid("retries is %d, it must be between 0 and 100", c.Retries)
		}
		if c.Binary == "" {
			if c.Binary, err = etcdserver.FindBinary(beside, getenv); err != nil {
				return err
			}
		}
		s := &etcdServer{}
		if fd := int(config.output_fd); fd >= 0 {
			own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
			if err != nil {
				return invalid("output_fd %d: %v", fd, err)
			}
			s.output = os.NewFile(uintptr(own), "output")
			c.Output = s.output
		}
		ctx, cancel := withTimeout(context.Background(), timeoutMS)
		s.task = startTask(ctx, cancel, func(ctx context.Context) (*etcdserver.Server, error) { return etcdserver.Start(ctx, c) }, nil)
		*out = openHandle(s)
		return nil
	})
}

//export rpgo_etcd_server_ready
func rpgo_etcd_server_ready(id C.uint64_t, timeoutMS C.int64_t, port *C.int32_t, err *C.rp_error) C.int32_t {
	return on(id, err, func(s *etcdServer) error {
		limit, limited := timeLimit(timeoutMS)
		if err := s.wait(limit, limited); err != nil {
			return err
		}
		select {
		case <-s.value.Exited():
			return rendezvous.Errorf(rendezvous.CodeConnection, "the etcd at %s has ended by itself", s.value.Endpoint())
		default:
		}
		*port = C.int32_t(s.value.Port())
		return nil
	})
}

//export rpgo_etcd_server_stop
func rpgo_etcd_server_stop(id C.uint64_t, err *C.rp_error) C.int32_t {
	return onLast(id, err, func(s *etcdServer) error {
		s.cancel()
		<-s.done
		if s.value != nil {
			s.value.Stop()
		}
		if s.output != nil {
			_ = s.output.Close()
		}
		return nil
	})
}
