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

// CASRegister is one value, shared by all nodes of a run, with compare-and-set
// (docs/spec/rendezvous.md R80). A token identifies the value that was stored when the token was
// returned; nil stands for no value. Tokens are opaque, and an unknown one counts as old.
//
// Methods may block and return soon after ctx has ended; they are called by
// several goroutines at once. Nobody changes values that were handed in or out.
type CASRegister interface {
	// GetState returns the stored value and its token; nil if there is none.
	GetState(ctx context.Context) (state, token []byte, err error)

	// SetState stores state if token identifies the stored value, or is nil and there is none. It
	// returns the value that is stored afterwards, its token, and whether this call has stored
	// it. After an error that is unknown.
	SetState(ctx context.Context, state, token []byte) (now, nowToken []byte, ok bool, err error)
}

// Unreachable is an error of a CASRegister that has itself tried for long enough to reach its
// place. A node that has not reached it once fails with it at once; afterwards the operation
// is repeated, as after other errors that may pass.
type Unreachable struct{ Err error }

func (u *Unreachable) Error() string { return u.Err.Error() }
func (u *Unreachable) Unwrap() error { return u.Err }

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
// (registerState), which holds a snapshot, the entries around and after it, and a
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
func (r *registerLog) Open(ctx context.Context) (Info, error) {
	pause := newBackoff()
	reached := false
	for {
		err := r.look(ctx)
		if err == nil {
			reached = true
			err = r.update(ctx, func(*registerState) bool { return false })
		}
		switch {
		case err == nil:
			r.mu.Lock()
			defer r.mu.Unlock()
			return Info{
				Generation: r.state.generation, SnapshotEntries: registerSnapshotEntries, SnapshotBytes: registerSnapshotBytes,
				MaxEntry: registerMaxEntry, HeartbeatReadInterval: registerLookEvery,
			}, nil
		case ctx.Err() != nil || final(err), !reached && errors.As(err, new(*Unreachable)):
			return Info{}, err
		}
		pause.Wait(ctx)
		if ctx.Err() != nil {
			return Info{}, err
		}
	}
}

// look reads the register.
func (r *registerLog) look(ctx context.Context) error {
	r.mu.Lock()
	stamp := r.stamp
	r.mu.Unlock()
	began := time.Now()
	state, token, err := r.backend.GetState(ctx)
	if err != nil {
		return err
	}
	return r.observe(state, token, time.Since(began), stamp)
}

// observe adopts the backend's answer, unless a newer state was seen since stamp, because an
// answer may be late.
func (r *registerLog) observe(data, token []byte, took time.Duration, stamp uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.roundTrip.add(took)
	if r.stamp != stamp {
		return nil
	}
	if data == nil {
		if r.state != nil {
			return rendezvous.Errorf(rendezvous.CodeState,
				"run %q: the backend has lost the state of the run: it was restarted or the state was deleted; start all nodes again", r.runID)
		}
		r.token = nil
		return nil
	}
	if r.state != nil && bytes.Equal(token, r.token) {
		return nil
	}
	state, err := decodeRegister(data)
	if err == nil && state.runID != r.runID {
		err = fmt.Errorf("it belongs to run %q", state.runID)
	}
	if err == nil && r.state != nil && state.generation != r.state.generation {
		err = errors.New("another run has begun in it")
	}
	if err != nil {
		return rendezvous.Errorf(rendezvous.CodeState, "run %q: the state in the backend is not this run's: %v; give each run, and each program, a place of its own",
			r.runID, err)
	}
	r.installLocked(state, token)
	return nil
}

// installLocked makes a state the last one seen.
func (r *registerLog) installLocked(state *registerState, token []byte) {
	if r.state == nil || state.last() > r.state.last() || state.snapshot.Index > r.state.snapshot.Index {
		r.every = max(pollMin, r.every/2)
		r.news.Set()
	}
	r.state, r.token = state, token
	r.stamp++
}

// update changes the state by change, and tries again until that is stored; it shows a
// heartbeat at the same time. change may be called several times. It reports whether
// there is anything to store.
func (r *registerLog) update(ctx context.Context, change func(*registerState) bool) error {
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-r.turn }()
	window := raceFirst
	for range lostRaceMost {
		if err := store.ContextError(ctx); err != nil {
			return err
		}
		done, err := r.tryCAS(ctx, change)
		if done || err != nil {
			return err
		}
		// With as many nodes that want to write as there are units in the window,
		// about one tries in each unit, and mostly gets through.
		r.mu.Lock()
		unit := max(r.roundTrip.least(), raceMin)
		r.mu.Unlock()
		backoff.Sleep(ctx, backoff.Below(unit*time.Duration(window)))
		window = min(2*window, raceMost)
	}
	return fmt.Errorf("%d writes in a row were lost to other nodes", lostRaceMost)
}

