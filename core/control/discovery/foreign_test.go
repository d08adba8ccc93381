package discovery

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"rallypoint/core/control/controltest"
	"rallypoint/internal/testkit"
)

// serveForeign has answer see each connection, which stays open until stop.
func serveForeign(t *testing.T, answer func(net.Conn)) (addr string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		var all []net.Conn
		for {
			conn, err := l.Accept()
			if err != nil {
				break
			}
			all = append(all, conn)
			answer(conn)
		}
		for _, conn := range all {
			conn.Close()
		}
	}()
	return l.Addr().String(), func() {
		l.Close()
		<-served
	}
}

// TestForeignProgramOnThePort: what takes connections and is no control plane is named
// once, with what shows its process, while the search goes on.
func TestForeignProgramOnThePort(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(net.Conn)
		says   string
	}{
		"silent":         {func(net.Conn) {}, "said nothing for"},
		"another banner": {func(conn net.Conn) { fmt.Fprint(conn, "SSH-2.0-OpenSSH_9.2\r\n") }, `is no Rallypoint control plane: not our protocol: it begins with 5353482d322e302d (\"SSH-2.0-\")`},
		"closes":         {func(conn net.Conn) { conn.Close() }, "closed the connection after 0 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			addr, stop := serveForeign(t, c.answer)
			log, lines := testkit.NewLog(t)
			obs := controltest.NewObserver()
			n := newNode(t, controltest.Params(addr, 2), obs)
			n.Log = log
			ctx, cancel := context.WithCancel(controltest.Context(t))
			connected := make(chan error, 1)
			go func() { connected <- n.connect(ctx) }()
			const warning = "another program may have the port"
			text := strings.Join(lines.Await(t, warning, 1), "")
			_, port, _ := net.SplitHostPort(addr)
			for _, part := range []string{"what listens at " + addr, c.says, "`ss -ltnp 'sport = :" + port + "'`"} {
				if !strings.Contains(text, part) {
					t.Errorf("%q is missing in %s", part, text)
				}
			}
			select {
			case err := <-connected:
				t.Errorf("the search ended: %v", err)
			default:
			}
			cancel()
			if err := <-connected; err == nil {
				t.Error("connected")
			}
			stop()
			if warned := len(lines.Await(t, warning, 1)); warned != 1 {
				t.Errorf("warned %d times", warned)
			}
		})
	}
}

// TestTCPStoreOnThePort: torchrun's c10d has a TCPStore at its endpoint, which waits for more of
// what it takes for a request, or (without libuv) closes. The search asks, and its log and its
// error say what to do.
func TestTCPStoreOnThePort(t *testing.T) {
	question := []byte{0, 0xce, 0xf7, 0x85, 0x3c, 7}
	for name, end := range map[string]func(net.Conn){"waits": func(net.Conn) {}, "closes": func(conn net.Conn) { conn.Close() }} {
		t.Run(name, func(t *testing.T) {
			addr, stop := serveForeign(t, func(conn net.Conn) {
				head := make([]byte, len(question))
				if _, err := io.ReadFull(conn, head); err == nil && bytes.Equal(head, question) {
					_, _ = conn.Write([]byte{5, 0, 0, 0, 0, 0, 0, 0})
					return
				}
				end(conn)
			})
			defer stop()
			log, lines := testkit.NewLog(t)
			n := newNode(t, controltest.Params(addr, 2), controltest.NewObserver())
			n.Log = log
			ctx, cancel := context.WithCancel(controltest.Context(t))
			connected := make(chan error, 1)
			go func() { connected <- n.connect(ctx) }()
			want := "a TCPStore answers at " + addr + ", and no control plane of Rallypoint: start all nodes with the same launcher"
			if text := strings.Join(lines.Await(t, "there is no control plane at", 1), ""); !strings.Contains(text, want) {
				t.Error(text)
			}
			cancel()
			if err := <-connected; err == nil || !strings.Contains(err.Error(), want) {
				t.Error(err)
			}
		})
	}
}

// TestStoreOnAControlPort: a control plane that is slow to answer a hello is none the less one if its port serves
// the round's store, too.
func TestStoreOnAControlPort(t *testing.T) {
	addr, stop := serveForeign(t, func(conn net.Conn) {
		head := make([]byte, 4)
		switch _, _ = io.ReadFull(conn, head); {
		case head[0] == 0:
			_, _ = conn.Write([]byte{5, 0, 0, 0, 0, 0, 0, 0})
		case string(head) == "GET ":
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\nok\n")
		}
	})
	defer stop()
	log, lines := testkit.NewLog(t)
	n := newNode(t, controltest.Params(addr, 2), controltest.NewObserver())
	n.Log = log
	ctx, cancel := context.WithCancel(controltest.Context(t))
	connected := make(chan error, 1)
	go func() { connected <- n.connect(ctx) }()
	if text := strings.Join(lines.Await(t, "there is no control plane at", 1), ""); !strings.Contains(text, "has taken a connection and said nothing for") {
		t.Error(text)
	}
	cancel()
	<-connected
}

// TestRedirectToADeadHost: a node that waits at the endpoint redirects to a host that is gone. The error names
// both, and does not take the endpoint's port for one that is free, or another program's.
func TestRedirectToADeadHost(t *testing.T) {
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	p := controltest.Params(l.Addr().String(), 2)
	gone := fmt.Sprint("127.0.0.1:", testkit.FreePort(t))
	startWaiting(t, l, p, "waits", "g", gone)

	log, lines := testkit.NewLog(t)
	n := newNode(t, p, controltest.NewObserver())
	n.Log = log
	_, err := n.tryOnce(controltest.Context(t), &foreignWarning{f: n.Finder})
	want := "a node of the run redirects to its host at " + gone + ": connection refused"
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if told := lines.With("another program"); len(told) > 0 {
		t.Error(told)
	}
}
