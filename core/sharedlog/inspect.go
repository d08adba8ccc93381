package sharedlog

import (
	"slices"

	"rallypoint/core/rendezvous"
	"rallypoint/core/training"
)

// Record is a log's content about one run at one moment, for a process that looks at the run
// without being part of it.
type Record struct {
	RunID      string
	Generation string
	Snapshot   Snapshot                      // zero: there is none
	Entries    []Entry                       // after it, in order
	Living     map[rendezvous.SessionID]bool // those that show a heartbeat

	// Reports are of those among them that say how far their workers are, at most a quarter of
	// a lease old; nil where a log carries none.
	Reports map[rendezvous.SessionID]*training.Report
}

// Last is the index of the last entry, even if a snapshot has replaced it; 0 if there is none.
func (r Record) Last() uint64 {
	if n := len(r.Entries); n > 0 {
		return max(r.Snapshot.Index, r.Entries[n-1].Index)
	}
	return r.Snapshot.Index
}

// Machine applies the record, as each of the run's nodes does. An error is final:
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

// Orphans returns the sessions of a run that have neither said goodbye nor were
// declared lost, in their order, without the one given. While there are any, the run is
// not over, although none of them may show a heartbeat: they may be cut off. Nor is it
// while members of its last round are lost by their silence alone; over tells.
func (r Record) Orphans(but rendezvous.SessionID) (sessions []rendezvous.SessionID, over bool, err error) {
	m, err := r.Machine()
	if err != nil {
		return nil, true, err
	}
	sessions = slices.DeleteFunc(m.AppendAttached(nil), func(s rendezvous.SessionID) bool { return s == but })
	slices.Sort(sessions)
	return sessions, len(sessions) == 0 && !m.Awaits(), nil
}

// Ended returns what a log has to begin with that takes the place of this one, whose run is
// over: the run stays closed for the time given there, of which some may have passed. rests
// reports that the log has done nothing but keep that. It is false if the run may begin again.
func (r Record) Ended() (ended rendezvous.Ended, rests, ok bool) {
	m, err := r.Machine()
	if err != nil {
		return ended, false, false
	}
	ended, ok = m.Kept()
	if !ok || m.Round() > 0 || len(r.Entries) == 0 {
		return ended, false, ok
	}
	ev, err := rendezvous.DecodeEvent(r.Entries[0].Data)
	if first, is := ev.(rendezvous.Ended); err == nil && is {
		ended.Machine, ended.Uptime = first.Machine, first.Uptime
		return ended, true, true
	}
	return ended, false, true
}

// DeclareLost returns the entries that take sessions for lost, as each node of a run
// appends them when a lease has run out. One of them that lives says hello again.
func DeclareLost(sessions []rendezvous.SessionID) ([][]byte, error) {
	entries := make([][]byte, len(sessions))
	for i, session := range sessions {
		data, err := rendezvous.EncodeEvent(rendezvous.LeaseExpired{Session: session})
		if err != nil {
			return nil, err
		}
		entries[i] = data
	}
	return entries, nil
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
