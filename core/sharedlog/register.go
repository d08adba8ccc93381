package sharedlog

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/internal/backoff"
	"rallypoint/internal/wake"
)

// CASRegister is one value, shared by all nodes of a run, that can be compared and
// set (docs/spec/rendezvous.md R80). A token stands for what was stored when it
// was handed out; nil stands for nothing. Tokens are opaque, one that the backend
// does not know counts as old.
//
// Methods may block and return soon after ctx has ended; they are called by
// several goroutines at once. What is handed in and out is not changed any more.
type CASRegister interface {
	// GetState returns what is stored, and its token; nil if nothing is.
	GetState(ctx context.Context) (state, token []byte, err error)

	// SetState stores state if token stands for what is stored, and if it is nil,
	// if nothing is. It returns what is stored afterwards, its token, and whether
	// that is because of this call. After an error that is unknown.
	SetState(ctx context.Context, state, token []byte) (now, nowToken []byte, ok bool, err error)
}

// Values of Info.
const (
	registerSnapshotEntries = 128
	registerSnapshotBytes   = 128 << 10
	registerMaxEntry        = 1 << 20
	registerLookEvery       = 500 * time.Millisecond
)

// How a register is polled, and how long one waits after a lost race. The time between two
// looks begins at pollMin with each change (for each pollCrowd nodes, if they are more) and
// grows by half with each look that finds none.
const (
	pollMin      = 10 * time.Millisecond
	pollMax      = 500 * time.Millisecond
	pollShare    = 8  // a look takes at most this part of the time
	pollCrowd    = 16 // so many nodes look as often as one, more of them less often each
	raceFirst    = 4  // window of the first pause, in units of what a look takes
	raceMost     = 64
	raceMin      = 100 * time.Microsecond // least unit
	fewestBeats  = 3                      // beats in a lease that spare an explicit one
	lostRaceMost = 10000
)

// registerLog is the Log in a CASRegister: every write replaces the whole of a bounded state
// (registerState), which holds a snapshot, the entries around and behind it, and a
// counter for each node.
type registerLog struct {
	backend CASRegister
	runID   string

	turn chan struct{} // held, by filling it, by the goroutine that writes

	mu        sync.Mutex
	state     *registerState // as last seen; nil: nothing was
	token     []byte
	stamp     uint64 // counts the states seen
	roundTrip recent
	session   rendezvous.SessionID
	last      rendezvous.SessionID // to be taken back
	wrote     time.Time
	news      wake.Signal
	self      string // names this node's writes
	writes    uint64
	every     time.Duration // present pause between two looks
}

// NewRegisterLog makes the log of a run in a register.
func NewRegisterLog(r CASRegister, runID string) Log {
	return &registerLog{backend: r, runID: runID, turn: make(chan struct{}, 1), news: wake.New(), self: rand.Text()[:10], every: pollMin}
}

// Open implements Log.
func (l *registerLog) Open(ctx context.Context) (Info, error) {
	pause := newBackoff()
	for {
		err := l.look(ctx)
		if err == nil {
			err = l.update(ctx, func(*registerState) bool { return false })
		}
		switch own := (*rendezvous.Error)(nil); {
		case err == nil:
			l.mu.Lock()
			defer l.mu.Unlock()
			return Info{
				Generation: l.state.generation, SnapshotEntries: registerSnapshotEntries, SnapshotBytes: registerSnapshotBytes,
				MaxEntry: registerMaxEntry, HeartbeatReadInterval: registerLookEvery,
			}, nil
		case ctx.Err() != nil || errors.As(err, &own) && !own.Code.Retryable():
			return Info{}, err
		}
		pause.Wait(ctx)
		if ctx.Err() != nil {
			return Info{}, err
		}
	}
}

// look reads the register.
func (l *registerLog) look(ctx context.Context) error {
	l.mu.Lock()
	stamp := l.stamp
	l.mu.Unlock()
	began := time.Now()
	state, token, err := l.backend.GetState(ctx)
	if err != nil {
		return err
	}
	return l.observe(state, token, time.Since(began), stamp)
}

