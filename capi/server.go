package main

// #include "glue.h"
import "C"

import (
	"fmt"
	"math"
	"net"
	"strconv"

	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/tcpstore"
)

func address(host *C.char, port C.int32_t, leastPort int32) (string, error) {
	h, err := text("host", host)
	if err != nil {
		return "", err
	}
	if int32(port) < leastPort || port > math.MaxUint16 {
		return "", invalid("the port is %d, it must be between %d and %d", int32(port), leastPort, math.MaxUint16)
	}
	return net.JoinHostPort(h, strconv.Itoa(int(port))), nil
}

//export rpgo_store_server_start
func rpgo_store_server_start(config *C.rp_store_server_config, server *C.uint64_t, err *C.rp_error) C.int32_t {
	return export(err, func() error {
		addr, err := address(config.host, config.port, 0)
		if err != nil {
			return err
		}
		s, err := tcpstore.Listen(addr, store.NewEngine(store.Limits{}), tcpstore.Options{Logger: logger})
		if err != nil {
			return fmt.Errorf("%w%w", rendezvous.Errorf(rendezvous.CodeConnection, ""), err)
		}
		*server = openHandle(s)
		return nil
	})
}

//export rpgo_store_server_port
func rpgo_store_server_port(id C.uint64_t, port *C.int32_t, err *C.rp_error) C.int32_t {
	return on(id, err, func(s *tcpstore.Server) error {
		*port = C.int32_t(s.Addr().(*net.TCPAddr).Port)
		return nil
	})
}

//export rpgo_store_server_stop
func rpgo_store_server_stop(id C.uint64_t, err *C.rp_error) C.int32_t {
	return onLast(id, err, func(s *tcpstore.Server) error {
		return s.Close()
	})
}
