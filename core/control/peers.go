package control

import (
	"rallypoint/core/control/wire"
)

// Begin makes this server of several that serve many runs begin to host the runs that it was told of
// by the one before. Nodes may have come already.
func (s *Server) Begin(runs []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	for _, id := range runs {
		if s.runs[id] != nil {
			continue
		}
		s.runSeq++
		r := newRun(s, id, s.runSeq)
		r.used = true
		r.traceBegin()
		s.runs[id] = r
	}
}

// peers are the servers that may host next, as the node at the other end reaches them.
func (sc *serverConn) peers() []wire.StandbyNode {
	r := sc.server.cfg.Group.Report()
	var list []wire.StandbyNode
	for _, n := range r.Standbys {
		if n.Node == r.Node {
			n.Addr = localAddr(sc.conn)
		}
		if n.Addr != "" {
			list = append(list, n)
		}
	}
	return list
}
