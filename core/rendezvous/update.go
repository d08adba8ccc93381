package rendezvous

import (
	"fmt"
	"strings"
	"sync"

	"rallypoint/internal/wording"
)

func (m *Machine) settleViews() {
	now := view{waiting: m.forming.nodesWaiting() > 0, only: m.directives.onlyLost(), planned: m.forming.planned(), round: m.round.number, stop: m.round.stop != nil, lost: m.round.lossInStop(), directives: m.directives.seq,
		generation: m.generation, host: m.round.hostRank, finished: m.round.finishing(), finishedHosts: len(m.round.finishedHosts), domains: m.round.domains != ""}
	if m.closed != nil {
		now.closed = m.closed.Kind
	}
	if now == m.viewed && len(m.nodes.touched) == 0 {
		return
	}
	reason := sync.OnceValue(m.forming.waitingReason) // the same for all, and it costs as much as the round has members
	if now != m.viewed {
		m.viewed = now
		for _, n := range m.nodes.live {
			m.notify(n, reason)
		}
	}
	for _, n := range m.nodes.touched {
		if !n.ended {
			m.notify(n, reason)
		}
	}
	m.nodes.touched = m.nodes.touched[:0]
}

// notify sends the node its update if it differs in what a program acts on, or in what a
// successor has to know.
func (m *Machine) notify(n *node, reason func() string) {
	was := n.update
	if (m.forming.waitingFor(n) > 0) == (was.Waiting > 0) && (m.closed != nil) == was.Closed && m.round.stopFor(n) == was.Stop &&
		m.directives.notice(n) == was.Directive && m.requeued() == was.Requeue && m.directives.onlyLostFor(n) == was.OnlyLost && m.forming.plannedFor(n) == was.Planned && m.Facts().Equal(was.Facts) {
		return
	}
	n.update = m.updateFor(n, reason)
	m.out.emit(Notify{Session: n.session, Update: n.update})
}

// updateFor computes a node's view: guarantees 7, 8 and 9. reason is waitingReason.
func (m *Machine) updateFor(n *node, reason func() string) MembershipUpdate {
	notice := MembershipUpdate{Waiting: m.forming.waitingFor(n), Closed: m.closed != nil, Stop: m.round.stopFor(n), Directive: m.directives.notice(n), Requeue: m.requeued(), OnlyLost: m.directives.onlyLostFor(n), Planned: m.forming.plannedFor(n), Facts: m.Facts()}
	switch {
	case m.closed != nil:
		notice.Reason = "the run " + m.closed.sentence()
	case notice.Waiting == 0:
	case m.round.participantOf(n) == nil:
		notice.Reason = n.stale
	default:
		notice.Reason = reason()
	}
	return notice
}

func (f *forming) waitingFor(n *node) int {
	if f.round.run.closed != nil {
		switch f.round.run.closed.Kind {
		case ClosedSuccess:
			return 0
		case ClosedFailed, ClosedRequeue:
			return 1
		}
	}
	s := f.round.participantOf(n)
	switch {
	case n.join != nil:
		return 0
	case s == nil && n.stale != "":
		return 1
	case s == nil || s.state != participantRunning:
		return 0
	}
	return f.nodesWaiting()
}

// nodesWaiting is what a running member sees as num_nodes_waiting.
func (f *forming) nodesWaiting() int {
	if f.round.awaited() == 0 {
		return 0
	}
	count := f.round.tally[participantLost] + f.round.tally[participantRejoined]
	if f.round.overtaken != "" {
		count++
	}
	if f.round.stop != nil {
		count++
	}
	if f.oversized() && f.round.run.closed == nil {
		count++
	}
	if f.clocks[TimerAdmit].due && f.round.run.closed == nil {
		count += f.gain()
	}
	return count
}

// onlyLost reports whether running members see nodes waiting because of lost ones alone. Spares
// that wait for the lost ones' places end nothing either.
func (ds *directives) onlyLost() bool {
	open := ds.round.run.closed == nil || ds.round.run.closed.Kind == ClosedAdmission
	r := ds.round
	return open && r.tally[participantLost] > 0 && r.tally[participantRejoined] == 0 && r.overtaken == "" &&
		(r.stop == nil || r.stop.Leaving) && ds.endedRound != r.number && !ds.forming.oversized()
}

// onlyLostFor is onlyLost as a node sees it.
func (ds *directives) onlyLostFor(n *node) bool {
	s := ds.round.participantOf(n)
	return s != nil && s.state == participantRunning && ds.onlyLost()
}

// planned reports whether running members see nodes waiting because the job grows or shrinks, and
// for nothing else.
func (f *forming) planned() bool {
	r := f.round
	open := r.run.closed == nil || r.run.closed.Kind == ClosedAdmission
	return open && r.tally[participantLost] == 0 && r.tally[participantRejoined] == 0 && r.overtaken == "" && r.stop == nil && f.nodesWaiting() > 0
}

func (f *forming) plannedFor(n *node) bool {
	s := f.round.participantOf(n)
	return s != nil && s.state == participantRunning && f.planned()
}

func (f *forming) waitingReason() string {
	var parts []string
	if f.round.stop != nil && !f.round.stop.Leaving { // else its node is lost, for that reason
		parts = append(parts, f.round.stopReason())
	}
	if f.round.overtaken != "" {
		parts = append(parts, f.round.overtaken)
	}
	if lost := f.round.tally[participantLost]; lost > 0 {
		parts = append(parts, "lost: "+f.round.inState(participantLost))
	}
	if f.round.tally[participantRejoined] > 0 {
		parts = append(parts, "regrouping already: "+f.round.inState(participantRejoined))
	}
	if f.oversized() {
		parts = append(parts, fmt.Sprintf("the job continues with %s", wording.Count(f.target, "node", "nodes")))
	}
	if f.clocks[TimerAdmit].due && f.gain() > 0 {
		grown := len(f.round.participants) + f.gain()
		parts = append(parts, fmt.Sprintf("the job grows to %d nodes; waiting for a place: %s", grown, f.waitingNames()))
	}
	return strings.Join(parts, "; ")
}
