package control

import (
	"crypto/rand"
	"fmt"
	"runtime/debug"

	"rallypoint/core/control/journal"
	"rallypoint/core/rendezvous"
)

// Data is an open data directory and the runs that were found in it. It serves
// one server, and is closed after it.
type Data struct {
	*journal.Journal
	write func([]journal.WriteBatch) error // the journal's Write
	runs  []storedRun
}

// storedRun is a run as it was found.
type storedRun struct {
	journal.Run
	machine *rendezvous.Machine // nil: broken
	broken  *rendezvous.Error
	stack   []byte
	seq     uint64 // number of its last event
}

// OpenData opens a data directory, makes it if necessary, and reads the runs in it. An error says
// what is wrong with the directory or its file and what to do.
func OpenData(dir string, o journal.Options) (*Data, error) {
	j, err := journal.Open(dir, o)
	if err != nil {
		return nil, err
	}
	d := &Data{Journal: j, write: j.Write}
	stored, err := j.Runs()
	for i := 0; err == nil && i < len(stored); i++ {
		var r storedRun
		if r, err = restore(stored[i]); err != nil { // a whole file with contents that this program does not understand
			err = fmt.Errorf("data file %s, run %q: %w; use the release that wrote it or a newer one, or give another --data-dir", j.Path(), r.ID, err)
		}
		d.runs = append(d.runs, r)
	}
	if err != nil {
		_ = j.Close()
		return nil, err
	}
	return d, nil
}

// restore makes a run's machine of what is stored of it.
func restore(s journal.Run) (r storedRun, err error) {
	r = storedRun{Run: s, seq: s.Through + uint64(len(s.Events))}
	if r.machine, err = rendezvous.Restore(s.Snapshot); err != nil {
		return r, err
	}
	for _, b := range s.Events {
		ev, err := rendezvous.DecodeEvent(b)
		if err != nil {
			return r, err
		}
		if r.broken, r.stack = replay(r.machine, s.ID, ev); r.broken != nil {
			r.machine = nil
			break
		}
	}
	return r, nil
}

// NewReplica makes what a server of a list knows of all runs: nothing, or, with a data directory, what it knew before.
// owner names the server and its list. The caller closes it after the server.
func NewReplica(dir, owner string, o journal.Options) (*journal.Replica, error) {
	if dir == "" {
		return journal.NewReplica(fold), nil
	}
	return journal.OpenReplica(dir, owner, o, fold)
}

// fold returns a run's state after its events.
func fold(s journal.Run) ([]byte, error) {
	r, err := restore(s)
	switch {
	case err != nil:
		return nil, err
	case r.broken != nil:
		return nil, r.broken
	}
	return r.machine.Snapshot(), nil
}

// replay applies an event without its effects, which were executed long ago.
func replay(m *rendezvous.Machine, id string, ev rendezvous.Event) (broken *rendezvous.Error, stack []byte) {
	defer func() {
		if v := recover(); v != nil {
			broken, stack = brokenRun(id, v), debug.Stack()
		}
	}()
	m.Apply(ev)
	return nil, nil
}

// Runs returns how many runs were found.
func (d *Data) Runs() int { return len(d.runs) }

// brokenRun is the error that a run answers after its machine has panicked.
func brokenRun(id string, what any) *rendezvous.Error {
	return rendezvous.Errorf(rendezvous.CodeInternal,
		"run %q is broken by a defect of Rallypoint (%v); other runs continue; use another --rdzv-id, and report what the control plane has logged", id, what)
}

// stored is a run's state in the data directory. It belongs to the goroutine of groupCommit once
// the run has begun.
type stored struct {
	last     uint64            // number of the last event that is stored
	since    int               // bytes of events that were stored since the last snapshot
	size     int               // of that snapshot
	snapshot *journal.Snapshot // to be written with the next commit
}

// takeSnapshotLocked prepares the state to be written.
func (r *run) takeSnapshotLocked() {
	s := &r.stored
	s.snapshot = &journal.Snapshot{ID: r.id, Through: s.last, State: r.machine.Snapshot()}
	s.since, s.size = 0, len(s.snapshot.State)
}

// encode is how an event is stored.
func encode(ev rendezvous.Event) ([]byte, *rendezvous.Error) {
	b, err := rendezvous.EncodeEvent(ev)
	if err != nil {
		return nil, rendezvous.Errorf(rendezvous.CodeOf(err), "%v", err)
	}
	return b, nil
}

// restoreLocked continues runs as they were found: their nodes have one lease to come back, and all timers
// restart. alone tells that there may be rounds of which nobody knows.
func (s *Server) restoreLocked(runs []storedRun, alone bool) {
	for _, found := range runs {
		r := newRun(s, found.ID, found.Number)
		r.used = true
		s.runs[found.ID] = r
		s.runSeq = max(s.runSeq, found.Number)
		if s.cfg.AwaitTrace != nil {
			s.cfg.AwaitTrace()
		}
		r.mu.Lock()
		r.stored.last = found.seq
		if found.broken != nil {
			r.stored.snapshot = nil // the present file may show the fault
			r.failLocked(found.broken, found.stack)
			r.unlock()
			continue
		}
		r.traceRestored(found)
		r.machine = found.machine
		r.machine.Limit(s.cfg.Quota.limits())
		r.accountLocked()
		if r.stored.snapshot = nil; s.cfg.Peers == nil {
			r.takeSnapshotLocked()
		}
		r.stats.census, r.stats.round = r.machine.Census(), r.machine.Round()
		if r.stats.census.Phase.Forming() {
			r.stats.forming = s.clock.Now()
		}
		for _, t := range r.machine.Timers() {
			r.setTimer(t.Timer, t.After)
		}
		r.submitLocked(rendezvous.Recovered{Generation: rand.Text(), Alone: alone}, nil)
		r.unlock()
	}
}
