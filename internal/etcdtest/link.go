package etcdtest

import (
	"io"
	"net"
	"sync"
	"testing"

	"rallypoint/internal/testkit"
)

// Link is a way to an etcd that can be closed and opened again.
type Link struct {
	Endpoint string
	listener net.Listener
	target   string
	copying  sync.WaitGroup

	mu     sync.Mutex
	closed bool
	frozen bool
	thaw   chan struct{} // closed unless it is frozen
	conns  map[net.Conn]bool
}

func NewLink(t testing.TB, target string) *Link {
	t.Helper()
	s := &Link{target: target, listener: testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t), conns: make(map[net.Conn]bool), thaw: make(chan struct{})}
	close(s.thaw)
	s.Endpoint = s.listener.Addr().String()
	s.copying.Go(func() {
		for {
			conn, err := s.listener.Accept()
			if err != nil {
				return
			}
			s.copying.Go(func() { s.serve(conn) })
		}
	})
	t.Cleanup(func() {
		s.listener.Close()
		s.Close()
		s.Freeze(false)
		s.copying.Wait()
	})
	return s
}

func (l *Link) serve(down net.Conn) {
	defer down.Close()
	up, err := net.Dial("tcp", l.target)
	if err != nil {
		return
	}
	defer up.Close()
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return
	}
	l.conns[down], l.conns[up] = true, true
	l.mu.Unlock()
	l.copying.Go(func() {
		_, _ = io.Copy(up, cold{l, down})
		up.Close()
	})
	_, _ = io.Copy(down, cold{l, up})
	l.mu.Lock()
	delete(l.conns, down)
	delete(l.conns, up)
	l.mu.Unlock()
}

// Close ends what is open, and whatever comes, at once.
func (l *Link) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for conn := range l.conns {
		conn.Close()
	}
}

func (l *Link) Open() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = false
}

// Freeze lets nothing through, and lets it through again.
func (l *Link) Freeze(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.frozen == on {
		return
	}
	if l.frozen = on; on {
		l.thaw = make(chan struct{})
	} else {
		close(l.thaw)
	}
}

// cold is one way of a connection, which holds back what it has while it is frozen.
type cold struct {
	s    *Link
	conn net.Conn
}

func (c cold) Read(b []byte) (int, error) {
	n, err := c.conn.Read(b)
	c.s.mu.Lock()
	thaw := c.s.thaw
	c.s.mu.Unlock()
	<-thaw
	return n, err
}
