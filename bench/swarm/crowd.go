package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/member"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/core/store"
)

const (
	slowValue  = 4 << 10 // bytes of the value that slow readers get
	slowGets   = 64      // gets sent at once
	slowRead   = 1 << 10 // bytes a second that they read
	slowBuffer = 4 << 10 // of the kernel, for what arrives
)

func crowdOf(addr string, words []string) error {
	var n [4]int
	for i, word := range words {
		var err error
		if n[i], err = strconv.Atoi(word); err != nil {
			return err
		}
	}
	if n[3] <= 0 {
		return fmt.Errorf("a rate of %d", n[3])
	}
	return crowd(addr, n[0], n[1], n[2], n[3])
}

// crowd besets a control plane until the input ends. It says "ready" when every client has
// connected. A client that is cut off comes again. Silent ones connect and reconnect at no more
// than a rate, in connections a second.
func crowd(addr string, silent, slow, drips, rate int) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var there atomic.Int64
	errs := make(chan error, 1)
	start := func(count int, client func(i int, there func()) error) {
		for i := range count {
			go func() {
				if err := client(i, sync.OnceFunc(func() { there.Add(1) })); err != nil {
					select {
					case errs <- err:
					default:
					}
				}
			}()
		}
	}
	turns := paced(rate)
	start(silent, func(_ int, there func()) error { return keepSilent(addr, turns, there) })
	start(drips, func(i int, there func()) error { return drip(addr, i, there) })
	start(slow, func(i int, there func()) error { return readSlowly(ctx, addr, i, there) })
	for all := int64(silent + slow + drips); there.Load() < all; {
		select {
		case err := <-errs:
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nil
}

// paced gives as many turns a second as the rate says.
func paced(rate int) <-chan struct{} {
	turns := make(chan struct{})
	go func() {
		for began, n := time.Now(), 0; ; n++ {
			time.Sleep(time.Until(began.Add(time.Duration(n) * time.Second / time.Duration(rate))))
			turns <- struct{}{}
		}
	}()
	return turns
}

// keepSilent connects at each of its turns, and says nothing until it is cut off.
func keepSilent(addr string, turns <-chan struct{}, there func()) error {
	for {
		<-turns
		conn, err := elsewhere(0).Dial("tcp", addr)
		if err != nil {
			return err
		}
		there()
		_, _ = io.Copy(io.Discard, conn) // until it is closed
		conn.Close()
	}
}

// elsewhere dials from an address of its own, as other machines would: else thousands
// of connections would leave the good client few ports, and the kernel long to find
// one. A buffer is that of the kernel for what arrives; 0: as usual.
func elsewhere(buffer int) *net.Dialer {
	return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}, Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
			if buffer > 0 {
				_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, buffer)
			}
		})
	}}
}

// drip sends a byte a second until it is cut off, and comes again: the beginning of our
// protocol, or of HTTP's.
func drip(addr string, i int, there func()) error {
	text := "\xd5RPT\x01\x01\x00\x00" + strings.Repeat("\x00", 100)
	if i%2 == 1 {
		text = "GET /healthz HTTP/1.1\r\nX: " + strings.Repeat("x", 100)
	}
	for {
		conn, err := elsewhere(0).Dial("tcp", addr)
		if err != nil {
			return err
		}
		for at := range len(text) {
			if _, err := conn.Write([]byte{text[at]}); err != nil {
				break
			}
			there()
			time.Sleep(time.Second)
		}
		conn.Close()
	}
}

// handshakes besets what speaks TLS until the input ends: so many connections, each of which
// sends a client's hello, a byte a second, until it is cut off, and comes again. It says "ready"
// when each has sent a byte.
func handshakes(addr string, n int) error {
	hello, err := clientHello()
	if err != nil {
		return err
	}
	turns, began, failed := paced(openedASecond), make(chan struct{}), make(chan error)
	for range n {
		go func() {
			for first := true; ; first = false {
				<-turns
				conn, err := elsewhere(0).Dial("tcp", addr)
				if err != nil {
					failed <- err
					return
				}
				for at := 0; at < len(hello) && err == nil; at++ {
					_, err = conn.Write(hello[at : at+1])
					if first && at == 0 {
						began <- struct{}{}
					}
					time.Sleep(time.Second)
				}
				conn.Close()
			}
		}()
	}
	for range n {
		select {
		case <-began:
		case err := <-failed:
			return err
		}
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nil
}

// openedASecond is how many of handshakes' connections begin a second at the most: all of a
// thousand come again within the time that one lives.
const openedASecond = 500

// clientHello returns the first flight of a TLS handshake.
func clientHello() ([]byte, error) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	go func() {
		_ = tls.Client(ours, secret.ClientTLS()).Handshake()
		ours.Close()
	}()
	b := make([]byte, 4<<10)
	n, err := theirs.Read(b)
	return b[:n], err
}

// readSlowly has nodes, one after the other, each with a run of its own, that ask
// for a key again and again. The answers come to them over a link that is slow,
// until they are cut off.
func readSlowly(ctx context.Context, addr string, i int, there func()) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	var fast atomic.Bool
	go func() {
		for {
			node, err := l.Accept()
			if err != nil {
				return
			}
			go relay(node, addr, &fast)
		}
	}()
	for life := 0; ctx.Err() == nil; life++ {
		fast.Store(true)
		s, err := gather(ctx, l.Addr().String(), 1, fmt.Sprintf("slow-%d-%d-%d", os.Getpid(), i, life), toDeaf)
		if err != nil {
			return err
		}
		if _, err = s.join(ctx); err == nil {
			err = repeat(ctx, s[0], 1, rendezvous.KeyRequest{Round: 1, Op: store.OpSet, Keys: []string{"k"}, Values: [][]byte{make([]byte, slowValue)}})
		}
		fast.Store(false)
		for err == nil {
			there()
			var calls []*member.Call
			for range slowGets {
				calls = append(calls, s[0].Start(rendezvous.KeyRequest{Round: 1, Op: store.OpGet, Keys: []string{"k"}}))
			}
			for _, call := range calls {
				if err == nil {
					_, err = call.Wait(ctx)
				}
			}
		}
		s.leave()
	}
	return nil
}

// relay passes on what comes from the node at once, and what comes from the control
// plane only slowly unless fast.
func relay(node net.Conn, addr string, fast *atomic.Bool) {
	defer node.Close()
	server, err := elsewhere(slowBuffer).Dial("tcp", addr)
	if err != nil {
		return
	}
	go func() {
		_, _ = io.Copy(server, node)
		server.Close()
	}()
	defer server.Close()
	buf := make([]byte, slowRead)
	for {
		if !fast.Load() {
			time.Sleep(time.Second)
		}
		n, err := server.Read(buf)
		if err != nil {
			return
		}
		if _, err := node.Write(buf[:n]); err != nil {
			return
		}
	}
}