// tryCAS makes one attempt to store a change; false if another node was quicker.
func (r *registerLog) tryCAS(ctx context.Context, change func(*registerState) bool) (done bool, err error) {
	r.mu.Lock()
	base, token, stamp := r.state, r.token, r.stamp
	next := base.copy()
	if base == nil {
		next = &registerState{runID: r.runID, generation: rand.Text()}
	}
	if !change(next) && base != nil {
		r.mu.Unlock()
		return true, nil
	}
	r.writes++
	next.nonce = fmt.Sprintf("%s/%d", r.self, r.writes)
	next.beat(r.session, r.last)
	r.mu.Unlock()

	data := next.encode()
	if len(data) > maxRegister {
		return false, rendezvous.Errorf(rendezvous.CodeTooLarge, "run %q: the state would have %d bytes, at most %d are allowed", r.runID, len(data), maxRegister)
	}
	began := time.Now()
	now, nowToken, ok, err := r.backend.SetState(ctx, data, token)
	took := time.Since(began)
	if err != nil {
		return false, err
	}
	if ok || now != nil && bytes.Equal(now, data) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.roundTrip.add(took)
		r.wrote, r.last = time.Now(), ""
		r.installLocked(next, nowToken)
		return true, nil
	}
	if now == nil {
		return false, errors.New("the backend stored nothing, and has nothing")
	}
	if err := r.observe(now, nowToken, took, stamp); err != nil {
		return false, err
	}
	r.mu.Lock()
	same := r.state == base
	r.mu.Unlock()
	if same { // no other node was quicker, and yet it was refused: look what is really there
		return false, r.look(ctx)
	}
	return false, nil
}

// Append implements Log.
func (r *registerLog) Append(ctx context.Context, entries [][]byte) error {
	err := r.update(ctx, func(s *registerState) bool {
		s.entries = append(s.entries, entries...)
		return true
	})
	r.mu.Lock()
	r.every = pollMin // answers are soon to come
	r.mu.Unlock()
	return err
}

// Next implements Log.
func (r *registerLog) Next(ctx context.Context, after uint64) (Batch, error) {
	for {
		if err := ctx.Err(); err != nil {
			return Batch{}, err
		}
		r.mu.Lock()
		b, err := r.state.after(after)
		pause := max(r.every, pollShare*r.roundTrip.mean(), pollMin*time.Duration(len(r.state.beats)/pollCrowd))
		r.mu.Unlock()
		if err != nil || len(b.Entries) > 0 {
			return b, err
		}
		select {
		case <-r.news: // a write of this node has shown something
			continue
		case <-ctx.Done():
			continue
		case <-time.After(backoff.Jitter(pause)):
		}
		r.mu.Lock()
		r.every = min(r.every+r.every/2, pollMax)
		r.mu.Unlock()
		if err := r.look(ctx); err != nil {
			return Batch{}, err
		}
	}
}

// Latest implements Log.
func (r *registerLog) Latest(context.Context) (Snapshot, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state.snapshot, nil
}

// Snapshot implements Log.
func (r *registerLog) Snapshot(ctx context.Context, s Snapshot) error {
	return r.update(ctx, func(state *registerState) bool { return state.compact(s) })
}

// Heartbeat implements Log. Any write is a beat, so that a busy node needs no other.
func (r *registerLog) Heartbeat(ctx context.Context, session rendezvous.SessionID, lease time.Duration) error {
	r.mu.Lock()
	first, wrote := session != r.session, r.wrote
	if first { // its first sign comes with its hello, in one write
		r.last, r.session, r.wrote = r.session, session, time.Now()
	}
	r.mu.Unlock()
	if first || time.Since(wrote) < lease/beatsPerLease/fewestBeats {
		return nil
	}
	return r.update(ctx, func(*registerState) bool { return true })
}

// ReadHeartbeats implements Log.
func (r *registerLog) ReadHeartbeats(_ context.Context, sessions []rendezvous.SessionID) ([]Liveness, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	signs := make([]Liveness, len(sessions))
	for i, session := range sessions {
		signs[i] = r.state.sign(session)
	}
	return signs, nil
}

// Close implements Log.
func (r *registerLog) Close(ctx context.Context) error {
	r.mu.Lock()
	session, known := r.session, r.state != nil
	r.session, r.last = "", session
	r.mu.Unlock()
	if session == "" || !known {
		return nil
	}
	return r.update(ctx, func(*registerState) bool { return true })
}

// recent has the durations of the last few operations.
type recent struct {
	took [8]time.Duration
	n    int
}

func (r *recent) add(d time.Duration) {
	r.took[r.n%len(r.took)] = d
	r.n++
}

// mean is the mean duration of an operation; 0 without any.
func (r *recent) mean() time.Duration {
	sum := time.Duration(0)
	for _, d := range r.took {
		sum += d
	}
	return sum / time.Duration(max(1, min(r.n, len(r.took))))
}

// least is the duration of an undisturbed operation; 0 without any. On an overloaded machine most
// of an operation's apparent duration is waiting for the CPU.
func (r *recent) least() time.Duration {
	if r.n == 0 {
		return 0
	}
	return slices.Min(r.took[:min(r.n, len(r.took))])
}
