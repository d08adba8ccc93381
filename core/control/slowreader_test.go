package control

import (
	"io"
	"net"
	"testing"
	"time"

	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
)

// slowReader is a node that asks for much more than the kernel holds and does not
// read; the kernel itself would end the connection after its long lease only.
func slowReader(t *testing.T, s *fakeServer) (n *wireNode, lease time.Duration, total int) {
	t.Helper()
	const gets, size = 50, 1 << 20
	p := controltest.Params("", 1)
	p.LeaseTimeout = time.Hour
	n = dialNode(t, s.addr)
	n.conn.(*net.TCPConn).SetReadBuffer(256 << 10)
	n.enter(testHello("slow", "s", p))
	n.ask(1, controltest.Join())
	n.wantReply(1)
	n.ask(2, rendezvous.KeyRequest{Round: 1, Op: store.OpSet, Keys: []string{"k"}, Values: [][]byte{make([]byte, size)}})
	n.wantReply(2)
	for i := range gets {
		n.ask(uint64(3+i), rendezvous.KeyRequest{Round: 1, Op: store.OpGet, Keys: []string{"k"}})
	}
	return n, p.LeaseTimeout, gets * size
}

// onlyPeer returns the server's one connection.
func (f *fakeServer) onlyPeer(t *testing.T) *serverConn {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.conns) != 1 {
		t.Fatalf("%d connections, want 1", len(f.conns))
	}
	for p := range f.conns {
		return p
	}
	return nil
}

// awaitWrite waits until a write to the peer has to wait, and returns when that began.
func (sc *serverConn) awaitWrite(t *testing.T) (since time.Duration) {
	t.Helper()
	for ctx := controltest.Context(t); ctx.Err() == nil; {
		since = sc.out.WritingSince()
		time.Sleep(time.Millisecond) // those that do not wait are soon over
		if since != 0 && sc.out.WritingSince() == since && wire.Untaken(sc.conn) > 0 {
			return since
		}
	}
	t.Fatal("nothing is written")
	return 0
}

// TestSlowConsumerIsCutOff has a node ask for more than it reads. It is not read
// from meanwhile, so that it costs the server little, and ends after a lease.
func TestSlowConsumerIsCutOff(t *testing.T) {
	atOnce(t)
	s := newFakeServer(t, Config{})
	n, lease, _ := slowReader(t, s)
	p := s.onlyPeer(t)
	p.awaitWrite(t)
	held := s.unsent.Load()
	if most := int64(64<<10 + wire.MaxFrame); held > most {
		t.Errorf("%d bytes are held for it, want at most %d", held, most)
	}
	r := s.lookUp("run")
	r.mu.Lock()
	kept := len(r.machine.Snapshot())
	r.mu.Unlock()
	if kept > 2<<20 { // the value is 1 MiB
		t.Errorf("the run has %d bytes: it keeps what was read", kept)
	}
	for ctx := controltest.Context(t); p.out.Cause() == nil; {
		if ctx.Err() != nil {
			t.Fatal("it is not cut off")
		}
		n.send(wire.Beat{}) // which is not read either
		s.clock.Advance(lease / 2)
	}
	s.awaitRefused(t, refusedSlow, 1)
	s.log.Await(t, wire.ErrStuck.Error(), 1)
	if n, _ := io.Copy(io.Discard, n.conn); n >= 50<<20 {
		t.Errorf("it got all %d bytes", n)
	}
}

// TestSlowReaderThatGoesOn takes a little in each lease: it gets all it asked for,
// though it takes many leases, in which nothing that it sends is read.
func TestSlowReaderThatGoesOn(t *testing.T) {
	atOnce(t)
	s := newFakeServer(t, Config{})
	n, lease, total := slowReader(t, s)
	p := s.onlyPeer(t)
	got := 0
	read := func() {
		t.Helper()
		count, err := n.conn.Read(make([]byte, 256<<10))
		if err != nil {
			t.Fatalf("after %d of %d bytes: %v", got, total, err)
		}
		got += count
	}
	p.awaitWrite(t)
	for range 5 {
		n.send(wire.Beat{})
		s.clock.Advance(lease - time.Minute)
		for now := s.running(); p.awaitWrite(t) < now; { // until it is another write that waits
			read()
		}
	}
	for got < total {
		read()
	}
	if n := s.metrics.refused[refusedSlow].Load(); n != 0 {
		t.Errorf("%d were refused as slow readers", n)
	}
}
