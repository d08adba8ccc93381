package sharedlog

import (
	"context"
	"crypto/rand"
	"sync"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/wake"
)

// NewLocalLog returns the log of a run whose only node is this process. It does no I/O, and
// ends with the node.
func NewLocalLog() Log { return &localLog{changed: wake.New()} }

type localLog struct {
	changed wake.Signal // an entry was appended

	mu       sync.Mutex
	entries  []Entry // after the snapshot
	snapshot Snapshot
}

// Open implements Log.
func (*localLog) Open(context.Context) (Info, error) { return Info{Generation: rand.Text()}, nil }

// Append implements Log.
func (l *localLog) Append(_ context.Context, entries [][]byte) error {
	l.mu.Lock()
	for _, data := range entries {
		l.entries = append(l.entries, Entry{l.lastLocked() + 1, data})
	}
	l.mu.Unlock()
	l.changed.Set()
	return nil
}

// lastLocked is the index of the last entry; entries are numbered without gaps.
func (l *localLog) lastLocked() uint64 { return l.snapshot.Index + uint64(len(l.entries)) }

// Next implements Log.
func (l *localLog) Next(ctx context.Context, after uint64) (Batch, error) {
	for {
		l.mu.Lock()
		last, snapshot := l.lastLocked(), l.snapshot.Index
		var entries []Entry
		if after >= snapshot && after < last {
			entries = l.entries[after-snapshot:]
		}
		l.mu.Unlock()
		switch {
		case after < snapshot:
			return Batch{}, ErrCompacted
		case len(entries) > 0:
			return Batch{Entries: entries, Snapshot: snapshot}, nil
		}
		select {
		case <-l.changed:
		case <-ctx.Done():
			return Batch{}, ctx.Err()
		}
	}
}

// Latest implements Log.
func (l *localLog) Latest(context.Context) (Snapshot, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.snapshot, nil
}

// Snapshot implements Log.
func (l *localLog) Snapshot(_ context.Context, s Snapshot) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.Index > l.snapshot.Index {
		l.entries = append([]Entry(nil), l.entries[s.Index-l.snapshot.Index:]...)
		l.snapshot = s
	}
	return nil
}

// Heartbeat implements Log. Nobody else looks for it.
func (*localLog) Heartbeat(context.Context, rendezvous.SessionID, time.Duration) error { return nil }

// ReadHeartbeats implements Log.
func (*localLog) ReadHeartbeats(_ context.Context, sessions []rendezvous.SessionID) ([]Liveness, error) {
	return make([]Liveness, len(sessions)), nil
}

// Close implements Log.
func (*localLog) Close(context.Context) error { return nil }
