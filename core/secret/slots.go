package secret

import (
	"net"
	"runtime"
)

// Slots bounds how many TLS handshakes calculate at a time: as many as there are processors
// but one. Strangers make a server calculate before they have proven anything.
type Slots chan struct{}

// NewSlots makes the slots of one server.
func NewSlots() Slots { return make(Slots, max(1, runtime.GOMAXPROCS(0)-1)) }

// SlotConn is the connection below a server's TLS connection. It first returns the bytes that
// were already read. It holds a slot while the handshake computes, but not while it waits for the
// peer.
type SlotConn struct {
	net.Conn
	said  []byte
	slots Slots // nil: the handshake is over
}

// Begin takes a slot, for which it waits, until Finish.
func (s Slots) Begin(conn net.Conn, said []byte) *SlotConn {
	s <- struct{}{}
	return &SlotConn{Conn: conn, said: said, slots: s}
}

// Finish gives the slot back for good.
func (s *SlotConn) Finish() {
	<-s.slots
	s.slots = nil
}

// NetConn returns the connection below.
func (s *SlotConn) NetConn() net.Conn { return s.Conn }

func (s *SlotConn) Read(b []byte) (int, error) {
	if len(s.said) > 0 {
		n := copy(b, s.said)
		s.said = s.said[n:]
		return n, nil
	}
	defer s.pause()()
	return s.Conn.Read(b)
}

func (s *SlotConn) Write(b []byte) (int, error) {
	defer s.pause()()
	return s.Conn.Write(b)
}

// pause gives the slot back until the result is called.
func (s *SlotConn) pause() (resume func()) {
	slots := s.slots
	if slots == nil {
		return func() {}
	}
	<-slots
	return func() { slots <- struct{}{} }
}
