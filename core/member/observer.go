package member

import (
	"errors"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/wording"
)

// observer receives the control plane's messages to a member. It keeps the last state, wakes a
// join that waits, and logs what users should know.
type observer struct{ m *Member }

// Updated replaces the node's view.
//
// While a join waits for its answer, the waiting nodes belong to the round that this node has
// already left, so it ignores them. A control plane delivers updates and answers in order, so an
// update after the answer belongs to the new round.
func (o observer) Updated(n rendezvous.MembershipUpdate) {
	m := o.m
	if !n.Closed && n.Waiting == 0 && n.Reason != "" && (m.params.Supervised || !m.control.Hosting()) { // else its control plane has logged it
		m.log.Info(n.Reason)
	}
	m.mu.Lock()
	if m.inJoin && m.pending == nil {
		m.early = new(n)
	}
	if m.joinPendingLocked() {
		n = whileJoiningView(n)
	}
	was := m.update
	m.setUpdateLocked(n)
	quiet := m.stopped || m.joinPendingLocked()
	m.mu.Unlock()
	m.news.Set()
	if d := n.Directive; d.ID != "" && d.ID != was.Directive.ID {
		text := "directive " + d.ID + ": " + d.Text
		if d.Named && d.Kind.NamesNodes() {
			text += "; then this node leaves"
		}
		m.log.Warn(text)
	}
	if quiet || m.params.Supervised {
		return
	}
	switch {
	case n.Closed && !was.Closed:
		m.log.Info("closed: " + n.Reason)
	case n.Waiting > 0 && was.Waiting == 0:
		m.log.Info("the round is over: " + n.Reason)
	}
}

// whileJoiningView is the update as seen by a node that waits for its next round.
func whileJoiningView(n rendezvous.MembershipUpdate) rendezvous.MembershipUpdate {
	if !n.Closed {
		n.Waiting, n.OnlyLost, n.Planned, n.Reason, n.Stop = 0, false, false, "", rendezvous.RoundStop{}
		n.Directive.Round, n.Directive.Agreed, n.Directive.Step = 0, false, 0
	}
	return n
}

// Progressed receives what the pending join waits for.
func (o observer) Progressed(p rendezvous.Progress) {
	m := o.m
	m.mu.Lock()
	m.progress = p
	m.mu.Unlock()
	m.changed.Set()
}

// Dropped makes the node rejoin: it has no place in its round any more.
func (o observer) Dropped(err *rendezvous.Error) {
	m := o.m
	m.mu.Lock()
	quiet := m.stopped || m.joinPendingLocked()
	if !m.joinPendingLocked() {
		m.update.Waiting, m.update.OnlyLost, m.update.Planned, m.update.Reason = 1, false, false, err.Text
	}
	m.mu.Unlock()
	m.news.Set()
	if !quiet && !errors.Is(err, rendezvous.ErrGraceful) { // a drained node has been told before
		m.log.Warn("this node was taken out of the run: " + err.Text)
	}
}

// ConnectionChanged tells that the control plane went out of reach or came back.
func (o observer) ConnectionChanged(err error) {
	m := o.m
	now := time.Now()
	m.mu.Lock()
	was, since := m.lost, m.lostAt
	m.lost = err
	if was == nil {
		m.lostAt = now
	}
	if err != nil {
		m.hostDownLocked()
	} else {
		m.hostFoundLocked()
	}
	quiet := m.stopped || !m.connected
	m.mu.Unlock()
	m.changed.Set()
	switch {
	case quiet:
	case err != nil && was == nil:
		m.log.Warn("lost the control plane at " + m.endpoint() + ", trying to reach it again: " + m.brief(err))
	case err == nil && was != nil:
		m.log.Info("reached the control plane again after " + wording.Seconds(now.Sub(since))) // where, the client has said if it moved
	}
}
