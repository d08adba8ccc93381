package sharedlog

import (
	"errors"
	"time"

	"rallypoint/core/rendezvous"
)

// applier is the run as this node knows it: what all entries up to index amount to.
// It is guarded by Replica.mu.
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

// loop applies what the other goroutines read and see, until the replica ends. It
// alone calls the observer.
func (p *Replica) loop() {
	tick := time.NewTimer(0)
	defer tick.Stop()
	for {
		var what any
		select {
		case what = <-p.in:
		case <-tick.C:
		case <-p.life.Done():
			return
		}
		p.mu.Lock()
		f := p.applier
		err := f.take(what)
		p.countNodes(f.machine.Live())
		f.tellProgress()
		f.fireTimers()
		next := f.nextLook()
		news := f.news
		f.news = nil
		p.mu.Unlock()
		for _, tell := range news {
			tell()
		}
		if err != nil {
			p.fail(err)
			p.obs.Dropped(err)
			return
		}
		tick.Reset(next)
	}
}

// take applies what a goroutine has reported; the error is final.
func (f *applier) take(what any) *rendezvous.Error {
	switch what := what.(type) {
	case Batch:
		return f.takeBatch(what)
	case Snapshot:
		return f.load(what)
	case heartbeats:
		f.evaluate(what)
	case broken:
		return f.takeTrouble(what)
	}
	return nil
}

func (f *applier) takeTrouble(b broken) *rendezvous.Error {
	p := f.p
	if b.final {
		return asError(p.params.RunID, b.err)
	}
	was := len(f.troubles) > 0
	if b.err != nil {
		f.troubles[b.op] = b.err
	} else {
		delete(f.troubles, b.op)
	}
	switch is := len(f.troubles) > 0; {
	case is && !was:
		f.tell(func() { p.obs.ConnectionChanged(b.err) })
	case !is && was:
		f.tell(func() { p.obs.ConnectionChanged(nil) })
	}
	return nil
}

func (f *applier) tell(news func()) { f.news = append(f.news, news) }

// takeBatch applies entries.
func (f *applier) takeBatch(b Batch) *rendezvous.Error {
	for _, e := range b.Entries {
		if e.Index <= f.index {
			continue
		}
		ev, err := rendezvous.DecodeEvent(e.Data)
		if err != nil {
			return rendezvous.Errorf(rendezvous.CodeState, "run %q: entry %d at %s cannot be read: %v; all nodes of a run need one release",
				f.p.params.RunID, e.Index, f.p.params.Endpoint, err)
		}
		f.index = e.Index
		f.entries++
		f.bytes += len(e.Data)
		f.apply(ev)
	}
	if b.Snapshot > f.since.Index {
		f.since.Index, f.entries, f.bytes = b.Snapshot, 0, 0
	}
	f.maybeSave()
	return nil
}

// apply applies one event and carries out the effects that are this node's.
func (f *applier) apply(ev rendezvous.Event) {
	p := f.p
	switch ev := ev.(type) {
	case rendezvous.TimerFired:
		f.timers.stop(ev.Timer)
	case rendezvous.Disconnect:
		// Another node took this one for dead, and it is not.
		if ev.Session == p.session && !p.closing {
			p.shown = "" // a beat comes first
			p.greeted.Set()
			defer p.propose(proposal{event: p.hello()})
		}
	}
	effects := f.machine.Apply(ev)
	if p.applied != nil {
		p.applied(f.index, ev, effects)
	}
	for _, e := range effects {
		f.carryOut(e)
	}
}

func (f *applier) carryOut(e rendezvous.Effect) {
	p := f.p
	switch e := e.(type) {
	case rendezvous.Welcome:
		f.greet(e.Session)
		if e.Session == p.session {
			f.welcomed(e.Update)
		}
	case rendezvous.Refuse:
		if e.Session == p.session {
			f.refused(e.Err)
		}
	case rendezvous.Reply:
		if e.Session == p.session {
			f.answer(e)
		}
	case rendezvous.Notify:
		if e.Session == p.session {
			f.tell(func() { p.obs.Updated(e.Update) })
		}
	case rendezvous.Drop:
		f.ring.stale = true
		if e.Session == p.session {
			f.dropped(e.Err)
		}
	case rendezvous.SetTimer:
		f.timers.set(e)
	case rendezvous.StopTimer:
		f.timers.stop(e.Timer)
	case rendezvous.HistoryEntry:
		p.log.Debug(e.Text)
	}
}

// welcomed takes note that this node is part of the run.
func (f *applier) welcomed(n rendezvous.MembershipUpdate) {
	p := f.p
	f.greeted = true
	f.tell(func() { p.obs.Updated(n) })
	if !f.first {
		f.first = true
		f.tell(func() { close(p.welcome) })
	}
}

