package main

// #include "glue.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"math"
	"syscall"

	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/filestore"
	"rallypoint/tcpstore"
)

// opening makes a store; it is a converted configuration and has no memory of C.
type opening func(context.Context) (store.Store, error)

// openNow makes the call for a function that blocks.
func openNow(open opening, timeoutMS C.int64_t, out *C.uint64_t) error {
	ctx, cancel := withTimeout(context.Background(), timeoutMS)
	defer cancel()
	s, err := open(ctx)
	if err != nil {
		return err
	}
	*out = openHandle(newStore(s))
	return nil
}

func openLater(open opening, timeoutMS C.int64_t, out *C.uint64_t) error {
	ctx, cancel := withTimeout(context.Background(), timeoutMS)
	*out = openHandle(newOp(ctx, cancel, func(ctx context.Context) (answer, error) {
		s, err := open(ctx)
		return answer{store: s}, err
	}))
	return nil
}

// opened opens a store as a config says, now or later.
func opened[T any](open func(opening, C.int64_t, *C.uint64_t) error, convert func(*T) (opening, error), config *T,
	timeoutMS C.int64_t, out *C.uint64_t, err *C.rp_error) C.int32_t {
	return export(err, func() error {
		how, err := convert(config)
		if err != nil {
			return err
		}
		return open(how, timeoutMS, out)
	})
}

func toDial(config *C.rp_store_config) (opening, error) {
	addr, err := address(config.host, config.port, 1)
	if err != nil {
		return nil, err
	}
	if config.host == nil || *config.host == 0 {
		return nil, invalid("the host of the store to connect to is missing")
	}
	return func(ctx context.Context) (store.Store, error) {
		c, err := tcpstore.Dial(ctx, addr, tcpstore.ClientOptions{Logger: logger})
		if err != nil {
			return nil, withCode(err)
		}
		return c, nil
	}, nil
}

func toFile(config *C.rp_store_file_config) (opening, error) {
	path, err := text("path", config.path)
	if err != nil {
		return nil, err
	}
	if path == "" {
		return nil, invalid("the path of the store's file is missing")
	}
	if config.flags&^C.RP_FILE_REMOTE != 0 {
		return nil, invalid("flags is %#x, which holds unknown bits", uint32(config.flags))
	}
	if config.world_size < -1 || config.world_size > math.MaxInt32 {
		return nil, invalid("world_size is %d, it must be between -1 and %d", int64(config.world_size), math.MaxInt32)
	}
	worldSize := int(config.world_size)
	options := &filestore.Options{Remote: config.flags&C.RP_FILE_REMOTE != 0, Log: logger}
	return func(ctx context.Context) (store.Store, error) {
		s, err := filestore.Open(ctx, path, worldSize, options)
		if err != nil {
			for _, mistake := range pathMistakes {
				if errors.Is(err, mistake) {
					err = fmt.Errorf("%w%w", rendezvous.Errorf(rendezvous.CodeInvalid, ""), err)
					break
				}
			}
			return nil, err
		}
		return s, nil
	}, nil
}

// pathMistakes are what the system says to a path that cannot be meant.
var pathMistakes = []error{
	syscall.ENOENT, syscall.EACCES, syscall.EPERM, syscall.EROFS, syscall.EISDIR,
	syscall.ENOTDIR, syscall.ENAMETOOLONG, syscall.ELOOP, syscall.ENXIO,
}

// withCode makes an error of connecting that has no code of its own one of the
// connection.
func withCode(err error) error {
	if codeOf(err) != rendezvous.CodeInternal || errors.Is(err, rendezvous.ErrInternal) {
		return err
	}
	return fmt.Errorf("%w%w", rendezvous.Errorf(rendezvous.CodeConnection, ""), err)
}

//export rpgo_store_connect
func rpgo_store_connect(config *C.rp_store_config, timeoutMS C.int64_t, out *C.uint64_t, err *C.rp_error) C.int32_t {
	return opened(openNow, toDial, config, timeoutMS, out, err)
}

//export rpgo_store_connect_start
func rpgo_store_connect_start(config *C.rp_store_config, timeoutMS C.int64_t, out *C.uint64_t, err *C.rp_error) C.int32_t {
	return opened(openLater, toDial, config, timeoutMS, out, err)
}

//export rpgo_store_open_file
func rpgo_store_open_file(config *C.rp_store_file_config, timeoutMS C.int64_t, out *C.uint64_t, err *C.rp_error) C.int32_t {
	return opened(openNow, toFile, config, timeoutMS, out, err)
}

//export rpgo_store_open_file_start
func rpgo_store_open_file_start(config *C.rp_store_file_config, timeoutMS C.int64_t, out *C.uint64_t, err *C.rp_error) C.int32_t {
	return opened(openLater, toFile, config, timeoutMS, out, err)
}

//export rpgo_store_open_hash
func rpgo_store_open_hash(out *C.uint64_t, err *C.rp_error) C.int32_t {
	return export(err, func() error {
		*out = openHandle(newStore(store.NewMemory(store.NewEngine(store.Limits{}))))
		return nil
	})
}

// prefixView is a part of another store. Closing it leaves that one open, and ends the
// calls that came in by it.
type prefixView struct {
	*store.Prefix
	end context.CancelFunc
}

func (p prefixView) Close() error {
	p.end()
	return nil
}

//export rpgo_store_open_prefix
func rpgo_store_open_prefix(id C.uint64_t, prefix C.rp_bytes, out *C.uint64_t, err *C.rp_error) C.int32_t {
	return on(id, err, func(below *openStore) error {
		name, err := keyOf("prefix", prefix)
		if err != nil {
			return err
		}
		ctx, end := context.WithCancel(below.ctx)
		*out = openHandle(&openStore{prefixView{store.NewPrefix(name, below.Store), end}, ctx})
		return nil
	})
}
