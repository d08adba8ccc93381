package journal

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"rallypoint/core/election/raft"
)

// leastFolded is how many bytes of events a run has at least before they are folded into its snapshot. A run of
// a larger state has as many as that.
const leastFolded = 256 << 10

// Replica is what one of several servers that stand in for each other knows of all runs: what the entries of their
// log, in order, come to. It is in memory, and may be in a data directory, too, with the log. Its methods are safe for
// concurrent use.
type Replica struct {
	fold    func(Run) ([]byte, error)
	journal *Journal // nil: in memory only
	owner   string
	memory  Memory

	mu    sync.Mutex
	runs  map[uint64]*replicated
	dirty bool
	runsW []WriteBatch // that the journal does not have yet,
	raftW raftBatch    // nor this
}

type replicated struct {
	Run
	since int // bytes of the events
}

// Memory is what a data directory had of raft when it was opened.
type Memory struct {
	Record  []byte // nil: nothing
	Entries [][]byte
	Copied  bool // this is a copy of the file, and others may have heard more of the server since it was made
}

// NewReplica makes the replica of a server that knows nothing, and remembers nothing once it ends. fold returns a
// run's state after its events.
func NewReplica(fold func(Run) ([]byte, error)) *Replica {
	return &Replica{fold: fold, runs: map[uint64]*replicated{}}
}

// OpenReplica opens a data directory as Open does. owner names the server and its list: the directory serves that one
// only. Close follows.
func OpenReplica(dir, owner string, o Options, fold func(Run) ([]byte, error)) (*Replica, error) {
	j, err := Open(dir, o)
	if err != nil {
		return nil, err
	}
	r := NewReplica(fold)
	r.journal = j
	if err := r.load(owner); err != nil {
		_ = j.Close()
		return nil, err
	}
	return r, nil
}

func (r *Replica) load(owner string) error {
	runs, err := r.journal.Runs()
	if err != nil {
		return err
	}
	was, record, entries, err := r.journal.raftLog()
	if err != nil {
		return err
	}
	file, err := r.journal.identity()
	if err != nil {
		return err
	}
	name, at, _ := strings.Cut(was, "\n")
	switch {
	case was == "" && len(runs) > 0:
		return fmt.Errorf("data file %s was written by a server without --peers: give another --data-dir", r.journal.path)
	case was != "" && name != owner:
		return fmt.Errorf("data file %s was written by the server %s, and this is %s: give each server of --peers a --data-dir of its own, and a new one when the list or --election-timeout changes", r.journal.path, name, owner)
	}
	r.memory = Memory{record, entries, was != "" && at != file}
	for _, run := range runs {
		stored := &replicated{Run: run}
		for _, ev := range run.Events {
			stored.since += len(ev)
		}
		r.runs[run.Number] = stored
	}
	if r.owner = owner + "\n" + file; was != "" {
		return nil // of a copy, until Own
	}
	return r.journal.write(nil, raftBatch{owner: r.owner})
}

// Own makes a copy the file of this server, whose record names another voter.
func (r *Replica) Own(record []byte) error {
	return r.journal.write(nil, raftBatch{owner: r.owner, record: record})
}

// Memory returns, once, what the data directory had when it was opened.
func (r *Replica) Memory() Memory {
	m := r.memory
	r.memory = Memory{}
	return m
}

// Durable implements raft.Storage.
func (r *Replica) Durable() bool { return r.journal != nil }

// Save implements raft.Storage.
func (r *Replica) Save(c raft.Change) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.Replace {
		clear(r.runs)
		r.runsW, r.raftW.forgetRuns = nil, true
	}
	for _, entry := range append([][]byte{c.Snapshot}, c.Apply...) {
		if len(entry) == 0 {
			continue
		}
		changes, err := decode(entry)
		for i := 0; err == nil && i < len(changes); i++ {
			err = r.apply(changes[i])
		}
		if err != nil {
			return err
		}
	}
	r.log(c)
	return nil
}

// log notes what the journal has to be told of raft.
func (r *Replica) log(c raft.Change) {
	if r.journal == nil {
		return
	}
	r.dirty = true
	w := &r.raftW
	if c.Replace && c.Record == nil { // the state without the record would be another one's
		w.forget, w.record, c.Reset = true, nil, true
	}
	if c.Reset {
		w.reset, w.first, w.entries, w.keep = true, 0, nil, 0
	}
	if c.First > 0 {
		if have := c.First - w.first; w.first > 0 && c.First >= w.first && have <= uint64(len(w.entries)) {
			w.entries = append(w.entries[:have], c.Entries...)
		} else { // all that waits is replaced, or nothing waits
			w.first, w.entries = c.First, c.Entries
		}
	}
	if c.Record != nil {
		w.forget, w.record = false, c.Record
	}
	w.keep = max(w.keep, c.Keep)
}

func (r *Replica) apply(c WriteBatch) error {
	if s := c.Snapshot; s != nil {
		r.runs[c.Run] = &replicated{Run: Run{Number: c.Run, ID: s.ID, Snapshot: s.State, Through: s.Through}}
	}
	run := r.runs[c.Run]
	if c.Forget {
		delete(r.runs, c.Run)
		r.write(c)
		return nil
	}
	switch {
	case len(c.Events) == 0:
		r.write(c)
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
	r.write(c)
	if run.since > max(leastFolded, len(run.Snapshot)) {
		run.since = 0
		if state, err := r.fold(run.Run); err == nil { // else the run is broken, and its events tell by what
			run.Snapshot, run.Through, run.Events = state, run.Through+uint64(len(run.Events)), nil
			r.write(WriteBatch{Run: c.Run, Snapshot: &Snapshot{ID: run.ID, Through: run.Through, State: state}})
		}
	}
	return nil
}

func (r *Replica) write(c WriteBatch) {
	if r.journal != nil {
		r.runsW = append(r.runsW, c)
	}
}

// Flush implements raft.Storage.
func (r *Replica) Flush() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.dirty {
		return nil
	}
	if err := r.journal.write(r.runsW, r.raftW); err != nil {
		return err
	}
	r.dirty, r.runsW, r.raftW = false, nil, raftBatch{}
	return nil
}

// Close writes what was not written yet, and lets go of the data directory.
func (r *Replica) Close() error {
	if r.journal == nil {
		return nil
	}
	return cmp.Or(r.Flush(), r.journal.Close())
}

// Path returns the name of the data file; "" if there is none.
func (r *Replica) Path() string {
	if r.journal == nil {
		return ""
	}
	return r.journal.path
}

// Size returns the size of the data file in bytes.
func (r *Replica) Size() int64 {
	if r.journal == nil {
		return 0
	}
	return r.journal.Size()
}

// Copy writes the data file as it is at one moment to another one. A server that is started on the copy votes
// under another name.
func (r *Replica) Copy(path string) error { return r.journal.Copy(path) }

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
