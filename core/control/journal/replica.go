package journal

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"rallypoint/core/election/raft"
)

// leastCompacted is how many bytes of events a run has at least before they are folded into its snapshot. A run of
// a larger state has as many as that.
const leastCompacted = 256 << 10

// Replica is what one of several servers that stand in for each other knows of all runs: what the entries of their
// log, in order, come to. It is in memory. Its methods are safe for concurrent use.
type Replica struct {
	fold func(Run) ([]byte, error)
	mu   sync.Mutex
	runs map[uint64]*replicated
}

type replicated struct {
	Run
	since int // bytes of the events
}

// NewReplica makes the replica of a server that knows nothing. fold returns a run's state after its events.
func NewReplica(fold func(Run) ([]byte, error)) *Replica {
	return &Replica{fold: fold, runs: map[uint64]*replicated{}}
}

// Save implements raft.Storage.
func (r *Replica) Save(c raft.Change) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.Replace {
		clear(r.runs)
	}
	for _, entry := range append([][]byte{c.Snapshot}, c.Apply...) {
		if len(entry) == 0 {
			continue
		}
		changes, err := decode(entry)
		for i := 0; err == nil && i < len(changes); i++ {
			err = r.apply(&changes[i])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *Replica) apply(c *WriteBatch) error {
	if s := c.Snapshot; s != nil {
		r.runs[c.Run] = &replicated{Run: Run{Number: c.Run, ID: s.ID, Snapshot: s.State, Through: s.Through}}
	}
	run := r.runs[c.Run]
	switch {
	case c.Forget:
		delete(r.runs, c.Run)
		return nil
	case len(c.Events) == 0:
		return nil
	case run == nil:
		return fmt.Errorf("an event belongs to no run: %d", c.Run)
	case c.First != run.Through+uint64(len(run.Events))+1:
		return fmt.Errorf("event %d of run %q comes after event %d", c.First, run.ID, run.Through+uint64(len(run.Events)))
	}
	run.Events = append(run.Events, c.Events...)
	for _, ev := range c.Events {
		run.since += len(ev)
	}
	if run.since > max(leastCompacted, len(run.Snapshot)) {
		run.since = 0
		if state, err := r.fold(run.Run); err == nil { // else the run is broken, and its events tell by what
			run.Snapshot, run.Through, run.Events = state, run.Through+uint64(len(run.Events)), nil
		}
	}
	return nil
}

// Snapshot implements raft.Storage.
func (r *Replica) Snapshot() ([]byte, error) {
	var all []WriteBatch
	for _, run := range r.Runs() {
		s := Snapshot{ID: run.ID, Through: run.Through, State: run.Snapshot}
		all = append(all, WriteBatch{Run: run.Number, Snapshot: &s, First: run.Through + 1, Events: run.Events})
	}
	return encode(all), nil
}

// Runs returns all runs, in the order of their numbers. The caller does not change them.
func (r *Replica) Runs() (runs []Run) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, number := range slices.Sorted(maps.Keys(r.runs)) {
		run := r.runs[number].Run
		run.Events = slices.Clip(run.Events)
		runs = append(runs, run)
	}
	return runs
}
