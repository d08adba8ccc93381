package sharedlog

import (
	"errors"
	"fmt"
	"time"

	"rallypoint/core/rendezvous"
)

// applier is this node's state of the run: the result of all entries up to index. Replica.mu
// guards it.
type applier struct {
	p       *Replica
	machine *rendezvous.Machine
	index   uint64
	ring    ring
	timers  timers

	greeted  bool // the present session was welcomed
	first    bool // a session was welcomed before
	loaded   bool // a snapshot was loaded before, or there was none at first
	progress rendezvous.Progress
	warned   bool
	asked    time.Time // since when a join of this node is pending; zero: none is

	since    Snapshot // Index: of the latest snapshot known
	entries  int      // since then
	bytes    int
	saved    uint64 // index of the last snapshot made here
	troubles map[string]error

	news []func() // for the observer and the callers, in order; run without mu
}

func newApplier(p *Replica) *applier {
	return &applier{p: p, machine: newMachine(p.params.RunID, p.info.Generation), timers: timers{}, troubles: map[string]error{}, ring: ring{peers: map[rendezvous.SessionID]*peer{}}}
}

func newMachine(runID, generation string) *rendezvous.Machine {
	return rendezvous.New(rendezvous.Config{RunID: runID, Generation: generation, Uptime: -1})
}

// loop applies what the other goroutines read and observe, until the replica ends. Only it calls
// the observer.
func (r *Replica) loop() {
	tick := time.NewTimer(0)
	defer tick.Stop()
	for {
		var m message // nil: time has passed
		select {
		case m = <-r.in:
		case <-tick.C:
		case <-r.life.Done():
			return
		}
		r.mu.Lock()
		f := r.applier
		var err *rendezvous.Error
		if m != nil {
			err = m.handle(f)
		}
		r.countNodes(f.machine.Live())
		f.tellProgress()
		f.fireTimers()
		next := f.nextDeadline()
		news := f.news
		f.news = nil
		r.mu.Unlock()
		for _, tell := range news {
			tell()
		}
		if err != nil {
			r.fail(err)
			r.obs.Dropped(err)
			return
		}
		tick.Reset(next)
	}
}

// message is a report of a goroutine that does I/O to the one that applies. The error of handle
// is final.
type message interface {
	handle(ap *applier) *rendezvous.Error
}

// handle records whether the operation works, and tells the observer when that changes.
func (b broken) handle(ap *applier) *rendezvous.Error {
	p := ap.p
	if final(b.err) {
		return asError(p.params.RunID, b.err)
	}
	was := len(ap.troubles) > 0
	if b.err != nil {
		ap.troubles[b.op] = b.err
	} else {
		delete(ap.troubles, b.op)
	}
	switch is := len(ap.troubles) > 0; {
	case is && !was:
		ap.tell(func() { p.obs.ConnectionChanged(b.err) })
	case !is && was:
		ap.tell(func() { p.obs.ConnectionChanged(nil) })
	}
	return nil
}

func (ap *applier) tell(news func()) { ap.news = append(ap.news, news) }

// handle applies the entries.
func (b Batch) handle(ap *applier) *rendezvous.Error {
	for _, e := range b.Entries {
		if e.Index <= ap.index {
			continue
		}
		ev, err := rendezvous.DecodeEvent(e.Data)
		if err != nil {
			return rendezvous.Errorf(rendezvous.CodeState, "run %q: entry %d at %s cannot be read: %v; all nodes of a run need one release",
				ap.p.params.RunID, e.Index, ap.p.params.Endpoint, err)
		}
		ap.index = e.Index
		ap.entries++
		ap.bytes += len(e.Data)
		ap.apply(ev)
	}
	if b.Snapshot > ap.since.Index {
		ap.since.Index, ap.entries, ap.bytes = b.Snapshot, 0, 0
	}
	ap.maybeSave()
	return nil
}

