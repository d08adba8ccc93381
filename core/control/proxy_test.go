package control

import (
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/internal/testkit"
)

// proxy forwards connections to a server, cuts them, holds them, or forgets them.
type proxy struct {
	t      *testing.T
	addr   string
	target string
	wg     sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener // nil: closed for good
	stopped  bool
	refused  int
	budget   func() int64 // bytes until a connection is cut; nil: none is
	conns    map[net.Conn]struct{}
	accepted int

	forgotten map[net.Conn][2]bool // what the node and the server send on them vanishes, their ends too
	held      chan struct{}        // not nil: nothing is forwarded until it is closed
	done      chan struct{}
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, addr: l.Addr().String(), target: target, listener: l, conns: map[net.Conn]struct{}{}, forgotten: map[net.Conn][2]bool{}, done: make(chan struct{})}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		close(p.done)
		p.stop()
		p.listener.Close()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		if p.stopped {
			p.refused++
			conn.Close()
		} else {
			p.conns[conn] = struct{}{}
			p.accepted++
			p.wg.Go(func() { p.forward(conn) })
		}
		p.mu.Unlock()
	}
}

func (p *proxy) forward(conn net.Conn) {
	defer conn.Close()
	up, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer up.Close()
	p.mu.Lock()
	down := int64(1 << 62)
	upward := down
	if p.budget != nil {
		down, upward = p.budget(), p.budget()
	}
	p.mu.Unlock()
	var wg sync.WaitGroup
	forward := func(to, from net.Conn, most int64, way int) {
		_, _ = io.CopyN(forwarded{p, conn, to, way}, from, most)
		if p.forgets(conn, way) {
			<-p.done
		}
		conn.Close()
		up.Close()
	}
	wg.Go(func() { forward(up, conn, upward, 0) })
	wg.Go(func() { forward(conn, up, down, 1) })
	wg.Wait()
	p.mu.Lock()
	delete(p.conns, conn)
	p.mu.Unlock()
}

// forwarded is one way of a connection.
type forwarded struct {
	p    *proxy
	conn net.Conn
	to   net.Conn
	way  int
}

func (f forwarded) Write(b []byte) (int, error) {
	f.p.mu.Lock()
	held := f.p.held
	f.p.mu.Unlock()
	if held != nil {
		select {
		case <-held:
		case <-f.p.done:
		}
		if f.way == 0 && wire.EndedByPeer(f.conn) {
			return 0, net.ErrClosed // a server that goes on finds the end with what came before it
		}
	}
	if f.p.forgets(f.conn, f.way) {
		return len(b), nil
	}
	return f.to.Write(b)
}

func (p *proxy) forgets(conn net.Conn, way int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.forgotten[conn][way]
}

// forget lets everything vanish that is sent on the present connections, by the node (up), the server
// (down), or both. New connections work.
func (p *proxy) forget(up, down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		p.forgotten[conn] = [2]bool{up, down}
	}
}

// hold keeps back what is sent on all connections, as a server does that is stopped, until release.
func (p *proxy) hold() (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	held := make(chan struct{})
	p.held = held
	return func() {
		p.mu.Lock()
		p.held = nil
		p.mu.Unlock()
		close(held)
	}
}

func (p *proxy) connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// cut ends all connections.
func (p *proxy) cut() {
	for conn := range p.conns {
		conn.Close()
	}
}

// stop ends all connections and refuses new ones until resume.
func (p *proxy) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	p.cut()
}

func (p *proxy) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = false
}

// cutRandomly cuts the connections and each later one after at most so many
// bytes in a direction.
func (p *proxy) cutRandomly(seed uint64, most int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	random := rand.New(rand.NewPCG(seed, 1))
	p.budget = func() int64 { return 1 + random.Int64N(most) }
	p.cut()
}

func (p *proxy) awaitRefused(t *testing.T, n int) {
	t.Helper()
	deadline := time.Now().Add(testkit.Patience)
	for {
		p.mu.Lock()
		refused := p.refused
		p.mu.Unlock()
		if refused >= n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the client does not try to connect")
		}
		time.Sleep(time.Millisecond)
	}
}