// observe adopts what the backend has shown, unless a newer state was seen since
// stamp: an answer may be late.
func (l *registerLog) observe(data, token []byte, took time.Duration, stamp uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.roundTrip.add(took)
	if l.stamp != stamp {
		return nil
	}
	if data == nil {
		if l.state != nil {
			return rendezvous.Errorf(rendezvous.CodeState,
				"run %q: the backend has lost the state of the run: it was restarted or the state was deleted; start all nodes again", l.runID)
		}
		l.token = nil
		return nil
	}
	if l.state != nil && bytes.Equal(token, l.token) {
		return nil
	}
	state, err := decodeRegister(data)
	if err == nil && state.runID != l.runID {
		err = fmt.Errorf("it belongs to run %q", state.runID)
	}
	if err == nil && l.state != nil && state.generation != l.state.generation {
		err = errors.New("another run has begun in it")
	}
	if err != nil {
		return rendezvous.Errorf(rendezvous.CodeState, "run %q: the state in the backend is not this run's: %v; give each run, and each program, a place of its own",
			l.runID, err)
	}
	l.install(state, token)
	return nil
}

// install makes a state the last one seen; mu is held.
func (l *registerLog) install(state *registerState, token []byte) {
	if l.state == nil || state.last() > l.state.last() || state.snapshot.Index > l.state.snapshot.Index {
		l.every = max(pollMin, l.every/2)
		l.news.Set()
	}
	l.state, l.token = state, token
	l.stamp++
}

// update changes the state by change, again and again until that is stored; it
// shows a heartbeat at the same time. change may be called often and says
// whether there is anything to store.
func (l *registerLog) update(ctx context.Context, change func(*registerState) bool) error {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-l.turn }()
	window := raceFirst
	for range lostRaceMost {
		if err := store.ContextError(ctx); err != nil {
			return err
		}
		done, err := l.tryCAS(ctx, change)
		if done || err != nil {
			return err
		}
		// With as many nodes that want to write as there are units in the window,
		// about one tries in each unit, and mostly gets through.
		l.mu.Lock()
		unit := max(l.roundTrip.least(), raceMin)
		l.mu.Unlock()
		backoff.Sleep(ctx, backoff.Below(unit*time.Duration(window)))
		window = min(2*window, raceMost)
	}
	return fmt.Errorf("%d writes in a row were lost to other nodes", lostRaceMost)
}

// tryCAS makes one attempt to store a change; false if another node was quicker.
func (l *registerLog) tryCAS(ctx context.Context, change func(*registerState) bool) (done bool, err error) {
	l.mu.Lock()
	base, token, stamp := l.state, l.token, l.stamp
	next := base.copy()
	if base == nil {
		next = &registerState{runID: l.runID, generation: rand.Text()}
	}
	if !change(next) && base != nil {
		l.mu.Unlock()
		return true, nil
	}
	l.writes++
	next.nonce = fmt.Sprintf("%s/%d", l.self, l.writes)
	next.beat(l.session, l.last)
	l.mu.Unlock()

	data := next.encode()
	if len(data) > maxRegister {
		return false, rendezvous.Errorf(rendezvous.CodeTooLarge, "run %q: the state would have %d bytes, at most %d are allowed", l.runID, len(data), maxRegister)
	}
	began := time.Now()
	now, nowToken, ok, err := l.backend.SetState(ctx, data, token)
	took := time.Since(began)
	if err != nil {
		return false, err
	}
	if ok || now != nil && bytes.Equal(now, data) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.roundTrip.add(took)
		l.wrote, l.last = time.Now(), ""
		l.install(next, nowToken)
		return true, nil
	}
	if now == nil {
		return false, errors.New("the backend stored nothing, and has nothing")
	}
	if err := l.observe(now, nowToken, took, stamp); err != nil {
		return false, err
	}
	l.mu.Lock()
	same := l.state == base
	l.mu.Unlock()
	if same { // no other node was quicker, and yet it was refused: look what is really there
		return false, l.look(ctx)
	}
	return false, nil
}