// apply applies one event and carries out the effects that are this node's.
func (ap *applier) apply(ev rendezvous.Event) {
	p := ap.p
	switch ev := ev.(type) {
	case rendezvous.TimerFired:
		ap.timers.stop(ev.Timer)
	case rendezvous.Disconnect:
		// Another node took this one for dead, and it is not.
		if ev.Session == p.session && !p.closing {
			p.shown = "" // a beat comes first
			p.greeted.Set()
			defer p.proposeLocked(proposal{event: p.helloLocked()})
		}
	}
	effects := ap.machine.Apply(ev)
	if p.applied != nil {
		p.applied(ap.index, ev, effects)
	}
	for _, e := range effects {
		ap.carryOut(e)
	}
}

func (ap *applier) carryOut(e rendezvous.Effect) {
	p := ap.p
	switch e := e.(type) {
	case rendezvous.Welcome:
		ap.greet(e.Session)
		if e.Session == p.session {
			ap.welcomed(e.Update)
		}
	case rendezvous.Refuse:
		if e.Session == p.session {
			ap.refused(e.Err)
		}
	case rendezvous.Reply:
		if e.Session == p.session {
			ap.answer(e)
		}
	case rendezvous.Notify:
		if e.Session == p.session {
			ap.tell(func() { p.obs.Updated(e.Update) })
		}
	case rendezvous.Drop:
		ap.ring.stale = true
		if e.Session == p.session {
			ap.dropped(e.Err)
		}
	case rendezvous.SetTimer:
		ap.timers.set(e)
	case rendezvous.StopTimer:
		ap.timers.stop(e.Timer)
	case rendezvous.HistoryEntry:
		p.log.Debug(e.Text)
	}
}

// welcomed takes note that this node is part of the run.
func (ap *applier) welcomed(n rendezvous.MembershipUpdate) {
	p := ap.p
	ap.greeted = true
	ap.tell(func() { p.obs.Updated(n) })
	if !ap.first {
		ap.first = true
		ap.tell(func() { close(p.welcome) })
	}
}

// refused ends the replica.
func (ap *applier) refused(err *rendezvous.Error) {
	p, first := ap.p, ap.first
	ap.tell(func() {
		p.fail(err)
		if first {
			p.obs.Dropped(err)
		}
	})
}

func (ap *applier) answer(r rendezvous.Reply) {
	c := ap.p.calls.Take(r.Number)
	switch {
	case c == nil: // answered before
	case r.Err != nil:
		ap.tell(func() { c.Call.Finish(nil, r.Err) })
	default:
		result := r.Result
		switch of := result.(type) {
		case rendezvous.Outcome:
			ap.p.last = of.LastRound() // the next entry may make this node say hello again
			ap.warnOfMany(of)
		case rendezvous.KeyResult:
			result = of.Clone() // the machine keeps its own until it is acknowledged
		}
		ap.tell(func() { c.Call.Finish(result, nil) })
	}
}

// warnOfMany warns once, on the node of rank 0, of a round with more nodes than the log is for.
func (ap *applier) warnOfMany(of rendezvous.Outcome) {
	p, most := ap.p, ap.p.info.ManyNodes
	if most == 0 || of.World <= most || of.Rank != 0 || ap.warned {
		return
	}
	ap.warned = true
	ap.tell(func() {
		p.log.Warn(fmt.Sprintf("round %d has %d nodes: in a shared place each node reads what all write, and spends more CPU the more they are; "+
			"above %d nodes give a node's HOST:PORT or that of `rallypoint serve` as the endpoint", of.Round, of.World, most))
	})
}

// dropped begins a new session after this node was taken out of the run.
func (ap *applier) dropped(err *rendezvous.Error) {
	p := ap.p
	if p.closing {
		return
	}
	ap.tell(func() { p.obs.Dropped(err) })
	ap.greeted = false
	p.session = newSession()
	p.incarnation++
	p.renewLocked()
	p.greeted.Set()
}