// refused ends the replica.
func (f *applier) refused(err *rendezvous.Error) {
	p, first := f.p, f.first
	f.tell(func() {
		p.fail(err)
		if first {
			p.obs.Dropped(err)
		}
	})
}

func (f *applier) answer(r rendezvous.Reply) {
	c := f.p.calls.Take(r.Number)
	switch {
	case c == nil: // answered before
	case r.Err != nil:
		f.tell(func() { c.Call.Finish(nil, r.Err) })
	default:
		result := r.Result
		switch of := result.(type) {
		case rendezvous.Outcome:
			f.p.last = of.LastRound() // the next entry may make this node say hello again
		case rendezvous.KeyResult:
			result = of.Clone() // the machine keeps its own until it is acknowledged
		}
		f.tell(func() { c.Call.Finish(result, nil) })
	}
}

// dropped begins a new session after this node was taken out of the run.
func (f *applier) dropped(err *rendezvous.Error) {
	p := f.p
	if p.closing {
		return
	}
	f.tell(func() { p.obs.Dropped(err) })
	f.greeted = false
	p.session = newSession()
	p.incarnation++
	p.renew()
	p.greeted.Set()
}

// Progress of a pending join is logged at these times.
const (
	progressFirst = 500 * time.Millisecond
	progressEvery = time.Second
)

// tellProgress tells what a pending join of this node waits for.
func (f *applier) tellProgress() {
	p := f.p
	forming, pending := f.machine.Forming(p.session)
	now := time.Now()
	switch {
	case !pending:
		f.asked, f.progress = time.Time{}, rendezvous.Progress{}
		return
	case f.asked.IsZero():
		f.asked = now.Add(progressFirst)
		return
	case now.Before(f.asked):
		return
	}
	f.asked = now.Add(progressEvery)
	candidate, beside := f.machine.Progress()
	text := beside
	if forming {
		text = candidate
	}
	if text != f.progress {
		f.progress = text
		f.tell(func() { p.obs.Progressed(text) })
	}
}

// nextLook is how long nothing is to be done unless something comes in.
func (f *applier) nextLook() time.Duration {
	const idle = time.Minute
	next := time.Now().Add(idle)
	if !f.asked.IsZero() && f.asked.Before(next) {
		next = f.asked
	}
	if due, ok := f.timers.next(f.place(), f.p.info.HeartbeatReadInterval); ok && due.Before(next) {
		next = due
	}
	return max(0, time.Until(next))
}

// maybeSave makes a snapshot if one is due. The first node in the ring does it;
// the others stand by in case that it does not.
func (f *applier) maybeSave() {
	p := f.p
	place := min(f.place(), 8)
	entries, bytes := p.info.SnapshotEntries, p.info.SnapshotBytes
	entries += entries / 8 * place
	bytes += bytes / 8 * place
	if f.entries < entries && f.bytes < bytes || f.index <= f.saved || !f.greeted {
		return
	}
	select {
	case p.saving <- Snapshot{f.index, f.machine.Snapshot()}:
		f.saved = f.index
		f.entries, f.bytes = 0, 0
	default: // the last one is still being stored
	}
}

// load goes on from a snapshot, at the beginning or because this node has fallen
// behind.
func (f *applier) load(s Snapshot) *rendezvous.Error {
	p := f.p
	if s.Index <= f.index {
		f.loaded = true
		return nil
	}
	machine, err := rendezvous.Restore(s.State)
	if err != nil {
		return rendezvous.Errorf(rendezvous.CodeState, "run %q: the snapshot at %s cannot be read: %v; all nodes of a run need one release",
			p.params.RunID, p.params.Endpoint, err)
	}
	before := f.machine
	f.machine, f.index, f.since = machine, s.Index, Snapshot{Index: s.Index}
	f.entries, f.bytes, f.ring.stale = 0, 0, true
	f.timers = timers{}
	for _, t := range machine.Timers() {
		f.timers.set(t)
	}
	answers, notice, known := machine.CatchUp(p.session, before, p.last)
	for _, r := range answers {
		f.answer(r)
	}
	if known {
		p.repeat() // what the session that is known has not heard of
	}
	switch {
	case known && !f.greeted:
		f.welcomed(notice)
	case known:
		f.tell(func() { p.obs.Updated(notice) })
	case f.greeted:
		f.dropped(rendezvous.Errorf(rendezvous.CodeEvicted, "run %q: node %s was dropped while it was away", p.params.RunID, p.node))
	case f.loaded:
		p.renew() // what became of the hello is in the snapshot
	}
	f.loaded = true
	return nil
}

func asError(runID string, err error) *rendezvous.Error {
	var own *rendezvous.Error
	if errors.As(err, &own) {
		return own
	}
	return rendezvous.Errorf(rendezvous.CodeState, "run %q: %v", runID, err)
}
