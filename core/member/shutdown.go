package member

import (
	"context"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/pack"
	"rallypoint/internal/wording"
)

// Shutdown ends this node's part in the run. It ends a Next that waits, tells the control
// plane how the node ends (Ending tells which nodes close the run by that), waits for its
// peers, and releases everything.
//
// Waiting for peers: if this process hosts the control plane or the store of the round,
// Shutdown waits until every other member has finished, left or is lost. The
// whole takes at most CloseTimeout; ctx cuts it short.
//
// A member that never reached its control plane says nothing to it. Calling
// Shutdown again, or after Close, waits for the first call and returns its
// result. The error is ErrTimeout or ErrConnection if the end did not
// reach the control plane, ErrCanceled if ctx or Close came before; everything is released all
// the same.
func (m *Member) Shutdown(ctx context.Context, ending rendezvous.Ending, reason string) error {
	if !m.beginEnd() {
		return m.waitEnded(ctx)
	}
	ctx, cancel := withTimeout(ctx, m.params.CloseTimeout, m.life)
	defer cancel()
	m.joining <- struct{}{} // Next has ended; the token stays, no other begins
	var err error
	if m.quiesce() {
		if err = m.leave(ctx, ending, reason); err == nil || rendezvous.CodeOf(err) == rendezvous.CodeTimeout || rendezvous.CodeOf(err) == rendezvous.CodeConnection {
			m.awaitPeers(ctx, ending)
		}
	}
	return m.release(ctx, err)
}

// Close releases everything without a goodbye: the control plane takes this node
// as lost. It cuts a Shutdown short, and after one it does nothing. It waits only
// until nothing of the member runs any more.
func (m *Member) Close() error {
	m.endLife()
	if !m.beginEnd() {
		<-m.ended
		return nil
	}
	m.joining <- struct{}{}
	m.quiesce()
	return m.release(m.life, nil)
}

// beginEnd makes the caller the one that ends the member; false if another is.
func (m *Member) beginEnd() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped {
		return false
	}
	m.stopped = true
	m.endWork()
	return true
}

func (m *Member) waitEnded(ctx context.Context) error {
	select {
	case <-m.ended:
		return m.endErr
	case <-ctx.Done():
		return rendezvous.Errorf(rendezvous.CodeCanceled, "%s: canceled while another call shuts it down", m.subject())
	}
}

// quiesce waits until nothing connects any more and reports whether the control
// plane was ever reached.
func (m *Member) quiesce() bool {
	m.connecting <- struct{}{}
	defer func() { <-m.connecting }()
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.connected
}

// leave says goodbye. A control plane that is unreachable for a whole lease has dropped this node
// anyway, so there is no need to tell it.
func (m *Member) leave(ctx context.Context, ending rendezvous.Ending, reason string) error {
	if ending == rendezvous.EndSuccess {
		m.setFinished(m.lastRound())
	}
	limit := m.params.CloseTimeout
	if m.outage() != nil {
		limit = min(limit, m.params.LeaseTimeout)
	}
	if _, orphaned := m.hostLost(); orphaned {
		return m.ownError(m.outage())
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_, err := m.control.Start(rendezvous.Leave{Ending: ending, Reason: cutReason(reason), At: time.Now()}).Wait(ctx)
	if err == nil || rendezvous.CodeOf(err) == rendezvous.CodeEvicted { // the control plane has forgotten it already
		return nil
	}
	return m.waitError(ctx, err, "leave the run", limit)
}

// awaitPeers waits until no member needs what this process hosts. A control plane whose node
// leaves an open run continues elsewhere, or waits itself: see ControlPlane.Close.
func (m *Member) awaitPeers(ctx context.Context, ending rendezvous.Ending) {
	m.mu.Lock()
	store := m.last.Round > 0 && m.last.Rank == 0
	m.mu.Unlock()
	what := "the store of the round's workers"
	switch {
	case m.control.Hosting() && ending != rendezvous.EndLeave:
		what = "the control plane"
	case !store:
		return
	}
	call := m.control.Start(rendezvous.AwaitPeers{})
	notice := time.NewTimer(firstLine)
	defer notice.Stop()
	for {
		select {
		case <-call.Done:
			return
		case <-ctx.Done():
			return
		case <-notice.C:
			m.log.Info("this process hosts " + what + ": waiting until the other nodes have ended, at most " + wording.Seconds(m.params.CloseTimeout))
		}
	}
}

// release closes the member's resources, and wakes all that wait for it.
func (m *Member) release(ctx context.Context, err error) error {
	planeErr := m.control.Close(ctx)
	if err == nil && ctx.Err() == nil && planeErr != nil {
		err = m.ownError(planeErr)
	}
	m.mu.Lock()
	held := m.held
	m.held = nil
	m.hostFoundLocked()
	m.mu.Unlock()
	m.closeStore(held)
	m.endErr = err
	m.endLife()
	close(m.ended)
	return err
}

func cutReason(reason string) string {
	if len(reason) <= rendezvous.MaxNameLen {
		return reason
	}
	const mark = "…"
	return pack.CutText(reason, rendezvous.MaxNameLen-len(mark)) + mark
}
