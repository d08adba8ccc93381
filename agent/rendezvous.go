package agent

import (
	"context"

	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/core/training"
	"rallypoint/internal/promtext"
)

// Rendezvous is what an agent needs of one. *member.Member documents the methods. Only Next,
// Finish, Shutdown and those that report to the job block, and only Next, Keys, Finish and
// Shutdown must be called from one goroutine.
type Rendezvous interface {
	Next(ctx context.Context) (rendezvous.Outcome, error)
	Keys(round uint64) store.Store
	Finish(ctx context.Context) error
	Shutdown(ctx context.Context, ending rendezvous.Ending, reason string) error

	NodesWaiting() int
	OnlyLost() bool
	Planned() bool
	Closed() bool
	Reason() string
	// Changed holds a token when NodesWaiting or Closed may have changed. A token that was not
	// taken covers all later changes.
	Changed() <-chan struct{}
	// MinNodes is the fewest nodes of a round; 0 if the job's nodes are fixed.
	MinNodes() int

	// AnnounceStop tells the other nodes that this one is about to stop the workers of
	// stop.Round (docs/decisions/0045): they failed, or the node leaves, or asks to
	// leave as unfit; an error says why it may not. The Generation is filled in. It
	// counts in their NodesWaiting. AnnounceStop returns once that is known, or when ctx
	// ends; the announcement then continues in the background.
	AnnounceStop(ctx context.Context, stop rendezvous.AnnounceStop) error
	// Stopped returns the stop of a round that was announced first, this node's own
	// included; its Round is 0 if none is known.
	Stopped(round uint64) rendezvous.RoundStop

	// Direct gives the run a directive. The other methods carry directives out
	// (docs/decisions/0080).
	Direct(ctx context.Context, d rendezvous.Direct) error
	// DrainUnfit asks to drain this node, which a check has found unfit. An error tells why it
	// stays. A time of 0 means that its workers have ended and it leaves on its own.
	DrainUnfit(ctx context.Context, d rendezvous.Direct) error
	Directive() (rendezvous.DirectiveNotice, <-chan struct{})
	ReportHeld(ctx context.Context, round uint64, id string, step int64) error
	ReportSaved(ctx context.Context, round uint64, id string) error
	// Requeued reports whether a directive has ended the run, to be queued again, and why:
	// NodesWaiting is above 0 then, and Next fails.
	Requeued() (reason string, requeued bool)

	// SetCommand says what this node runs, before the first Next.
	SetCommand(c rendezvous.Command)
	// CarryTraining has the job told how far this node's workers are, as part of its
	// heartbeats. Any goroutine may call report at any time, also after Shutdown; it does
	// not block, and returns nil while there is nothing to say.
	CarryTraining(report func() *training.Report)
	// Expose writes the rendezvous's numbers for this node's /metrics.
	Expose(b *promtext.Buffer)
}
