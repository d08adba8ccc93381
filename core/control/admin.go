package control

import (
	"cmp"

	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/pack"
)

// executeAdmin executes an administrator's request from an address. Every peer that
// reaches the port may ask: see docs/protocol.md.
func (s *Server) executeAdmin(f wire.Admin, from string) wire.AdminAnswer {
	s.metrics.admin[known(int(f.Op), adminOpNames[:])].Add(1)
	by := "admin"
	if f.By != "" {
		by += " " + f.By
	}
	if from != "" {
		by += " (" + from + ")"
	}
	by = pack.CutText(by, wire.MaxName)
	r := s.lookUp(f.RunID)
	if r == nil {
		return wire.AdminAnswer{Err: s.goneRun(f.RunID)}
	}
	ev := f.Event(by, *rendezvous.StatusTime(s.clock.Now()))
	if ev == nil {
		return wire.AdminAnswer{Err: rendezvous.Errorf(rendezvous.CodeInvalid,
			"the control plane at %s does not know admin request %d: it is older than this command", s.Addr(), f.Op)}
	}
	done, err := r.applyAdmin(ev)
	return wire.AdminAnswer{Done: done, Err: err}
}

// goneRun is the error of a request for a run that this server, which led when the request came, does not have.
func (s *Server) goneRun(id string) *rendezvous.Error {
	if s.elected(id) && !s.cfg.Elector.Hosting() {
		return s.leadsNoMore()
	}
	return s.unknownRun(id)
}

// unusableLocked returns why no request can be made of the run, nil if one can.
func (r *run) unusableLocked() *rendezvous.Error {
	if r.gone {
		return r.server.goneRun(r.id)
	}
	return r.broken
}

// applyAdmin has the run apply an administrator's event, and returns the machine's answer. With
// a data directory it blocks until the event is stored: the answer is made from the state that
// the event has met then.
func (r *run) applyAdmin(ev rendezvous.Event) (done string, failed *rendezvous.Error) {
	r.mu.Lock()
	if err := r.unusableLocked(); err != nil {
		r.mu.Unlock()
		return "", err
	}
	e := r.submitLocked(ev, nil)
	said := r.saidLocked()
	r.unlock()
	if err := r.server.awaitStored(e); err != nil {
		return "", err
	}
	if err := r.server.awaitSaid(said); err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.unlock()
	if e.replied == nil || said != nil && r.gone { // another process may lead by now, which does not know of it
		return "", cmp.Or(r.unusableLocked(), r.server.leadsNoMore())
	}
	return e.replied.Text, e.replied.Err
}
