package register

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/election"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/backoff"
	"rallypoint/internal/host"
	"rallypoint/internal/wake"
	"rallypoint/internal/wording"
)

// Config says whose part an Elector plays.
type Config struct {
	Register Register
	Place    string // names the register in texts
	RunID    string
	Node     string // of this process
	Lease    time.Duration
	Clock    func() time.Duration // nil: the machine's, which goes on while it sleeps
}

// Elector is one process's part in electing the leader of a run. Run keeps it up to date.
type Elector struct {
	Config
	turn chan struct{} // held, by filling it, while the register is read or written
	news wake.Signal   // the leader has something to write

	mu        sync.Mutex
	core      core
	changed   chan struct{}
	hosting   bool          // the server here leads: it may be deposed already
	to        wire.Redirect // the leader, as far as is known
	candidacy *candidacy    // of Campaign, whose answer is missing; nil: there is none
	won       candidacy     // by which this process has come to lead
	since     time.Time
	trouble   error // of the last use of the register; nil: none
}

// candidacy is an attempt to lead, and what follows if the register takes it.
type candidacy struct {
	attempt
	start rendezvous.Succession
	took  time.Duration     // how long there was no leader
	ended *rendezvous.Ended // how the run was closed, if it stays so; nil: it was not
}

var _ election.Elector = (*Elector)(nil)

// New makes the part of a process that knows nothing yet. It does no I/O.
func New(cfg Config) *Elector {
	if cfg.Clock == nil {
		cfg.Clock = host.Uptime
	}
	return &Elector{
		Config: cfg, turn: make(chan struct{}, 1), news: wake.New(), changed: make(chan struct{}),
		core: core{runID: cfg.RunID, node: cfg.Node, machine: machine(), ownLease: cfg.Lease},
	}
}

// machine names this machine, and the network in which its addresses are its own.
var machine = sync.OnceValue(func() string {
	space, err := os.Readlink("/proc/self/ns/net")
	if err != nil || host.Boot() == "" {
		return ""
	}
	return host.Boot() + " " + space
})

// Here reports whether the addresses of a record are those of this machine.
func (r *Record) Here() bool { return r.Machine != "" && r.Machine == machine() }

func (e *Elector) lock(ctx context.Context) error {
	select {
	case e.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *Elector) unlock() { <-e.turn }

// wakeLocked tells all that wait that something has changed.
func (e *Elector) wakeLocked() {
	close(e.changed)
	e.changed = make(chan struct{})
}

func (e *Elector) Changed() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.changed
}

// Look reads the register.
func (e *Elector) Look(ctx context.Context) error {
	if err := e.lock(ctx); err != nil {
		return err
	}
	defer e.unlock()
	began := e.Clock()
	state, token, err := e.Register.GetState(ctx)
	return e.looked(state, token, began, err)
}

