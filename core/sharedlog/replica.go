package sharedlog

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"sync"
	"time"

	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/training"
	"rallypoint/internal/backoff"
	"rallypoint/internal/host"
	"rallypoint/internal/wake"
)

var errReplicaClosed = rendezvous.Errorf(rendezvous.CodeCanceled, "the rendezvous was closed by this process")

// Replica connects a node to a run whose nodes share a log. It is a member.ControlPlane.
//
// Connect opens the log and says hello in it; from then on one goroutine applies the
// entries and calls the Observer, and four do the log's I/O: one reads, one
// appends, one shows and looks for heartbeats, one stores snapshots.
type Replica struct {
	params params.Params
	obs    member.Observer
	log    *slog.Logger
	shared Log

	node  string
	label string

	life   context.Context // ends with Close, or when the log has failed for good
	cancel context.CancelFunc
	work   sync.WaitGroup

	connecting sync.Mutex    // held by Connect
	opened     bool          // guarded by connecting: the goroutines run
	welcome    chan struct{} // closed when this node was taken in for the first time

	in      chan message  // for the goroutine that applies
	more    wake.Signal   // for the goroutine that appends
	saving  chan Snapshot // for the one that stores snapshots
	greeted wake.Signal   // for the goroutine of the heartbeats: the session has changed

	mu      sync.Mutex
	info    Info
	calls   member.Calls
	last    rendezvous.LastRound
	session rendezvous.SessionID
	shown   rendezvous.SessionID // the session of the last beat
	applier *applier             // nil: not opened
	queue   []proposal           // to be appended
	epoch   uint64               // counts the times that queue was made again
	final   *rendezvous.Error
	closing bool
	failing map[string]bool // the last message about the goroutines that do I/O

	incarnation uint64
	training    func() *training.Report // of CarryTraining; nil: none
	command     rendezvous.Command

	// applied, unless it is nil, receives each applied entry and its effects, under mu. Set
	// before Connect.
	applied func(index uint64, ev rendezvous.Event, effects []rendezvous.Effect)
}

var _ member.ControlPlane = (*Replica)(nil)

// New makes a replica over a log that is not open yet; the replica closes it. The
// Observer's methods must not block and must not call Close. A nil log discards.
func New(p params.Params, obs member.Observer, shared Log, log *slog.Logger) *Replica {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	pl := &Replica{
		params: p, obs: obs, log: log, shared: shared,
		label: host.Process(host.NameOf(p.HostName)), session: newSession(),
		welcome: make(chan struct{}), failing: map[string]bool{},
		in: make(chan message), more: wake.New(), saving: make(chan Snapshot, 1), greeted: wake.New(),
	}
	pl.node, pl.incarnation = p.Identity()
	pl.info.fill() // for requests that come before Connect
	pl.life, pl.cancel = context.WithCancel(context.Background())
	return pl
}

func newSession() rendezvous.SessionID { return rendezvous.SessionID(rand.Text()) }

// Connect is member.ControlPlane's. It takes at most ReadTimeout: a log that cannot
// be reached is not waited for, unlike a control plane that another node is
// about to host. One that is reached, but slow, is tried as long as ctx allows.
func (r *Replica) Connect(ctx context.Context) error {
	r.connecting.Lock()
	defer r.connecting.Unlock()
	if r.life.Err() != nil {
		return r.ended()
	}
	began := time.Now()
	whole, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.life, cancel)()
	for !r.opened {
		ctx, cancel := context.WithTimeout(whole, r.params.ReadTimeout)
		err := r.open(ctx)
		slow := errors.Is(err, ErrSlow) && whole.Err() == nil
		if err != nil && !slow {
			err = r.unreached(ctx, err, began)
		}
		cancel()
		switch {
		case slow:
			r.log.Warn("entering the run is tried again", "error", err)
			backoff.Sleep(whole, beatPause)
		case err != nil:
			return err
		}
	}
	ctx, cancel = context.WithTimeout(whole, r.params.ReadTimeout)
	defer cancel()
	select {
	case <-r.welcome:
		return nil
	case <-ctx.Done():
		if r.life.Err() != nil {
			return r.ended()
		}
		return r.unreached(ctx, errors.New("the hello of this node was not seen in the log"), began)
	}
}

// beatPause is the pause before another try of the first heartbeat.
const beatPause = 100 * time.Millisecond

// open opens the log, shows a heartbeat and starts the goroutines; the hello
// is the first that they append.
func (r *Replica) open(ctx context.Context) error {
	r.countNodes(0)
	info, err := r.shared.Open(ctx)
	if err != nil {
		return err
	}
	for { // one that comes too late, or not through just now, is no reason to give up
		err := r.shared.Heartbeat(ctx, r.session, r.params.LeaseTimeout)
		if err == nil {
			break
		}
		if ctx.Err() != nil || final(err) || !backoff.Sleep(ctx, beatPause) {
			return err
		}
	}
	info.fill()
	r.mu.Lock()
	r.info = info
	r.applier, r.shown = newApplier(r), r.session
	r.queue = append([]proposal{{event: r.helloLocked()}}, r.queue...)
	r.mu.Unlock()
	r.opened = true
	for _, f := range []func(){r.loop, r.read, r.append, r.live, r.save} {
		r.work.Go(f)
	}
	return nil
}

// countNodes tells the log how many nodes share it: at least as many as a round needs, since the
// nodes of a job start together.
func (r *Replica) countNodes(alive int) {
	if counter, ok := r.shared.(NodeCounter); ok {
		counter.SetNodes(max(alive, r.params.Min))
	}
}

