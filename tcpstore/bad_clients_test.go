package tcpstore

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
)

// TestBadClients: among peers that are silent, do not read, or send a request byte
// by byte, good ones get all their answers and the server stays small. Later the
// bad ones can continue undisturbed.
func TestBadClients(t *testing.T) {
	const silent, slow, gets, drips, good, requests = 500, 100, 64, 10, 8, 200
	s, lines := newServer(t, Options{})
	value := strings.Repeat("v", 4<<10)
	first := dialHello(t, s)
	first.exchange(append(msg(opSet, "/k", value), appendPing(nil, 1)...), []byte{1, 0, 0, 0})
	reply := msg(0, value)[1:]
	before := heapInUse()

	var quiet, stuck, dripping []raw
	for range silent {
		quiet = append(quiet, dialRaw(t, s)) // not even a hello
	}
	for range slow {
		r := dialNarrow(t, s, 1)
		r.exchange(hello, hello[6:])
		r.exchange(bytes.Repeat(msg(opGet, "/k"), gets), nil)
		stuck = append(stuck, r)
	}
	request := msg(opGet, "/k")
	for range drips {
		dripping = append(dripping, dialHello(t, s))
	}
	for _, b := range request[:len(request)-1] {
		for _, r := range dripping {
			r.exchange([]byte{b}, nil)
		}
		first.exchange(request, reply)
	}
	var wg sync.WaitGroup
	for i := range good {
		r := dialHello(t, s)
		wg.Go(func() {
			key := fmt.Sprint("/own/", i)
			for n := range requests {
				if !r.tryExchange(msg(opAdd, key, 1), msg(0, n+1)[1:]) || !r.tryExchange(request, reply) {
					return
				}
			}
		})
	}
	wg.Wait()
	if n := heapInUse() - before; n > slow*3*pauseUnsent {
		t.Errorf("%d bytes are held for bad clients", n)
	}

	for _, r := range quiet {
		r.exchange(hello, hello[6:])
	}
	for _, r := range dripping {
		r.exchange(request[len(request)-1:], reply)
	}
	for _, r := range stuck {
		r.exchange(nil, bytes.Repeat(reply, gets))
	}
	if len(lines.With("WARN")) > 0 {
		t.Error("a client was refused")
	}
}
