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

func (ml *memoryLog) setMute(mute bool) {
	ml.mu.Lock()
	defer ml.mu.Unlock()
	ml.mute = mute
}

// frozen waits while the process is stopped.
func (ml *memoryLog) frozen(ctx context.Context) {
	ml.mu.Lock()
	thaw := ml.thaw
	ml.mu.Unlock()
	if thaw != nil {
		select {
		case <-thaw:
		case <-ctx.Done():
		}
	}
}

// freeze stops the node's I/O as SIGSTOP would.
func (ml *memoryLog) freeze() (thaw func()) {
	ml.mu.Lock()
	defer ml.mu.Unlock()
	c := make(chan struct{})
	ml.thaw = c
	return func() {
		ml.mu.Lock()
		defer ml.mu.Unlock()
		ml.thaw = nil
		close(c)
	}
}

// kill makes the node vanish without a word: nothing of it gets through.
func (ml *memoryLog) kill() {
	ml.freeze()
	ml.mu.Lock()
	session := ml.session
	ml.mu.Unlock()
	ml.m.mu.Lock()
	defer ml.m.mu.Unlock()
	ml.m.gone[session] = true
}

func (ml *memoryLog) Open(ctx context.Context) (Info, error) {
	ml.frozen(ctx)
	ml.m.mu.Lock()
	defer ml.m.mu.Unlock()
	return ml.m.info, ml.m.down
}

func (ml *memoryLog) Append(ctx context.Context, entries [][]byte) error {
	ml.frozen(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	ml.mu.Lock()
	mute := ml.mute
	ml.mu.Unlock()
	if mute {
		return errors.New("the disk is full")
	}
	m := ml.m
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
	m.addLocked(entries[:now])
	if later > 0 {
		time.AfterFunc(later, func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.addLocked(entries)
		})
	}
	if fails {
		return errors.New("no answer to the append")
	}
	return nil
}

// addLocked puts entries into the log.
func (m *memory) addLocked(entries [][]byte) {
	for _, data := range entries {
		m.last += m.gap
		m.entries = append(m.entries, Entry{m.last, data})
	}
	m.change()
}

func (ml *memoryLog) Next(ctx context.Context, after uint64) (Batch, error) {
	for {
		ml.frozen(ctx)
		m := ml.m
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

func (ml *memoryLog) Latest(context.Context) (Snapshot, error) {
	ml.m.mu.Lock()
	defer ml.m.mu.Unlock()
	return ml.m.snapshot, ml.m.down
}

func (ml *memoryLog) Snapshot(_ context.Context, s Snapshot) error {
	m := ml.m
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

func (ml *memoryLog) Heartbeat(ctx context.Context, session rendezvous.SessionID, _ time.Duration) error {
	ml.frozen(ctx)
	ml.m.mu.Lock()
	defer ml.m.mu.Unlock()
	if ml.m.down != nil {
		return ml.m.down
	}
	if ml.m.unshown > 0 {
		ml.m.unshown--
		return rendezvous.Errorf(rendezvous.CodeConnection, "no sign of life got through")
	}
	ml.mu.Lock()
	defer ml.mu.Unlock()
	if ml.session != "" && ml.session != session {
		ml.m.gone[ml.session] = true
	}
	ml.session = session
	delete(ml.m.gone, session)
	ml.m.beats[session]++
	return nil
}

func (ml *memoryLog) ReadHeartbeats(ctx context.Context, sessions []rendezvous.SessionID) ([]Liveness, error) {
	ml.frozen(ctx)
	ml.m.mu.Lock()
	defer ml.m.mu.Unlock()
	list := make([]Liveness, len(sessions))
	for i, s := range sessions {
		list[i] = Liveness{Heartbeats: ml.m.beats[s]}
		if ml.m.gone[s] {
			list[i].State = LivenessDisconnected
		}
	}
	return list, ml.m.down
}

func (ml *memoryLog) Close(context.Context) error {
	ml.mu.Lock()
	session := ml.session
	ml.mu.Unlock()
	ml.m.mu.Lock()
	defer ml.m.mu.Unlock()
	if session != "" {
		ml.m.gone[session] = true
	}
	return nil
}