// unreached says what was tried. A final error says that itself.
func (r *Replica) unreached(ctx context.Context, err error, began time.Time) error {
	switch {
	case r.life.Err() != nil:
		return r.ended()
	case errors.As(err, new(*rendezvous.Error)):
		return err
	case ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded):
		return rendezvous.Errorf(rendezvous.CodeConnection, "run %q: cannot use %s, tried for %v: %v",
			r.params.RunID, r.params.Endpoint, time.Since(began).Round(10*time.Millisecond), err)
	}
	return rendezvous.Errorf(rendezvous.CodeCanceled, "run %q: canceled while it was opening %s: %v", r.params.RunID, r.params.Endpoint, err)
}

// ended returns why the replica answers no more requests.
func (r *Replica) ended() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.final != nil {
		return r.final
	}
	return errReplicaClosed
}

// Start is member.ControlPlane's. Calls before Connect are kept for it; after Close
// or a refusal they fail at once.
func (r *Replica) Start(ev rendezvous.Event) *member.Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.calls.Add(ev)
	err := r.final
	if err == nil {
		err = r.checkRequest(ev)
	}
	if err != nil {
		r.calls.Take(c.Call.Number)
		c.Call.Finish(nil, err)
		return c.Call
	}
	r.proposeLocked(proposal{event: ev, number: c.Call.Number})
	return c.Call
}

// checkRequest refuses a request that the log would not accept.
func (r *Replica) checkRequest(ev rendezvous.Event) *rendezvous.Error {
	stamped := rendezvous.Stamp(ev, rendezvous.Request{Session: r.session})
	if stamped == nil {
		return rendezvous.Errorf(rendezvous.CodeInternal, "a %T is no request", ev)
	}
	data, err := rendezvous.EncodeEvent(stamped)
	var own *rendezvous.Error
	switch limit := r.info.MaxEntry; {
	case errors.As(err, &own):
		return own
	case err != nil:
		return rendezvous.Errorf(rendezvous.CodeInvalid, "run %q: %v", r.params.RunID, err)
	case len(data) > limit-entrySlack:
		return rendezvous.Errorf(rendezvous.CodeTooLarge, "run %q: a request of %d bytes, at most %d are allowed at %s",
			r.params.RunID, len(data), limit-entrySlack, r.params.Endpoint)
	}
	return nil
}

// entrySlack is room for the numbers that a request gets when it is appended.
const entrySlack = 128

// SetLastRound is member.ControlPlane's.
func (r *Replica) SetLastRound(c rendezvous.LastRound) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = c
}

// SetCommand is member.ControlPlane's.
func (r *Replica) SetCommand(command rendezvous.Command) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.command = command
}

// CarryTraining is member.ControlPlane's. Only some logs can show it; see
// ReportCarrier.
func (r *Replica) CarryTraining(report func() *training.Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.training = report
}

// SeenAddr implements member.ControlPlane with the log's Info.
func (r *Replica) SeenAddr() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.info.SeenAddr
}

// Hosting is member.ControlPlane's: no node hosts a log.
func (r *Replica) Hosting() bool { return false }

// HostedByNode is member.ControlPlane's: a log outlives every node.
func (r *Replica) HostedByNode() bool { return false }

// Node returns this node's id, drawn at random if Params has none.
func (r *Replica) Node() string { return r.node }

// farewell bounds how long Close tries to say that this node goes, and then to leave the log.
const farewell = time.Second

// Close is member.ControlPlane's. It tells the others that this node is gone, which
// they would notice by themselves a little later.
func (r *Replica) Close(ctx context.Context) error {
	r.mu.Lock()
	r.closing = true
	session := r.session
	part := r.final == nil && r.applier != nil && r.applier.greeted && len(r.applier.troubles) == 0
	r.mu.Unlock()
	r.fail(errReplicaClosed)
	r.connecting.Lock() // Connect begins nothing any more
	defer r.connecting.Unlock()
	r.work.Wait()
	if part {
		if data, err := rendezvous.EncodeEvent(rendezvous.Disconnect{Session: session}); err == nil {
			bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
			_ = r.shared.Append(bye, [][]byte{data})
			cancel()
		}
	}
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel() // a time of its own: the other may have passed in waiting for a node that hangs
	return r.shared.Close(bye)
}

// fail ends all calls, now and later, and the goroutines; the first reason is
// kept.
func (r *Replica) fail(err *rendezvous.Error) {
	r.mu.Lock()
	if r.final == nil {
		r.final = err
	}
	pending := r.calls.Clear()
	r.mu.Unlock()
	r.cancel()
	for _, c := range pending {
		c.Call.Finish(nil, r.final)
	}
}

// helloLocked returns this node's present hello.
func (r *Replica) helloLocked() rendezvous.Hello {
	return rendezvous.Hello{
		Session: r.session, Node: r.node, Incarnation: r.incarnation, Named: r.params.NodeID != "",
		Label: r.label, HostName: r.params.Machine(), Topology: r.params.Topology, Command: r.command, Policy: r.params.Policy, LastRound: r.last,
		SeenAddr: r.info.SeenAddr, ServerAddr: r.info.ServerAddr, BeginAgain: r.params.BeginAgain,
	}
}

// Defaults of a log's Info.
const (
	defaultSnapshotEntries = 4096
	defaultSnapshotBytes   = 8 << 20
	defaultLookEvery       = 100 * time.Millisecond
)

func (i *Info) fill() {
	i.SnapshotEntries = cmp.Or(i.SnapshotEntries, defaultSnapshotEntries)
	i.SnapshotBytes = cmp.Or(i.SnapshotBytes, defaultSnapshotBytes)
	i.MaxEntry = cmp.Or(i.MaxEntry, MaxEntry)
	i.HeartbeatReadInterval = cmp.Or(i.HeartbeatReadInterval, defaultLookEvery)
}
