package agent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"rallypoint/agent/progress"
	"rallypoint/agent/telemetry"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/background"
	"rallypoint/internal/backoff"
	"rallypoint/internal/wake"
)

// node is this node of the job, as all parts of its agent know it: what it is to run, its place in
// the present round, and what it says and hears there. It knows none of the parts.
type node struct {
	spec Spec
	name string // of the entry point, for reports
	rdzv Rendezvous
	log  *slog.Logger
	tuning

	interrupts interrupts
	pulse      chan struct{} // received from while the workers run, to show that the agent is alive
	resized    wake.Signal   // holds a token when the terminal has another size

	bus     *telemetry.Bus
	status  *telemetry.StatusTracker
	began   time.Time
	ran     time.Duration // once the run has ended
	stepped uint64        // the last round in which it has seen a step

	progress   *progress.Tracker // nil before Run
	restarts   restarts
	running    atomic.Bool // the workers of an attempt run or are about to, and are not being stopped
	assignment *assignment // in the last round; nil before the first
}

// tuning is what tests change.
type tuning struct {
	reachAfter   time.Duration // see watchStore
	dialStore    func(ctx context.Context, address string) (net.Conn, error)
	holdPatience time.Duration // see directives
	waitWindow   time.Duration // of progress; 0: its own
}

func (n *node) publish(message telemetry.Message) {
	state := telemetry.State{Restarts: n.restarts.agreed, Used: n.restarts.used(), Expired: n.restarts.expired(), Ran: n.ran}
	if s := n.assignment; s != nil {
		state.Place = &telemetry.Place{
			Outcome: s.Outcome, Group: s.group, Groups: s.groups,
			FirstRank: s.ranks.base, Workers: s.ranks.world, RoleRank: s.ranks.roleBase, RoleWorld: s.ranks.roleWorld,
			Members: s.members,
		}
	}
	n.bus.Publish(state, message)
}

func (n *node) stepDone(s telemetry.Step, began time.Time, err error) {
	n.publish(telemetry.StepDone{Step: s, Took: time.Since(began), Err: err})
}

// noteFirstStep publishes the first training step of a round.
func (n *node) noteFirstStep() {
	if round, at := n.progress.FirstStep(); !at.IsZero() && round > n.stepped {
		n.stepped = round
		n.publish(telemetry.FirstStep{At: at})
	}
}

// direct gives the run a directive. The error says why it was not given.
func (n *node) direct(ctx context.Context, d rendezvous.Direct) error {
	if !n.running.Load() {
		return errNotRunning
	}
	return n.rdzv.Direct(ctx, d)
}

// mustRegroup reports whether the nodes have to form a new round. Under Spec.Keep lost nodes alone
// are no reason: the others continue without them.
func (n *node) mustRegroup() bool {
	return n.rdzv.NodesWaiting() > 0 && !(n.spec.Keep && n.rdzv.OnlyLost())
}

var errRegroup = errors.New("the nodes have to regroup")

// cutShort is why a wait was not completed that ends with the first signal and with the round.
func (n *node) cutShort() error {
	if stop := n.interrupted(); stop != nil {
		return stop
	}
	n.publish(telemetry.Leaving{Reason: n.rdzv.Reason()})
	return errRegroup
}

// untilRegroup returns a context that ends with the first signal, or when the
// nodes have to regroup.
func (n *node) untilRegroup() (context.Context, context.CancelFunc) {
	ctx, cancel := n.untilInterrupt(0)
	return ctx, background.Run(ctx, func(ctx context.Context) {
		defer cancel()
		for n.rdzv.NodesWaiting() == 0 {
			select {
			case <-n.rdzv.Changed():
			case <-ctx.Done():
				return
			}
		}
	})
}

// pause waits for d before the workers of a round are started; a signal ends the run, and
// the round may be over before. Every node of the round pauses, each with its place in it:
// the others stopped by the same failure, and wait for no node longer than regroup_timeout.
func (n *node) pause(d time.Duration) error {
	if d <= 0 {
		return nil
	}
	ctx, cancel := n.untilRegroup()
	defer cancel()
	if backoff.Sleep(ctx, d) {
		return nil
	}
	return n.cutShort()
}

// requeued is the error of a run that a directive has ended, err being that of the rendezvous
// if there is one; nil if none has.
func (n *node) requeued(err error) error {
	reason, requeued := n.rdzv.Requeued()
	if !requeued {
		return nil
	}
	return &RequeueError{Err: cmp.Or(err, error(rendezvous.ErrClosed)), Reason: reason}
}
