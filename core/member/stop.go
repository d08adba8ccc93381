package member

import (
	"context"

	"rallypoint/core/rendezvous"
)

// AnnounceStop tells the other members of a round that this node is about to stop its
// workers, so that all stop theirs at once. leaving says that the node ends its part, else
// that its workers failed; reason says why. The first announcement of a round counts; for a
// round that is over it does nothing.
//
// It returns once the control plane knows, or when ctx ends: the announcement goes on then
// by itself, also over a reconnect. While the control plane is out of reach it returns at
// once with the reason.
func (m *Member) AnnounceStop(ctx context.Context, round uint64, leaving bool, reason string) error {
	if m.isStopped() {
		return m.stoppedError()
	}
	m.mu.Lock()
	last, lost := m.last, m.lost
	m.mu.Unlock()
	if last.Round == 0 || last.Round != round {
		return rendezvous.Errorf(rendezvous.CodeRoundOver, "%s: it is not in round %d any more", m.subject(), round)
	}
	call := m.control.Start(rendezvous.AnnounceStop{Generation: last.Generation, Round: round, Leaving: leaving, Reason: cutReason(reason)})
	if lost != nil {
		return m.unreachableError(lost)
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
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.update.Stop.Round != round {
		return rendezvous.RoundStop{}
	}
	return m.update.Stop
}
