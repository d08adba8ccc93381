package control

import (
	"crypto/rand"

	"rallypoint/core/control/journal"
	"rallypoint/core/rendezvous"
)

// stored is what a run knows of its share of the data directory. It belongs to
// the goroutine of groupCommit once the run has begun.
type stored struct {
	last     uint64            // number of the last event that is stored
	since    int               // bytes of events that were stored since the last snapshot
	size     int               // of that snapshot
	snapshot *journal.Snapshot // to be written with the next commit
}

// takeSnapshot prepares the state to be written; mu is held.
func (r *run) takeSnapshot() {
	s := &r.stored
	s.snapshot = &journal.Snapshot{ID: r.id, Through: s.last, State: r.machine.Snapshot()}
	s.since, s.size = 0, len(s.snapshot.State)
}

// erase takes a retired run out of the data directory.
func (r *run) erase() {
	if w := r.server.commits; w != nil {
		w.add(&pendingEvent{run: r, forget: true})
	}
}

// encode is how an event is stored.
func encode(ev rendezvous.Event) ([]byte, *rendezvous.Error) {
	b, err := rendezvous.EncodeEvent(ev)
	if err != nil {
		return nil, rendezvous.Errorf(rendezvous.CodeOf(err), "%v", err)
	}
	return b, nil
}

// restoreRuns makes the runs that were found in the data directory go on: their nodes
// have one lease to come back, and all timers restart.
func (s *Server) restoreRuns(d *Data) {
	if len(d.runs) > 0 {
		s.log.Info("restored what was stored", "runs", len(d.runs), "file", d.Path())
	}
	for _, found := range d.runs {
		r := newRun(s, found.id, found.number)
		r.used = true
		s.runs[found.id] = r
		r.mu.Lock()
		r.stored.last = found.seq
		if found.broken != nil {
			r.stored.snapshot = nil // what is there may tell what is wrong
			r.fail(found.broken, found.stack)
			r.unlock()
			continue
		}
		r.traceRestored(found)
		r.machine = found.machine
		r.machine.LimitKeys(s.cfg.Quota.keys())
		r.takeSnapshot()
		r.stats.census, r.stats.round = r.machine.Census(), r.machine.Round()
		if r.stats.census.Phase.Forming() {
			r.stats.forming = s.clock.Now()
		}
		for _, t := range r.machine.Timers() {
			r.setTimer(t.Timer, t.After)
		}
		r.submit(rendezvous.Recovered{Generation: rand.Text()}, nil)
		r.unlock()
	}
	s.runSeq = d.last
	d.runs = nil
}
