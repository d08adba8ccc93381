package control

import (
	"net"
	"os"
	"testing"
	"time"

	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/internal/testkit"
)

// strangerCount is how many connections have not said who they are.
func (s *Server) strangerCount() int64 {
	n, _ := s.strangers.total()
	return n
}

// halfHello is all but the end of a hello as long as one may be.
func halfHello() []byte {
	hello := wire.Preamble{High: wire.ProtocolVersion, Low: wire.OldestVersion}.Bytes()
	hello = append(hello, 0, 0xff, 0, 0) // 65280 bytes
	return append(hello, make([]byte, 60<<10)...)
}

// TestStrangersShareMemory: what connections send before they have said who they are is bounded for
// all of them together. The oldest give way, and a node among them is served.
func TestStrangersShareMemory(t *testing.T) {
	const most = 2 << 20
	s := newFakeServer(t, Config{maxUnidentifiedBytes: most})
	var conns []net.Conn
	for i := range 100 {
		s.clock.Advance(time.Millisecond)
		conn := testkit.Must(net.Dial("tcp", s.addr))(t)
		defer conn.Close()
		conns = append(conns, conn)
		testkit.Must(conn.Write(halfHello()))(t)
		testkit.Eventually(t, "its hello is there", func() bool {
			accepted := s.metrics.accepted.Load() == uint64(i+1)
			for _, p := range s.strangers.list() {
				accepted = accepted && wire.Unread(p.conn) == 0
			}
			return accepted
		})
		if _, bytes := s.strangers.total(); bytes > most {
			t.Fatalf("%d bytes of %d connections", bytes, i+1)
		}
	}
	if _, err := conns[0].Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Errorf("the oldest is open: %v", err)
	}
	last := conns[len(conns)-1]
	_ = last.SetReadDeadline(time.Now().Add(time.Millisecond))
	if _, err := last.Read(make([]byte, 1)); !os.IsTimeout(err) {
		t.Errorf("the youngest has ended: %v", err)
	}
	dialNode(t, s.addr).enter(testHello("a", "a", controltest.Params("", 1)))
	for _, conn := range conns {
		conn.Close()
	}
	testkit.Eventually(t, "nothing is held", func() bool { n, bytes := s.strangers.total(); return n == 0 && bytes == 0 })
}
