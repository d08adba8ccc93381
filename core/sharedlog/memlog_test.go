package sharedlog

import (
	"context"
	"errors"
	"sync"
	"time"

	"rallypoint/core/rendezvous"
)

// memory is a log in memory that any number of nodes share, with every fault
// that a log may have.
type memory struct {
	mu       sync.Mutex
	entries  []Entry
	last     uint64
	snapshot Snapshot
	beats    map[rendezvous.SessionID]uint64
	gone     map[rendezvous.SessionID]bool
	changed  chan struct{} // closed and made again by each change
	down     error
	doubtful int // so many of the next appends get in, and fail
	// mishap tells what becomes of an append: how many of its entries get in now, after
	// which time all get in (again), 0 for never, and whether it fails; nil: all goes well.
	mishap  func(entries int) (now int, later time.Duration, fails bool)
	unshown int // so many of the next heartbeats do not get through
	gap     uint64
	info    Info
}

func newMemory() *memory {
	return &memory{
		beats: map[rendezvous.SessionID]uint64{}, gone: map[rendezvous.SessionID]bool{}, changed: make(chan struct{}), gap: 3,
		info: Info{Generation: "g1", SeenAddr: "10.0.0.7", ServerAddr: "10.0.0.1"},
	}
}

func (m *memory) change() {
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *memory) setDown(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down = err
	m.change()
}

// memoryLog is one node's Log of a memory.
type memoryLog struct {
	m       *memory
	mu      sync.Mutex
	session rendezvous.SessionID
	thaw    chan struct{} // not nil: the process is stopped until it is closed
	mute    bool          // nothing of what it appends gets in
}

func (l *memoryLog) setMute(mute bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mute = mute
}

// frozen waits while the process is stopped.
func (l *memoryLog) frozen(ctx context.Context) {
	l.mu.Lock()
	thaw := l.thaw
	l.mu.Unlock()
	if thaw != nil {
		select {
		case <-thaw:
		case <-ctx.Done():
		}
	}
}

// freeze stops the node's I/O as SIGSTOP would.
func (l *memoryLog) freeze() (thaw func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := make(chan struct{})
	l.thaw = c
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.thaw = nil
		close(c)
	}
}

// kill makes the node vanish without a word: nothing of it gets through.
func (l *memoryLog) kill() {
	l.freeze()
	l.mu.Lock()
	session := l.session
	l.mu.Unlock()
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	l.m.gone[session] = true
}

func (l *memoryLog) Open(ctx context.Context) (Info, error) {
	l.frozen(ctx)
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	return l.m.info, l.m.down
}

func (l *memoryLog) Append(ctx context.Context, entries [][]byte) error {
	l.frozen(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	l.mu.Lock()
	mute := l.mute
	l.mu.Unlock()
	if mute {
		return errors.New("the disk is full")
	}
	m := l.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down != nil {
		return m.down
	}
	now, later, fails := len(entries), time.Duration(0), false
	if m.mishap != nil {
		now, later, fails = m.mishap(len(entries))
	}
	if m.doubtful > 0 {
		m.doubtful--
		fails = true
	}
	m.add(entries[:now])
	if later > 0 {
		time.AfterFunc(later, func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.add(entries)
		})
	}
	if fails {
		return errors.New("no answer to the append")
	}
	return nil
}

// add puts entries into the log; mu is held.
func (m *memory) add(entries [][]byte) {
	for _, data := range entries {
		m.last += m.gap
		m.entries = append(m.entries, Entry{m.last, data})
	}
	m.change()
}

func (l *memoryLog) Next(ctx context.Context, after uint64) (Batch, error) {
	for {
		l.frozen(ctx)
		m := l.m
		m.mu.Lock()
		changed := m.changed
		b := Batch{Snapshot: m.snapshot.Index}
		for _, e := range m.entries {
			if e.Index > after {
				b.Entries = append(b.Entries, e)
			}
		}
		down := m.down
		first := m.snapshot.Index
		if len(m.entries) > 0 {
			first = m.entries[0].Index - m.gap
		}
		m.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return Batch{}, ctx.Err()
		case down != nil:
			return Batch{}, down
		case after < first:
			return Batch{}, ErrCompacted
		case len(b.Entries) > 0:
			return b, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

func (l *memoryLog) Latest(context.Context) (Snapshot, error) {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	return l.m.snapshot, l.m.down
}

func (l *memoryLog) Snapshot(_ context.Context, s Snapshot) error {
	m := l.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.Index <= m.snapshot.Index {
		return nil
	}
	m.snapshot = s
	for len(m.entries) > 0 && m.entries[0].Index <= s.Index {
		m.entries = m.entries[1:]
	}
	m.change()
	return m.down
}

func (l *memoryLog) Heartbeat(ctx context.Context, session rendezvous.SessionID, _ time.Duration) error {
	l.frozen(ctx)
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if l.m.down != nil {
		return l.m.down
	}
	if l.m.unshown > 0 {
		l.m.unshown--
		return rendezvous.Errorf(rendezvous.CodeConnection, "no sign of life got through")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.session != "" && l.session != session {
		l.m.gone[l.session] = true
	}
	l.session = session
	delete(l.m.gone, session)
	l.m.beats[session]++
	return nil
}

func (l *memoryLog) ReadHeartbeats(ctx context.Context, sessions []rendezvous.SessionID) ([]Liveness, error) {
	l.frozen(ctx)
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	list := make([]Liveness, len(sessions))
	for i, s := range sessions {
		list[i] = Liveness{Heartbeats: l.m.beats[s]}
		if l.m.gone[s] {
			list[i].State = LivenessDisconnected
		}
	}
	return list, l.m.down
}

func (l *memoryLog) Close(context.Context) error {
	l.mu.Lock()
	session := l.session
	l.mu.Unlock()
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if session != "" {
		l.m.gone[session] = true
	}
	return nil
}
