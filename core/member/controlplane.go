package member

import (
	"context"

	"rallypoint/core/rendezvous"
	"rallypoint/core/training"
)

// ControlPlane is a node's way to the machine of its run: a connection to the server that has it.
//
// All methods are safe for concurrent use and none blocks but Connect and Close.
type ControlPlane interface {
	// Connect finds the control plane, or starts hosting it, and says hello. It
	// keeps trying until ctx ends; a refusal is final and returned at once. Once
	// it has succeeded the control plane reconnects by itself.
	Connect(ctx context.Context) error

	// Start sends a request (an event with a Request, which is left zero) and returns at once. The control plane
	// numbers it, repeats it after each reconnect, and finishes the call with the
	// answer; the request is applied exactly once.
	Start(request rendezvous.Event) *Call

	// SetLastRound tells the control plane what to say of this node in the next hello.
	SetLastRound(c rendezvous.LastRound)

	// SetCommand tells the control plane what the node runs, for the next hello.
	SetCommand(c rendezvous.Command)

	// CarryTraining shows with this node's heartbeats how far its workers are, where these can
	// carry it. report may be called by any goroutine, also after Close; it does not block, and
	// returns nil while there is nothing to say.
	CarryTraining(report func() *training.Report)

	// SeenAddr is this node's address as the control plane sees it; "" before
	// Connect.
	SeenAddr() string

	// Hosting reports whether the control plane runs in this process.
	Hosting() bool

	// HostedByNode reports whether the control plane runs in the process of a node of
	// this job, member of the round or not, and so ends with it. False before Connect,
	// and for a server that no node hosts.
	HostedByNode() bool

	// Close ends the connection and all that the control plane started, unanswered calls with
	// ErrCanceled. A hosted control plane of a run that is open continues in the process of a
	// standby; any other, and one without a standby, first serves what was answered, until no
	// other node is connected or ctx ends.
	Close(ctx context.Context) error
}

// Observer receives from a control plane what changes unasked. Its methods are
// called one at a time and must not block. Notices, progress and the answers of
// calls come in the order in which the run's machine gave them; after a
// reconnect, Dropped comes before the Notice of the welcome.
type Observer interface {
	// Updated replaces the node's view.
	Updated(n rendezvous.MembershipUpdate)
	// Progressed says what the pending join waits for.
	Progressed(p rendezvous.Progress)
	// Dropped tells that the node was taken out of its run while it was away.
	Dropped(err *rendezvous.Error)
	// ConnectionChanged tells that the control plane went out of reach (err says why)
	// or, with nil, came back.
	ConnectionChanged(err error)
}

// Call is a request on its way.
type Call struct {
	Number uint64        // of the request, for Withdraw
	Done   chan struct{} // closed once Result and Err are set
	Result rendezvous.Result
	Err    error
}

// Wait waits for the answer until ctx ends; the request itself continues.
func (c *Call) Wait(ctx context.Context) (rendezvous.Result, error) {
	select {
	case <-c.Done:
	case <-ctx.Done():
		if !isClosed(c.Done) {
			return nil, ctx.Err()
		}
	}
	return c.Result, c.Err
}

// isClosed reports whether a channel that nobody sends to is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Finish sets the answer; it must be called once.
func (c *Call) Finish(result rendezvous.Result, err error) {
	c.Result, c.Err = result, err
	close(c.Done)
}
