package member

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/core/training"
	"rallypoint/internal/host"
	"rallypoint/internal/promtext"
	"rallypoint/internal/wake"
	"rallypoint/internal/wording"
)

// Member is one node's side of a rendezvous, which an agent calls.
//
// All methods are safe for concurrent use. Those that block take a context and
// return soon after it ends. A Member that is not needed any more must be ended
// by Shutdown or Close; nothing of it runs afterwards.
type Member struct {
	params  params.Params
	control ControlPlane
	stores  RoundStores
	log     *slog.Logger
	name    string // this node, in messages

	work    context.Context // ends when Shutdown or Close begins: every other call returns
	endWork context.CancelFunc
	life    context.Context // ends with Close: a Shutdown under way returns
	endLife context.CancelFunc
	ended   chan struct{} // closed when Shutdown or Close is done
	endErr  error         // valid once ended is closed

	joining    chan struct{} // holds a token while Next runs
	connecting chan struct{} // holds a token while Connect runs
	changed    wake.Signal   // wakes the Next that waits
	news       wake.Signal   // Changed

	mu        sync.Mutex
	stopped   bool
	connected bool
	lost      error // why the control plane is out of reach; nil: it is not
	lostAt    time.Time
	update    rendezvous.MembershipUpdate
	directed  chan struct{}                // closed when the directive in update changes
	progress  rendezvous.Progress          // of the pending join
	inJoin    bool                         // a join was begun and its answer not taken yet
	pending   *Call                        // that join, once it is on its way
	early     *rendezvous.MembershipUpdate // last update while inJoin and no pending
	last      rendezvous.LastRound         // of the last round
	held      io.Closer                    // the store of the last round, if this node is its rank 0, else the way to it; nil: nothing has to be closed

	reporting sync.Mutex // held while the control plane is given last, so that it has the latest

	host        hostLiveness
	commands    string // last one logged: that the members of a round run different commands
	barrierLeft bool   // it was logged that the exit barrier ends early
}

// New makes a member that reaches its run by the control plane that connect makes;
// connect is given the observer of the control plane. The parameters must be valid
// (Params.Validate). It touches no network: that is for the first Next.
//
// log receives messages for users: what a join waits for, its outcome, and when the control plane
// is lost or the nodes have to regroup.
func New(p params.Params, connect func(Observer) ControlPlane, stores RoundStores, log *slog.Logger) *Member {
	m := &Member{
		params: p, stores: stores, log: log,
		ended: make(chan struct{}), joining: make(chan struct{}, 1), connecting: make(chan struct{}, 1),
		changed: wake.New(), news: wake.New(), directed: make(chan struct{}),
		host: hostLiveness{gone: make(chan struct{})},
	}
	m.life, m.endLife = context.WithCancel(context.Background())
	m.work, m.endWork = context.WithCancel(m.life)
	m.control = connect(observer{m})
	m.name = nodeName(p.NodeID, m.control)
	return m
}

// Params are those that the member was made with.
func (m *Member) Params() params.Params { return m.params }

// Expose writes the numbers of this node's round stores for /metrics of its process.
func (m *Member) Expose(b *promtext.Buffer) {
	if s, ok := m.stores.(interface{ Expose(*promtext.Buffer) }); ok {
		s.Expose(b)
	}
}

// NodesWaiting is num_nodes_waiting: more than 0 if the nodes have to regroup,
// because a member was lost, nodes wait to be admitted, or the run has failed. It
// stays so until this node calls Next. It never blocks and never fails: while the
// control plane is out of reach it is the last known number.
func (m *Member) NodesWaiting() int { return m.view().Waiting }

// OnlyLost reports whether NodesWaiting is above 0 because of lost members alone: the remaining
// ones may continue, if their workers can do without them.
func (m *Member) OnlyLost() bool { return m.view().OnlyLost }

// Planned reports whether NodesWaiting is above 0 only because the job grows or shrinks: all members
// still run, and can leave the round at one step.
func (m *Member) Planned() bool { return m.view().Planned }

// Closed reports whether the run is closed, as far as is known here. It never
// blocks.
func (m *Member) Closed() bool { return m.view().Closed }

// Reason explains the present NodesWaiting or Closed; "" if there is nothing to explain. It never
// blocks.
func (m *Member) Reason() string { return m.view().Reason }

// Changed returns a channel that gets a token when NodesWaiting or Closed may have changed. It
// has room for one token, which covers all changes until it is taken, so that one receiver misses
// nothing. It is always the same channel.
func (m *Member) Changed() <-chan struct{} { return m.news }

// SetClosed ends admission to the run for good and leaves the running round
// alone. It blocks until the control plane has done so, at most CloseTimeout.
// Errors are ErrTimeout, ErrCanceled (ctx or Close) and a refusal's own.
func (m *Member) SetClosed(ctx context.Context, reason string) error {
	if m.isStopped() {
		return m.stoppedError()
	}
	if err := m.ask(ctx, rendezvous.CloseRun{Reason: reason, At: time.Now()}, "close the run"); err != nil {
		return err
	}
	m.mu.Lock()
	if !m.update.Closed { // else the notice, which has all of the reason, came before the answer
		m.update.Closed, m.update.Reason = true, reason
	}
	m.mu.Unlock()
	return nil
}

