package control

import (
	"maps"
	"slices"

	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
)

// Begin makes this server of several continue the runs that its replica knows, in a reign that the others have
// elected it for. It serves nobody before the Peers lead; if that does not come, Abandon follows. alone tells that
// no majority could be asked whether there was more.
func (s *Server) Begin(reign uint64, alone bool) (runs int) {
	s.sending.Lock() // a StepDown, which takes the runs last of all, is over
	defer s.sending.Unlock()
	var found []storedRun
	for _, stored := range s.cfg.Peers.Replica.Runs() {
		r, err := restore(stored)
		if err != nil {
			r.broken = rendezvous.Errorf(rendezvous.CodeInternal, "run %q cannot be read: %v; start all servers of --peers with one release, and use another --rdzv-id", r.ID, err)
		}
		found = append(found, r)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.reign = reign
		s.restoreLocked(found, alone)
	}
	return len(found)
}

// Abandon forgets the runs that Begin has begun.
func (s *Server) Abandon() {
	for _, r := range s.takeRuns() {
		r.close()
	}
}

// takeRuns ends the reign, and returns the runs, which the server does not know any more.
func (s *Server) takeRuns() []*run {
	s.mu.Lock()
	defer s.mu.Unlock()
	runs := slices.Collect(maps.Values(s.runs))
	clear(s.runs)
	clear(s.runsOf)
	s.reign = 0
	return runs
}

// reigns returns the reign in which this server leads; 0: none, or no other server can.
func (s *Server) reigns() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reign
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
