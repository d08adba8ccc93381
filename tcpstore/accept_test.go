package tcpstore

import (
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/store"
	"rallypoint/internal/testkit"
)

// TestConnectStorm: of many that connect at once, while others keep the server
// busy, each is answered.
func TestConnectStorm(t *testing.T) {
	s, _ := newServer(t, Options{})
	done := make(chan struct{})
	var busy, storm sync.WaitGroup
	for range 4 {
		r := dialHello(t, s)
		busy.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					if !r.tryExchange(appendPing(nil, 1), []byte{1, 0, 0, 0}) {
						return
					}
				}
			}
		})
	}
	const goroutines, each = 100, 20
	for range goroutines {
		storm.Go(func() {
			for range each {
				conn, err := net.Dial("tcp", s.Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				t.Cleanup(func() { conn.Close() })
				conn.SetDeadline(time.Now().Add(guard))
				raw{conn.(*net.TCPConn), t}.tryExchange(hello, hello[6:])
			}
		})
	}
	storm.Wait()
	close(done)
	busy.Wait()
	if n := s.Stats().Connections; n != goroutines*each+4 {
		t.Errorf("%d connections", n)
	}
}

// TestOutOfDescriptors: connections that come meanwhile wait, those that are
// there are served, and all are when there are descriptors again.
func TestOutOfDescriptors(t *testing.T) {
	t.Run("from the first", func(t *testing.T) {
		s, lines := newServer(t, Options{Loops: 2})
		testOutOfDescriptors(t, s, lines, func() {})
	})
	t.Run("later", func(t *testing.T) {
		s, lines := newServer(t, Options{})
		good := dialHello(t, s)
		testOutOfDescriptors(t, s, lines, func() { good.exchange(appendPing(nil, 7), []byte{7, 0, 0, 0}) })
	})
}

func testOutOfDescriptors(t *testing.T, s *Server, lines *testkit.Log, meanwhile func()) {
	// Sockets that are made before, and connected when there are no more.
	addr := &unix.SockaddrInet4{Port: s.Addr().(*net.TCPAddr).Port, Addr: [4]byte{127, 0, 0, 1}}
	var clients []int
	for range 10 {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		clients = append(clients, fd)
	}
	restore := limitDescriptors(t)
	for _, fd := range clients {
		if err := errors.Join(unix.Connect(fd, addr), sendAll(fd, hello)); err != nil {
			t.Fatal(err)
		}
	}
	if line := lines.Next(t); !strings.Contains(line, "cannot accept connections") || !strings.Contains(line, "too many open files") {
		t.Errorf("the line is %s", line)
	}
	meanwhile()
	restore()
	for _, fd := range clients {
		reply := make([]byte, 4)
		if n, err := unix.Read(fd, reply); n != 4 || err != nil {
			t.Fatalf("%d bytes, %v", n, err)
		}
	}
	if len(lines.With("connection closed")) > 0 || len(lines.With("cannot accept")) > 1 {
		t.Error("a connection was closed, or a line was logged for each attempt")
	}
}

func sendAll(fd int, b []byte) error {
	_, err := unix.Write(fd, b)
	return err
}

// limitDescriptors leaves a free descriptor or two: one is enough to accept, and
// not enough to take the connection over.
func limitDescriptors(t *testing.T) (restore func()) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	last := 0
	for _, e := range entries {
		n, _ := strconv.Atoi(e.Name())
		last = max(last, n)
	}
	var holes []int
	for { // fill the holes below the limit
		fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
		if err != nil || fd > last {
			unix.Close(fd)
			break
		}
		holes = append(holes, fd)
	}
	limit := unix.Rlimit{Cur: uint64(last) + 2, Max: old.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	restore = func() {
		once.Do(func() {
			unix.Setrlimit(unix.RLIMIT_NOFILE, &old)
			for _, fd := range holes {
				unix.Close(fd)
			}
		})
	}
	t.Cleanup(restore)
	return restore
}

// pipes accepts connections that are not a sockets.
type pipes struct {
	net.Listener
	conns chan net.Conn
}

func (p pipes) Accept() (net.Conn, error) {
	if conn, ok := <-p.conns; ok {
		return conn, nil
	}
	return p.Listener.Accept()
}

func TestNoSocket(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := net.Pipe()
	p := pipes{inner, make(chan net.Conn, 1)}
	p.conns <- theirs
	close(p.conns)
	lines, logger := newLog()
	s := Serve(p, store.NewEngine(store.Limits{}), Options{Logger: logger})
	defer s.Close()
	if line := lines.Next(t); !strings.Contains(line, "not a socket") {
		t.Errorf("the line is %s", line)
	}
	if _, err := ours.Read(make([]byte, 1)); err == nil {
		t.Error("it was not closed")
	}
	dialHello(t, s)
}