// ask connects and makes a request, for at most CloseTimeout. what describes it in errors.
func (m *Member) ask(ctx context.Context, request rendezvous.Event, what string) error {
	ctx, cancel := m.withTimeout(ctx, m.params.CloseTimeout)
	defer cancel()
	err := m.connect(ctx)
	if err == nil {
		_, err = m.control.Start(request).Wait(ctx)
	}
	if err != nil {
		return m.waitError(ctx, err, what, m.params.CloseTimeout)
	}
	return nil
}

// Finish tells that all workers of this node succeeded. An agent that enters its
// exit barrier on the store of Keys need not call it. It blocks until the control
// plane knows, at most ReadTimeout; before the first outcome it does nothing.
func (m *Member) Finish(ctx context.Context) error {
	if m.isStopped() {
		return m.stoppedError()
	}
	round := m.lastRound()
	if round == 0 {
		return nil
	}
	ctx, cancel := m.withTimeout(ctx, m.params.ReadTimeout)
	defer cancel()
	if _, err := m.control.Start(rendezvous.Finish{}).Wait(ctx); err != nil {
		return m.waitError(ctx, err, "tell that this node has finished", m.params.ReadTimeout)
	}
	m.setFinished(round)
	return nil
}

// Keys returns the store that the agents of a round share. The control plane holds its keys until
// the next round is complete. Its calls survive a lost connection. Only members of the round may
// use it, others get ErrRoundOver. Keys itself connects to nothing.
func (m *Member) Keys(round uint64) store.Store {
	return newAgentStore(m, round)
}

// SetCommand says what this node runs; it counts if it comes before the first Next. The other
// nodes compare it with theirs, unless AnyCommand is set.
func (m *Member) SetCommand(c rendezvous.Command) {
	if m.params.AnyCommand {
		c.Digest = ""
	}
	m.control.SetCommand(c)
}

// CarryTraining is the control plane's.
func (m *Member) CarryTraining(report func() *training.Report) { m.control.CarryTraining(report) }

// connect reaches the control plane unless that was done before.
func (m *Member) connect(ctx context.Context) error {
	select {
	case m.connecting <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-m.connecting }()
	m.mu.Lock()
	connected, stopped := m.connected, m.stopped
	m.mu.Unlock()
	switch {
	case connected:
		return nil
	case stopped: // while this call waited
		return rendezvous.Errorf(rendezvous.CodeCanceled, "%s: canceled, because it was shut down", m.subject())
	}
	if err := m.control.Connect(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	m.connected, m.lost = true, nil
	m.hostFoundLocked()
	m.mu.Unlock()
	return nil
}

// withTimeout returns ctx limited by a duration and by the beginning of Shutdown or
// Close.
func (m *Member) withTimeout(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return withTimeout(ctx, limit, m.work)
}

// withTimeout returns ctx limited by a duration and by the end of another context.
func withTimeout(ctx context.Context, limit time.Duration, other context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	unhook := context.AfterFunc(other, cancel)
	return ctx, func() {
		unhook()
		cancel()
	}
}

// waitError turns the error of a call with the deadline of ctx into one that says what was tried.
func (m *Member) waitError(ctx context.Context, err error, what string, limit time.Duration) error {
	if ctx.Err() == nil {
		return m.ownError(err)
	}
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return rendezvous.Errorf(rendezvous.CodeCanceled, "%s: canceled before it could %s", m.subject(), what)
	}
	text := fmt.Sprintf("%s: could not %s within %s at %s", m.subject(), what, wording.Seconds(limit), m.endpoint())
	if lost := m.outage(); lost != nil {
		text += ": " + m.brief(lost)
	} else if errors.As(err, new(*rendezvous.Error)) {
		text += ": " + m.brief(err)
	}
	return &rendezvous.Error{Code: rendezvous.CodeTimeout, Text: text}
}

func (m *Member) subject() string { return fmt.Sprintf("run %q, node %s", m.params.RunID, m.name) }

func (m *Member) endpoint() string { return m.params.Endpoint }

// view is the node's view of its run, as far as it is known here.
func (m *Member) view() rendezvous.MembershipUpdate {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.update
}

// outage returns why the control plane is out of reach; nil if it is not.
func (m *Member) outage() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lost
}

func (m *Member) isStopped() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stopped
}

func (m *Member) stoppedError() error {
	return rendezvous.Errorf(rendezvous.CodeClosed, "%s: it has been shut down", m.subject())
}

// setFinished records for a control plane that is started again that this node's
// workers succeeded.
func (m *Member) setFinished(round uint64) {
	m.reporting.Lock()
	defer m.reporting.Unlock()
	m.mu.Lock()
	if m.last.Round != round || round == 0 {
		m.mu.Unlock()
		return
	}
	m.last.Finished = true
	last := m.last
	m.mu.Unlock()
	m.control.SetLastRound(last)
}

// nodeName names this node in messages. A control plane that draws a node id itself
// tells it by a method Node.
func nodeName(id string, plane ControlPlane) string {
	if named, ok := plane.(interface{ Node() string }); ok && id == "" {
		id = named.Node()
	}
	return cmp.Or(id, host.Process(host.Name()))
}
