package member

import (
	"context"

	"rallypoint/core/rendezvous"
)

// AnnounceStop tells the other members of stop.Round that this node is about to stop its
// workers, so that all stop theirs at once; the Generation is filled in. The first
// announcement of a round counts; for a round that is over it does nothing. The error of one
// with Away says why the node may not leave as unfit.
//
// It returns once the control plane knows, or when ctx ends. Then the announcement continues in
// the background, even over a reconnect. While the control plane is unreachable, it returns at
// once with the reason.
func (m *Member) AnnounceStop(ctx context.Context, stop rendezvous.AnnounceStop) error {
	if m.isStopped() {
		return m.stoppedError()
	}
	m.mu.Lock()
	last, lost := m.last, m.lost
	m.mu.Unlock()
	if last.Round == 0 || last.Round != stop.Round {
		return rendezvous.Errorf(rendezvous.CodeRoundOver, "%s: it is not in round %d any more", m.subject(), stop.Round)
	}
	stop.Generation, stop.Reason = last.Generation, cutReason(stop.Reason)
	return m.tell(ctx, stop, lost)
}

// tell sends a request and waits until the control plane knows, or ctx ends. lost is why the control
// plane is out of reach: tell then returns at once, and the request continues in the background.
func (m *Member) tell(ctx context.Context, request rendezvous.Event, lost error) error {
	call := m.control.Start(request)
	if lost != nil {
		return m.withCode(rendezvous.CodeConnection, lost) // the error of a connection may have no code
	}
	if _, err := call.Wait(ctx); err != nil {
		return m.ownError(err)
	}
	return nil
}

// MinNodes is the fewest nodes of a round of the run.
func (m *Member) MinNodes() int { return m.params.Min }

// Stopped returns the announced stop of a round, as far as it is known here; its Round is
// 0 if none is announced. It never blocks.
func (m *Member) Stopped(round uint64) rendezvous.RoundStop {
	if stop := m.view().Stop; stop.Round == round {
		return stop
	}
	return rendezvous.RoundStop{}
}
