package control

import (
	"cmp"
	"time"

	"rallypoint/core/rendezvous"
)

// uncommitted is the queue of messages to nodes that follow from facts which a majority of the voters
// has not accepted yet (docs/decisions/0151). It is in order. Timers, and state that only this
// process sees, do not wait.
type uncommitted struct {
	facts  rendezvous.Facts // that were proposed last
	number uint64           // of that proposal; 0: nobody has it, since this process was deposed then, or hands on
	queue  []delayed
}

// delayed is one frame, or the end of a wait, once a proposal is confirmed.
type delayed struct {
	number uint64 // 0: nobody has that yet
	say    func()
	drop   func() // instead: another process hosts; nil: nothing
}

// votes reports whether messages to the run's nodes need a majority.
func (r *run) votes() bool { return r.server.cfg.Elector != nil && r.server.cfg.Elector.Quorum() }

// proposeLocked proposes to the voters the facts that the nodes are about to be told, if they
// have changed.
func (r *run) proposeLocked() {
	u := &r.uncommitted
	if !r.votes() {
		return
	}
	facts := r.machine.Facts()
	if u.number > 0 && facts.Equal(u.facts) {
		return
	}
	u.facts, u.number = facts, r.server.cfg.Elector.Propose(facts)
	for i := range u.queue {
		if u.queue[i].number == 0 {
			u.queue[i].number = u.number // what it follows from is in these facts, too
		}
	}
}

// quietLocked reports whether messages must wait: the host is not sure to be one, nobody has the facts that
// they follow from, or earlier messages still wait.
func (r *run) quietLocked() bool {
	u := &r.uncommitted
	return r.votes() && (len(u.queue) > 0 || u.number == 0 || !r.server.cfg.Elector.Committed(u.number))
}

// mayJudgeLocked reports whether silent nodes may be taken for lost: not while it is this process
// that is cut off.
func (r *run) mayJudgeLocked() bool {
	e := r.server.cfg.Elector
	return e == nil || e.Committed(0)
}

// sayLocked tells nodes something, in order: now, or when the voters have accepted it.
func (r *run) sayLocked(say func()) {
	if r.quietLocked() {
		r.uncommitted.queue = append(r.uncommitted.queue, delayed{number: r.uncommitted.number, say: say})
		return
	}
	say()
}

// saidLocked returns a channel that is closed once all messages that wait now are sent or
// dropped; nil if none waits.
func (r *run) saidLocked() <-chan struct{} {
	if !r.quietLocked() {
		return nil
	}
	done := make(chan struct{})
	end := func() { close(done) }
	r.uncommitted.queue = append(r.uncommitted.queue, delayed{r.uncommitted.number, end, end})
	return done
}

// dropUncommittedLocked drops the messages that wait, since another process hosts.
func (r *run) dropUncommittedLocked() {
	for _, w := range r.uncommitted.queue {
		if w.drop != nil {
			w.drop()
		}
	}
	r.uncommitted.queue = nil
}

// Confirmed sends the messages whose facts the voters have accepted meanwhile, tells nodes who
// votes, and gives up nodes whose processes were proven dead. The process calls it when its Elector
// has changed.
func (s *Server) Confirmed() {
	r := s.lookUp(s.cfg.RunID)
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.unlock()
	if r.gone {
		return
	}
	r.confirmedLocked()
	if r.standbys == nil {
		return
	}
	r.standbys.Refresh()
	for _, node := range s.cfg.Group.Died() {
		for _, session := range r.standbys.Sessions(node) {
			if p := r.latest[session]; p != nil { // a process may close its listener and live
				p.proven = s.running()
				continue
			}
			r.submitLocked(rendezvous.Disconnect{Session: session, Dead: true}, nil)
		}
	}
}

func (r *run) confirmedLocked() {
	u := &r.uncommitted
	if len(u.queue) > 0 && u.number == 0 && r.broken == nil { // it hosts on
		r.proposeLocked()
	}
	for len(u.queue) > 0 && u.queue[0].number > 0 && r.server.cfg.Elector.Committed(u.queue[0].number) {
		w := u.queue[0]
		u.queue = u.queue[1:]
		w.say()
	}
}

// sayPatience is how long an administrator's answer may wait for the voters: less than its client
// waits, which would otherwise not learn why there is none.
const sayPatience = 3 * time.Second

// awaitStored waits until an administrator's request has been applied, or will not be; for one that a majority of
// several servers has to accept no longer than the client does.
func (s *Server) awaitStored(e *pendingEvent) *rendezvous.Error {
	if s.cfg.Peers == nil || e.done == nil {
		return e.wait()
	}
	return cmp.Or(s.awaitSaid(e.done), e.refused)
}

// awaitSaid waits until the messages that follow from an administrator's request are sent; nil: none is to be.
func (s *Server) awaitSaid(said <-chan struct{}) *rendezvous.Error {
	if said == nil {
		return nil
	}
	patience := time.NewTimer(sayPatience)
	defer patience.Stop()
	select {
	case <-said:
		return nil
	case <-patience.C:
	case <-s.stop:
	}
	return s.noMajority()
}

// leadsNoMore is why a server that was deposed cannot tell what has become of a request.
func (s *Server) leadsNoMore() *rendezvous.Error {
	return rendezvous.Errorf(rendezvous.CodeConnection, "the control plane at %s (%s) leads no more, and does not know whether the next leader has the request: ask again", s.Addr(), s.process)
}

// noMajority is why a host answers nothing.
func (s *Server) noMajority() *rendezvous.Error {
	why := "the voters have not accepted it yet"
	if e := s.cfg.Elector; e != nil {
		why = cmp.Or(e.NoMajority(), why)
	}
	return rendezvous.Errorf(rendezvous.CodeConnection, "the control plane at %s (%s) cannot answer now, and does what it was asked for when it can: %s", s.Addr(), s.process, why)
}
