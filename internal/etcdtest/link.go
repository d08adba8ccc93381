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

func (s *Link) serve(down net.Conn) {
	defer down.Close()
	up, err := net.Dial("tcp", s.target)
	if err != nil {
		return
	}
	defer up.Close()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.conns[down], s.conns[up] = true, true
	s.mu.Unlock()
	s.copying.Go(func() {
		_, _ = io.Copy(up, cold{s, down})
		up.Close()
	})
	_, _ = io.Copy(down, cold{s, up})
	s.mu.Lock()
	delete(s.conns, down)
	delete(s.conns, up)
	s.mu.Unlock()
}

// Close ends what is open, and whatever comes, at once.
func (s *Link) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for conn := range s.conns {
		conn.Close()
	}
}

func (s *Link) Open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = false
}

// Freeze lets nothing through, and lets it through again.
func (s *Link) Freeze(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen == on {
		return
	}
	if s.frozen = on; on {
		s.thaw = make(chan struct{})
	} else {
		close(s.thaw)
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