// Append implements Log.
func (l *registerLog) Append(ctx context.Context, entries [][]byte) error {
	err := l.update(ctx, func(s *registerState) bool {
		s.entries = append(s.entries, entries...)
		return true
	})
	l.mu.Lock()
	l.every = pollMin // answers are soon to come
	l.mu.Unlock()
	return err
}

// Next implements Log.
func (l *registerLog) Next(ctx context.Context, after uint64) (Batch, error) {
	for {
		if err := ctx.Err(); err != nil {
			return Batch{}, err
		}
		l.mu.Lock()
		b, err := l.state.after(after)
		pause := max(l.every, pollShare*l.roundTrip.mean(), pollMin*time.Duration(len(l.state.beats)/pollCrowd))
		l.mu.Unlock()
		if err != nil || len(b.Entries) > 0 {
			return b, err
		}
		t := time.NewTimer(backoff.Jitter(pause))
		select {
		case <-l.news: // a write of this node has shown something
			t.Stop()
			continue
		case <-ctx.Done():
			t.Stop()
			continue
		case <-t.C:
		}
		l.mu.Lock()
		l.every = min(l.every+l.every/2, pollMax)
		l.mu.Unlock()
		if err := l.look(ctx); err != nil {
			return Batch{}, err
		}
	}
}

// Latest implements Log.
func (l *registerLog) Latest(context.Context) (Snapshot, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.snapshot, nil
}

// Snapshot implements Log.
func (l *registerLog) Snapshot(ctx context.Context, s Snapshot) error {
	return l.update(ctx, func(state *registerState) bool { return state.compact(s) })
}

// Heartbeat implements Log. Any write is a beat, so that a busy node needs no other.
func (l *registerLog) Heartbeat(ctx context.Context, session rendezvous.SessionID, lease time.Duration) error {
	l.mu.Lock()
	if session != l.session { // its first sign comes with its hello, in one write
		l.last, l.session, l.wrote = l.session, session, time.Now()
		l.mu.Unlock()
		return nil
	}
	if time.Since(l.wrote) < lease/beatsPerLease/fewestBeats {
		l.mu.Unlock()
		return nil
	}
	l.mu.Unlock()
	return l.update(ctx, func(*registerState) bool { return true })
}

// ReadHeartbeats implements Log.
func (l *registerLog) ReadHeartbeats(_ context.Context, sessions []rendezvous.SessionID) ([]Liveness, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	signs := make([]Liveness, len(sessions))
	for i, session := range sessions {
		signs[i] = l.state.sign(session)
	}
	return signs, nil
}

// Close implements Log.
func (l *registerLog) Close(ctx context.Context) error {
	l.mu.Lock()
	session, known := l.session, l.state != nil
	l.session, l.last = "", session
	l.mu.Unlock()
	if session == "" || !known {
		return nil
	}
	return l.update(ctx, func(*registerState) bool { return true })
}

// recent is what the last few operations took.
type recent struct {
	took [8]time.Duration
	n    int
}

func (r *recent) add(d time.Duration) {
	r.took[r.n%len(r.took)] = d
	r.n++
}

// mean is what an operation has taken; 0 without any.
func (r *recent) mean() time.Duration {
	sum := time.Duration(0)
	for _, d := range r.took {
		sum += d
	}
	return sum / time.Duration(max(1, min(r.n, len(r.took))))
}

// least is what an operation takes when nothing comes between: on a machine with more
// to do than it can, most of what one seems to take is waiting for a turn. 0 without
// any.
func (r *recent) least() time.Duration {
	if r.n == 0 {
		return 0
	}
	return slices.Min(r.took[:min(r.n, len(r.took))])
}
