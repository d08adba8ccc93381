package control

import (
	"fmt"
	"slices"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
)

const (
	// leaseLook is the least time between two looks at the leases, and so how
	// much later than its lease a silent node is dropped, twice.
	leaseLook = 25 * time.Millisecond

	// A look that comes later than this part of a lease, within bounds, means
	// that this process was stopped or is overloaded.
	lateParts = 8
	minLate   = 10 * time.Millisecond
	maxLate   = 500 * time.Millisecond
)

// leases is the clock by which a run evaluates its nodes' leases; it runs while any
// is connected.
type leases struct {
	timer  Stopper // nil: stopped
	due    time.Time
	cutOff bool // a majority of the voters was out of reach at the last look
}

func (l *leases) stop() {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
}

// startLease gives the connection's session a full lease.
func (r *run) startLease(p *serverConn, lease time.Duration) {
	p.hear()
	p.suspect = false
	if r.leases.timer == nil {
		r.armLeases(lease)
	}
}

// armLeases arranges for the next look, at the time when the first of the leases
// may have run out.
func (r *run) armLeases(after time.Duration) {
	after = max(after, leaseLook)
	l := &r.leases
	l.due = r.server.clock.Now().Add(after)
	l.timer = r.server.clock.AfterFunc(after, func() { r.callback(r.checkLeases) })
}

// checkLeases drops the nodes whose lease has run out. If it runs late, this process was stopped
// or is overloaded, and may not have read the nodes' messages. Then all leases restart. The
// server does not read from a node that does not read either (wire.Outbox.AwaitDrained), so that
// its connection ends after a lease.
func (r *run) checkLeases() {
	now := r.server.clock.Now()
	lease := r.machine.Policy().LeaseTimeout
	cutOff, before := !r.mayJudgeLocked(), r.leases.cutOff
	r.leases.cutOff = cutOff
	late := cutOff || now.Sub(r.leases.due) > min(max(lease/lateParts, minLate), maxLate)
	next := lease
	var expired []rendezvous.SessionID
	for session, p := range r.conns {
		stuck, silence := p.out.Stuck(), p.silence()
		left := lease - max(silence, stuck)
		look := rendezvous.LeaseLook{Renew: late, Silence: silence, Suspect: p.suspect}
		look.Unread = silence > lease && wire.Unread(p.conn) > 0
		switch verdict := look.Judge(lease); {
		case verdict == rendezvous.LeaseRenewed:
			p.hear()
			p.out.ResetStuck()
			p.suspect = false
			left = lease
		case p.expiring: // and soon gone
		case stuck > lease && wire.Untaken(p.conn) > 0: // else it is this process that does not come to write
			p.expiring = true
			p.out.Cut(wire.ErrStuck)
		case verdict == rendezvous.LeaseUndecided:
			if stuck > 0 { // it is read when it reads
				left = lease - stuck
			}
		case verdict == rendezvous.LeaseOver:
			expired = append(expired, session)
		default:
			p.suspect = verdict == rendezvous.LeaseSuspected
		}
		next = min(next, left)
	}
	switch {
	case cutOff && !before:
		r.noteChange("this host has no majority of its voters: until it has, no lease is judged")
	case cutOff:
	case late:
		r.server.metrics.stalls.Add(1)
		r.noteChange(fmt.Sprintf(
			"this process was stopped or is overloaded: leases were judged %v late, all nodes get a new one", now.Sub(r.leases.due)))
	}
	slices.Sort(expired)
	for _, session := range expired {
		r.conns[session].expiring = true
		r.submitLocked(rendezvous.LeaseExpired{Session: session}, nil)
	}
	r.leases.timer = nil
	if len(r.conns) > 0 {
		r.armLeases(next)
	}
}
