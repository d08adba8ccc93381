package register

import (
	"crypto/rand"
	"slices"
	"time"

	"rallypoint/core/rendezvous"
)

// Parts of a lease.
const (
	beatsPerLease = 4 // the leader writes so often
	muteParts     = 2 // it says nothing once the last write that the register has taken was begun longer ago than this part
	gapParts      = 2 // looks that are further apart than this part say nothing about the time between them
)

// seatParts is the part of a lease for which the place of a leader that was silent waits at least, and with it those of
// all members on their way to the next one.
const seatParts = 4

// maxTried bounds the attempts whose answers may be lost that are kept.
const maxTried = 8

// core is what a process knows of the register, and what it may do. Times are of a clock that goes on
// while the machine sleeps. It does no I/O.
type core struct {
	runID, node, machine string
	ownLease             time.Duration

	known bool    // the register was read
	seen  *Record // as it was read or written last; nil: there is none
	token []byte

	// Of a reader: every look that has begun after since has found what was seen.
	since, began, ended time.Duration // the latter two are of the last look

	// Of the leader.
	leads     bool
	left      bool             // it leads no more of its own will
	facts     rendezvous.Facts // as proposed last
	proposed  uint64
	confirmed uint64
	held      time.Duration // when the last write began that the register has taken
	tried     []attempt     // that may have been taken, the oldest first
	beat      uint64
}

// attempt is one compare-and-set.
type attempt struct {
	record Record
	token  []byte
	number uint64 // of the proposal that it has
	began  time.Duration
}

// lease is the longer of this node's and the leader's: who is about to be refused, because it wants
// another one than the run, deposes nobody.
func (c *core) lease() time.Duration {
	if c.seen != nil {
		return max(c.ownLease, c.seen.Lease)
	}
	return c.ownLease
}

// looked takes what a look has found that took from began to ended. It reports whether that is another
// leader, or another phase, than before.
func (c *core) looked(r *Record, token []byte, began, ended time.Duration) (changed bool) {
	if c.leads || c.known && c.seen != nil && r != nil && r.Group == c.seen.Group && (r.Term < c.seen.Term || r.Leader == c.seen.Leader && r.Beat < c.seen.Beat) {
		return false // its answer came late
	}
	same := c.known && (r == nil) == (c.seen == nil) && (r == nil || r.Leader == c.seen.Leader && r.Phase == c.seen.Phase)
	if !same || r != nil && r.Beat != c.seen.Beat || began-c.ended > c.lease()/gapParts {
		c.since = ended
	}
	c.known, c.seen, c.token, c.began, c.ended = true, r, token, began, ended
	return !same
}

// failed takes that a look has failed: while the register is out of reach its leader cannot write either.
func (c *core) failed(ended time.Duration) { c.since, c.began, c.ended = ended, ended, ended }

// silent reports whether the leader has not written for a lease.
func (c *core) silent() bool {
	return c.known && c.seen != nil && c.seen.Phase == Leads && c.began-c.since >= c.lease()
}

// candidacy returns what this process has to write in order to lead, and how the run begins then; false if
// another one leads. dead means that the process of that leader is proven dead.
func (c *core) candidacy(addr, dead string, now time.Duration) (a attempt, s rendezvous.Succession, ok bool) {
	r := Record{RunID: c.runID, Leader: rand.Text(), Node: c.node, Addr: addr, Machine: c.machine, Lease: c.ownLease, Beat: 1}
	switch last := c.seen; {
	case !c.known || c.leads:
		return a, s, false
	case last == nil || last.Phase == Over:
		r.Group, r.Term, s = rand.Text(), 1, rendezvous.Succession{Term: 1}
	case last.Phase == Left || last.Leader == dead || c.silent():
		r.Group, r.Term, r.Facts = last.Group, last.Term+1, last.Facts
		s = rendezvous.Succession{Term: r.Term, From: last.Node, Facts: last.Facts, Left: last.Phase == Left, Silent: last.Phase == Leads && last.Leader != dead}
		if s.Silent { // for a lease already
			s.Grace = c.lease() / seatParts
		}
	default:
		return a, s, false
	}
	return attempt{record: r, token: c.token, began: now}, s, true
}

// lead has this process lead, whose attempt the register has taken.
func (c *core) lead(a attempt, token []byte) {
	c.known, c.seen, c.token = true, new(a.record), token
	c.leads, c.left, c.held, c.beat = true, false, a.began, a.record.Beat
	c.facts, c.proposed, c.confirmed, c.tried = a.record.Facts, 0, 0, nil
}

// propose notes the leader's facts.
func (c *core) propose(f rendezvous.Facts) uint64 {
	c.facts = f
	c.proposed++
	return c.proposed
}

// due returns when the leader has to write next: at once, if it has proposed something.
func (c *core) due(now time.Duration) (at time.Duration) {
	if c.proposed != c.confirmed {
		return now
	}
	return c.held + c.lease()/beatsPerLease
}

// next is the leader's next attempt.
func (c *core) next(phase Phase, now time.Duration) attempt {
	r := *c.seen
	c.beat++
	r.Beat, r.Phase, r.Facts = c.beat, phase, c.facts
	a := attempt{record: r, token: c.token, number: c.proposed, began: now}
	c.tried = append(c.tried[max(0, len(c.tried)-maxTried+1):], a)
	return a
}

// wrote takes the register's answer to an attempt of the leader: what is stored now. It reports whether
// the attempt was taken.
func (c *core) wrote(a attempt, now *Record, token []byte) (taken bool) {
	switch {
	case !c.leads:
		return false
	case now == nil: // the register was emptied: this process writes anew what it knows
		c.token = nil
		return false
	case now.Leader != c.seen.Leader:
		c.leads, c.tried = false, nil
		c.seen, c.token = now, token
		return false
	}
	i := slices.IndexFunc(c.tried, func(t attempt) bool { return t.record.Beat == now.Beat })
	c.token = token
	if i < 0 {
		return false
	}
	t := c.tried[i] // this one, or one before whose answer was lost
	c.tried = slices.Delete(c.tried, 0, i+1)
	c.seen, c.confirmed, c.held = now, t.number, t.began
	taken = now.Beat == a.record.Beat
	if taken && a.record.Phase != Leads {
		c.leads, c.left = false, true
	}
	return taken
}

// maySay reports whether the leader may tell what follows from a proposal. One that has left still may: its last
// record has what its successor begins with.
func (c *core) maySay(number uint64, now time.Duration) bool {
	return (c.leads || c.left) && c.confirmed >= number && now-c.held <= c.lease()/muteParts
}