// Progress of a pending join is logged at these times.
const (
	progressFirst = 500 * time.Millisecond
	progressEvery = time.Second
)

// tellProgress tells what a pending join of this node waits for.
func (ap *applier) tellProgress() {
	p := ap.p
	forming, pending := ap.machine.Forming(p.session)
	now := time.Now()
	switch {
	case !pending:
		ap.asked, ap.progress = time.Time{}, rendezvous.Progress{}
		return
	case ap.asked.IsZero():
		ap.asked = now.Add(progressFirst)
		return
	case now.Before(ap.asked):
		return
	}
	ap.asked = now.Add(progressEvery)
	candidate, beside := ap.machine.Progress()
	text := beside
	if forming {
		text = candidate
	}
	if text != ap.progress {
		ap.progress = text
		ap.tell(func() { p.obs.Progressed(text) })
	}
}

// nextDeadline returns the time until the next timer, at most a minute.
func (ap *applier) nextDeadline() time.Duration {
	const idle = time.Minute
	next := time.Now().Add(idle)
	if !ap.asked.IsZero() && ap.asked.Before(next) {
		next = ap.asked
	}
	if due, ok := ap.timers.next(ap.place(), ap.p.info.HeartbeatReadInterval); ok && due.Before(next) {
		next = due
	}
	return max(0, time.Until(next))
}

// maybeSave makes a snapshot if one is due. The first node in the ring makes it, and the others
// only if that one does not.
func (ap *applier) maybeSave() {
	p := ap.p
	place := min(ap.place(), 8)
	entries, bytes := p.info.SnapshotEntries, p.info.SnapshotBytes
	entries += entries / 8 * place
	bytes += bytes / 8 * place
	if ap.entries < entries && ap.bytes < bytes || ap.index <= ap.saved || !ap.greeted {
		return
	}
	select {
	case p.saving <- Snapshot{ap.index, ap.machine.Snapshot()}:
		ap.saved = ap.index
		ap.entries, ap.bytes = 0, 0
	default: // the last one is still being stored
	}
}

// handle continues from the snapshot, at the beginning or because this node has fallen
// behind.
func (s Snapshot) handle(ap *applier) *rendezvous.Error {
	p := ap.p
	if s.Index <= ap.index {
		ap.loaded = true
		return nil
	}
	machine, err := rendezvous.Restore(s.State)
	if err != nil {
		return rendezvous.Errorf(rendezvous.CodeState, "run %q: the snapshot at %s cannot be read: %v; all nodes of a run need one release",
			p.params.RunID, p.params.Endpoint, err)
	}
	before := ap.machine
	ap.machine, ap.index, ap.since = machine, s.Index, Snapshot{Index: s.Index}
	ap.entries, ap.bytes, ap.ring.stale = 0, 0, true
	ap.timers = timers{}
	for _, t := range machine.Timers() {
		ap.timers.set(t)
	}
	answers, notice, known := machine.CatchUp(p.session, before, p.last)
	for _, r := range answers {
		ap.answer(r)
	}
	if known {
		p.repeatLocked() // what the session that is known has not heard of
	}
	switch {
	case known && !ap.greeted:
		ap.welcomed(notice)
	case known:
		ap.tell(func() { p.obs.Updated(notice) })
	case ap.greeted:
		ap.dropped(rendezvous.Errorf(rendezvous.CodeEvicted, "run %q: node %s was dropped while it was away", p.params.RunID, p.node))
	case ap.loaded:
		p.renewLocked() // what became of the hello is in the snapshot
	}
	ap.loaded = true
	return nil
}

func asError(runID string, err error) *rendezvous.Error {
	if own, ok := errors.AsType[*rendezvous.Error](err); ok {
		return own
	}
	return rendezvous.Errorf(rendezvous.CodeState, "run %q: %v", runID, err)
}
