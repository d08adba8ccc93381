package sharedlog

import "rallypoint/core/rendezvous"

// Record is what a log holds of one run at one moment, for who looks at the run
// without being part of it.
type Record struct {
	RunID      string
	Generation string
	Snapshot   Snapshot                      // zero: there is none
	Entries    []Entry                       // behind it, in order
	Living     map[rendezvous.SessionID]bool // those that show a sign of life
}

// Machine folds the record, as each of the run's nodes does. An error is final:
// ErrState, another release wrote that.
func (r Record) Machine() (*rendezvous.Machine, error) {
	m, err := r.start()
	if err != nil {
		return nil, err
	}
	for _, e := range r.Entries {
		if e.Index <= r.Snapshot.Index {
			continue
		}
		ev, err := rendezvous.DecodeEvent(e.Data)
		if err != nil {
			return nil, unreadable(r.RunID, e.Index, err)
		}
		m.Apply(ev)
	}
	return m, nil
}

// start returns the machine before the first entry.
func (r Record) start() (*rendezvous.Machine, error) {
	if r.Snapshot.State == nil {
		return newMachine(r.RunID, r.Generation), nil
	}
	m, err := rendezvous.Restore(r.Snapshot.State)
	if err != nil {
		return nil, rendezvous.Errorf(rendezvous.CodeState, "run %q: its snapshot cannot be read: %v; its nodes may be of another release", r.RunID, err)
	}
	return m, nil
}

func unreadable(runID string, index uint64, err error) error {
	return rendezvous.Errorf(rendezvous.CodeState, "run %q: entry %d cannot be read: %v; its nodes may be of another release", runID, index, err)
}
