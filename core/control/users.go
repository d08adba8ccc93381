package control

import (
	"log/slog"
	"net"

	"rallypoint/core/peer"
)

// userCheck decides whose connections a listener takes; nil: everyone's, as with a server
// of many runs, which many users share.
func (s *Server) userCheck(l net.Listener) *peer.Check {
	if s.cfg.Node == nil {
		return nil
	}
	return peer.NewCheck(s.cfg.Node, l.Addr())
}

// admitUser asks whose a new connection is. One of another user is closed before a byte
// of it is read.
func (s *Server) admitUser(check *peer.Check, conn net.Conn) bool {
	err := check.Admit(conn)
	if err == nil {
		return true
	}
	conn.Close()
	s.metrics.accepted.Add(1)
	if s.sampleRefusal(refusedUser, conn.RemoteAddr(), "") {
		s.log.Warn("closed a connection", slog.String("address", conn.RemoteAddr().String()), slog.String("reason", err.Error()))
	}
	return false
}
