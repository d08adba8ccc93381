package member

import (
	"cmp"
	"context"
	"crypto/rand"
	"slices"

	"rallypoint/core/rendezvous"
)

// Directive returns the present directive, whose ID is "" if there is none, and a channel that is
// closed when it changes. It is the last known one while the control plane is out of reach, and
// never blocks. Any number of goroutines may wait.
//
// A notice with a Round asks the agent: hold the workers of that round at their next report
// of a step and tell by ReportHeld; once it is Agreed, hand the directive to them at its
// Step, and tell by ReportSaved when they have saved. A notice without it, or with another
// ID, before it was agreed takes that back: the workers continue. An agreed step is handed
// to all workers of its round, even if the notice is about another directive or none by
// then.
func (m *Member) Directive() (rendezvous.DirectiveNotice, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.update.Directive, m.directed
}

// Requeued reports whether a directive has ended the run to be queued again, and who asked
// for that, and why. Closed is true then, NodesWaiting above 0, and Next fails with
// ErrClosed: the run has neither succeeded nor failed.
func (m *Member) Requeued() (reason string, requeued bool) {
	view := m.view()
	return view.Reason, view.Requeue
}

// ReportHeld tells that all workers of this node in a round are held for a directive. step is
// the largest of the steps at which they are held, each that of its last report, or of the
// next one if it is not held yet; -1 if none of them reports steps. The first report of a
// directive and round counts; one of a directive that is over, or of another round, does
// nothing. It waits and fails as AnnounceStop does.
func (m *Member) ReportHeld(ctx context.Context, round uint64, id string, step int64) error {
	return m.reportDirective(ctx, round, rendezvous.DirectiveReport{ID: id, Step: step})
}

// ReportSaved tells that the workers of this node in a round have saved because of a
// directive that was agreed, or have nothing to save. Once all nodes have told so, the
// directive is carried out before its deadline. In all else it is like ReportHeld.
func (m *Member) ReportSaved(ctx context.Context, round uint64, id string) error {
	return m.reportDirective(ctx, round, rendezvous.DirectiveReport{ID: id, Step: -1, Saved: true})
}

// NewDirectiveID draws the id of a directive.
func NewDirectiveID() string { return rand.Text()[:8] }

// Direct gives the run a directive, in the name of this node, which it drains itself if it
// names none. An empty ID is drawn. It blocks until the control plane has it, at most
// CloseTimeout, and is applied once however often it has to be sent. The errors are
// ErrInvalid, with the reason why it cannot stand in this run, ErrTooLarge, ErrClosed, and
// those of SetClosed.
func (m *Member) Direct(ctx context.Context, d rendezvous.Direct) error { return m.give(ctx, d, false) }

// DrainUnfit is Direct of a drain of this node, because a check has found it unfit: it is kept out
// for d.For at its own request. The error of code CodeInvalid says why the node stays.
func (m *Member) DrainUnfit(ctx context.Context, d rendezvous.Direct) error {
	d.Kind, d.Nodes = rendezvous.DirectiveDrain, nil
	return m.give(ctx, d, true)
}

func (m *Member) give(ctx context.Context, d rendezvous.Direct, unfit bool) error {
	if m.isStopped() {
		return m.stoppedError()
	}
	d.ID = cmp.Or(d.ID, NewDirectiveID())
	d.Reason = cutReason(d.Reason)
	d.Nodes = slices.Clone(d.Nodes) // the request continues when its caller has given it up
	if len(d.ID) > rendezvous.MaxNameLen || len(d.Nodes) > rendezvous.MaxDirectiveNodes {
		return rendezvous.Errorf(rendezvous.CodeInvalid, "%s: a directive has an id of at most %d bytes and names at most %d nodes", m.subject(), rendezvous.MaxNameLen, rendezvous.MaxDirectiveNodes)
	}
	return m.ask(ctx, rendezvous.GiveDirective{Directive: d, Unfit: unfit}, "give a directive")
}

func (m *Member) reportDirective(ctx context.Context, round uint64, r rendezvous.DirectiveReport) error {
	if m.isStopped() {
		return m.stoppedError()
	}
	if r.Step < -1 {
		return rendezvous.Errorf(rendezvous.CodeInvalid, "%s: its workers cannot be held at step %d", m.subject(), r.Step)
	}
	m.reporting.Lock()
	m.mu.Lock()
	if m.last.Round == 0 || m.last.Round != round {
		m.mu.Unlock()
		m.reporting.Unlock()
		return rendezvous.Errorf(rendezvous.CodeRoundOver, "%s: it is not in round %d any more", m.subject(), round)
	}
	m.last.Reports = noteReport(m.last.Reports, r)
	last, lost := m.last, m.lost
	m.mu.Unlock()
	m.control.SetLastRound(last)
	m.reporting.Unlock()
	return m.tell(ctx, rendezvous.ReportDirective{ID: r.ID, Generation: last.Generation, Round: round, Step: r.Step, Saved: r.Saved}, lost)
}

// noteReport adds a report to those that a hello carries, the last ones. It leaves the list
// as it is: the control plane has it.
func noteReport(list []rendezvous.DirectiveReport, r rendezvous.DirectiveReport) []rendezvous.DirectiveReport {
	if slices.ContainsFunc(list, func(known rendezvous.DirectiveReport) bool { return known.ID == r.ID && known.Saved == r.Saved }) {
		return list
	}
	list = append(slices.Clone(list), r)
	return list[max(0, len(list)-rendezvous.MaxDirectiveReports):]
}

func (m *Member) setUpdateLocked(n rendezvous.MembershipUpdate) {
	if n.Directive != m.update.Directive {
		close(m.directed)
		m.directed = make(chan struct{})
	}
	m.update = n
}