// looked takes the answer of a look that began then.
func (e *Elector) looked(state, token []byte, began time.Duration, err error) error {
	var r *Record
	if err == nil && state != nil {
		r, err = e.decode(state)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.Clock()
	e.trouble = err
	if err != nil {
		e.core.failed(now)
		return err
	}
	if c := e.candidacy; c != nil && r != nil && r.Leader == c.record.Leader && !e.core.leads {
		e.leadLocked(*c, token)
		return nil
	}
	before := e.core.silent()
	if e.core.looked(r, token, began, now) || e.core.silent() != before {
		e.wakeLocked()
	}
	e.targetLocked()
	return nil
}

// decode reads the record of this run.
func (e *Elector) decode(state []byte) (*Record, error) {
	r, err := Decode(state)
	if err == nil && r.RunID != e.RunID {
		err = fmt.Errorf("it belongs to run %q", r.RunID)
	}
	if err != nil {
		return nil, rendezvous.Errorf(rendezvous.CodeState, "run %q: %s holds something else than this run's record: %v; its nodes may be of another release: start all by one release; "+
			"or give each run, and each program, a place of its own", e.RunID, e.Place, err)
	}
	return r, nil
}

// targetLocked notes who leads.
func (e *Elector) targetLocked() {
	if r := e.core.seen; r != nil {
		e.to = wire.Redirect{Group: r.Group, Term: r.Term, Host: r.Addr, Node: r.Node}
	}
}

// Leadership is what is known of the leader.
type Leadership struct {
	Record *Record // nil: there is none
	Silent bool    // it has not written for a lease
	Leads  bool    // this process leads
}

// Leadership returns what is known of the leader.
func (e *Elector) Leadership() Leadership {
	e.mu.Lock()
	defer e.mu.Unlock()
	v := Leadership{Silent: e.core.silent(), Leads: e.core.leads}
	if r := e.core.seen; r != nil {
		v.Record = new(*r)
	}
	return v
}

// Campaign tries to have this process lead, whose control plane will be found at an address. dead names the
// leader whose process is proven dead, by Record.Leader; "": none. took is for how long there was none. It
// reports false if another one leads. After an error it is not known who does, and the next Look tells.
func (e *Elector) Campaign(ctx context.Context, addr, dead string, took time.Duration) (led bool, err error) {
	if err := e.lock(ctx); err != nil {
		return false, err
	}
	defer e.unlock()
	e.mu.Lock()
	last, before := e.core.seen, e.candidacy
	a, s, ok := e.core.candidacy(addr, dead, e.Clock())
	e.mu.Unlock()
	if !ok {
		return false, nil
	}
	c := candidacy{attempt: a, start: s, took: took}
	if last != nil && last.Phase == Over {
		if c.ended, err = e.remaining(ctx, last); err != nil {
			return false, err
		}
	}
	if before != nil && before.record.Addr == addr && bytes.Equal(before.token, a.token) {
		c.attempt = before.attempt // the register may take that one yet, which then has to be this process's, too
	}
	e.mu.Lock()
	e.candidacy = &c
	e.mu.Unlock()
	data, err := c.record.Encode()
	if err != nil {
		return false, err
	}
	now, token, ok, err := e.Register.SetState(ctx, data, c.token)
	if err != nil || !ok && !bytes.Equal(now, data) {
		if err != nil {
			e.mu.Lock()
			e.trouble = err
			e.mu.Unlock()
			return false, err
		}
		return false, e.looked(now, token, c.began, nil)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.trouble = nil
	e.leadLocked(c, token)
	return true, nil
}

// Settle learns whether an attempt to lead was taken whose answer was lost, and reports whether this process leads.
func (e *Elector) Settle(ctx context.Context) (leads bool) {
	e.mu.Lock()
	unsure := e.candidacy != nil && bytes.Equal(e.candidacy.token, e.core.token) // else another one has come before it
	e.mu.Unlock()
	if unsure {
		_ = e.Look(ctx)
	}
	return e.Leadership().Leads
}

// Ended returns how the run was closed when this process began to lead it, if it stays so; nil: it was not.
func (e *Elector) Ended() *rendezvous.Ended {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.won.ended
}

// remaining returns how a run was closed, with the time for which it stays so.
func (e *Elector) remaining(ctx context.Context, r *Record) (*rendezvous.Ended, error) {
	if r.Ended == nil {
		return nil, nil
	}
	left := *r.Ended
	switch c, clocked := e.Register.(Clocked); {
	case left.Machine != "" && left.Machine == bootOf(): // which nobody can have set
		left = *Later(&left)
	case clocked:
		age, err := c.Age(ctx)
		if err != nil {
			return nil, err
		}
		left.For -= age
	}
	if left.For <= 0 {
		return nil, nil
	}
	left.Machine, left.Uptime = bootOf(), host.Uptime()
	return &left, nil
}

// bootOf names this start of the machine, and the clock of its times.
var bootOf = sync.OnceValue(func() string {
	if host.Boot() == "" {
		return ""
	}
	space, _ := os.Readlink("/proc/self/ns/time") // a kernel of before 5.6 has none
	return host.Boot() + " " + space
})

// Later returns what is left of the time for which a run stays closed.
func Later(e *rendezvous.Ended) *rendezvous.Ended { return e.After(host.Uptime()) }

func (e *Elector) leadLocked(c candidacy, token []byte) {
	e.core.lead(c.attempt, token)
	e.candidacy, e.won, e.hosting, e.since = nil, c, true, time.Now()
	e.targetLocked()
	e.wakeLocked()
	e.news.Set()
}

// Run keeps up with the register until ctx ends: as the leader it writes, else it looks.
func (e *Elector) Run(ctx context.Context) {
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		e.watch(ctx)
	}()
	defer func() { <-watching }()
	pause := backoff.New(firstPause, e.Lease/8)
	for ctx.Err() == nil {
		wait, err := e.step(ctx)
		if err != nil {
			pause.Wait(ctx)
			continue
		}
		pause.Reset()
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-e.news:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

const firstPause = 10 * time.Millisecond

// step writes or looks, if that is due, and returns for how long nothing is.
func (e *Elector) step(ctx context.Context) (wait time.Duration, err error) {
	e.mu.Lock()
	leads, now := e.core.leads, e.Clock()
	part := e.core.lease() / beatsPerLease
	next := e.core.ended + part + part/3 - now // a watch tells of each beat before
	if leads {
		next = e.core.due(now) - now
	}
	e.mu.Unlock()
	if next > 0 {
		return next, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*part)
	defer cancel()
	if leads {
		_, err = e.write(ctx, Leads, nil, -1)
		return 0, err
	}
	return part, e.Look(ctx)
}

// write has the register take what the leader has to say, and reports whether it has.
func (e *Elector) write(ctx context.Context, phase Phase, ended *rendezvous.Ended, after time.Duration) (taken bool, err error) {
	if err := e.lock(ctx); err != nil {
		return false, err
	}
	defer e.unlock()
	e.mu.Lock()
	if !e.core.leads {
		e.mu.Unlock()
		return false, nil
	}
	a := e.core.next(phase, e.Clock())
	a.record.Ended = ended
	e.mu.Unlock()
	data, err := a.record.Encode()
	if err != nil {
		return false, err
	}
	state, token, ok, err := store(ctx, e.Register, data, a.token, after)
	var now *Record
	switch {
	case err != nil:
	case ok:
		now = &a.record
	case state != nil:
		now, err = e.decode(state)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.trouble = err
	if err != nil {
		return false, err
	}
	taken = e.core.wrote(a, now, token)
	e.targetLocked()
	e.wakeLocked()
	if !taken && e.core.leads {
		return false, errMoved
	}
	return taken, nil
}

// errMoved is why a write is tried again: another one of this process was taken before.
var errMoved = errors.New("an earlier write was taken")

// watch has the register tell of changes, if it can.
func (e *Elector) watch(ctx context.Context) {
	w, ok := e.Register.(Watcher)
	if !ok {
		return
	}
	pause := backoff.New(firstPause, time.Second)
	for ctx.Err() == nil {
		err := w.Watch(ctx, func(state, token []byte) {
			pause.Reset()
			e.mu.Lock()
			leads := e.core.leads
			e.mu.Unlock()
			if leads { // its own writes, or the end of its time, which the next write tells
				return
			}
			_ = e.looked(state, token, e.Clock(), nil)
			e.news.Set()
		})
		if err != nil && ctx.Err() == nil {
			pause.Wait(ctx)
		}
	}
}

// Leave has this process lead no more, whose server says what remains: Left where nodes go on, Over where
// none is left that may come back. It reports false if another one leads already.
func (e *Elector) Leave(ctx context.Context, phase Phase, ended *rendezvous.Ended) (left bool, err error) {
	after := time.Duration(-1)
	if phase == Over {
		after = 0
		if ended != nil {
			after = ended.For
			ended.Machine, ended.Uptime = cmp.Or(ended.Machine, bootOf()), cmp.Or(ended.Uptime, host.Uptime())
		}
	}
	pause := backoff.New(firstPause, e.Lease/8)
	for {
		left, err = e.write(ctx, phase, ended, after)
		e.mu.Lock()
		leads := e.core.leads
		e.mu.Unlock()
		if left || !leads || !pause.Wait(ctx) {
			return left, err
		}
	}
}

func (e *Elector) Serves(run string) bool { return run == e.RunID }

func (e *Elector) Hosting() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.hosting
}

// Deposed returns the leader, if this process has led until now, and its server has not stepped down.
func (e *Elector) Deposed() (to wire.Redirect, deposed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.to, e.hosting && !e.core.leads
}

func (e *Elector) Current() wire.Redirect {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.to
}

// Admit implements election.Elector. A node that comes to a process that leads no more asks the register.
func (e *Elector) Admit() (to wire.Redirect, serve, known bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	to = e.to
	if !e.core.leads {
		to.Host = ""
	}
	return to, e.hosting && e.core.leads, true
}

// StepDown implements election.Elector. The register may not know it yet, or take an earlier attempt of this process later:
// nobody writes under that leader's name any more.
func (e *Elector) StepDown(wire.Redirect) (led bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	led = e.hosting
	e.hosting, e.core.leads, e.candidacy = false, false, nil
	e.wakeLocked()
	return led
}

func (e *Elector) Began() (s rendezvous.Succession, since time.Time, took time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.won.start, e.since, e.won.took
}

// Quorum implements election.Elector: all facts have to be in the register.
func (e *Elector) Quorum() bool { return true }

func (e *Elector) Propose(f rendezvous.Facts) (number uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	number = e.core.propose(f)
	e.news.Set()
	return number
}

func (e *Elector) Committed(number uint64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.core.maySay(number, e.Clock())
}

func (e *Elector) NoMajority() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.Clock()
	if !e.core.leads || e.core.maySay(0, now) {
		return ""
	}
	why := "no answer"
	if e.trouble != nil {
		why = e.trouble.Error()
	}
	return fmt.Sprintf("%s has not confirmed for %s that this node leads: %s; running workers continue", e.Place, wording.Seconds(now-e.core.held), why)
}
