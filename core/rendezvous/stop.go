package rendezvous

import (
	"slices"

	"rallypoint/internal/printable"
)

// announceStop records the stop, unless another node has announced one before. A node
// that leaves is lost to its round from now on, so that the others regroup without it
// while it stops its workers. The error says why a node may not leave as unfit.
func (m *Machine) announceStop(n *node, ev AnnounceStop) *Error {
	s := m.round.participantOf(n)
	if s == nil || s.state != participantRunning || ev.Round != m.round.number || ev.Generation != m.round.origin || m.round.disowned() {
		if ev.Away != 0 {
			return Errorf(CodeInvalid, "run %q: node %s runs no workers in round %d", m.runID, m.names.of(n.id), ev.Round)
		}
		return nil
	}
	ev.Reason = printable.Text(ev.Reason)
	var stays *Error
	if ev.Away != 0 {
		row := DrainedFact{Node: m.nodes.ownKey(n), By: "node " + m.names.of(n.id), Reason: ev.Reason, For: ev.Away, Cause: CauseFailures}
		if stays = m.directives.unfitRefusal(n, row); stays == nil {
			ev.Leaving = true
			m.directives.keepOut(row)
			m.directives.own = true
			m.directives.changed()
		} else {
			why := "it asked to leave as unfit, and was refused: " + stays.Text
			ev.Reason += "; " + why
			stays = Errorf(stays.Code, "run %q: %s", m.runID, why)
			m.out.note("node %s failed; %s", m.names.of(n.id), why)
		}
	}
	if m.round.stop == nil {
		m.round.stop = &RoundStop{Round: m.round.number, Rank: s.rank, Leaving: ev.Leaving, Reason: ev.Reason}
		m.out.note("round %d stops: %s", m.round.number, m.round.stopReason())
	}
	if ev.Leaving {
		m.round.set(s, participantLost, "is leaving: "+ev.Reason)
		m.nodes.touch(n)
		m.assistRanks()
	}
	return stays
}

// ownWordShare is the inverse of the share of a run's nodes that may be out by their own
// word: a fault of the training script looks like one of each node in turn.
const ownWordShare = 8

// ownKey is the name by which a node is kept out at its own request: its host's, on which it may
// come back under another id, unless another live node has that host's name, too.
func (ns *nodes) ownKey(n *node) string {
	others := slices.DeleteFunc(ns.named(n.hostName), func(other *node) bool { return other == n }) // n may have left
	if n.hostName == "" || len(others) > 0 {
		return n.id
	}
	return n.hostName
}

// unfitRefusal says why a node whose workers keep failing stays in the run; nil if it may
// leave as unfit. Each reason is one of this failure only: the node may ask at the next.
func (ds *directives) unfitRefusal(n *node, row DrainedFact) *Error {
	switch err := ds.ownWordRefusal(n, row); {
	case ds.round.run.closed != nil || ds.round.finishing():
		return err
	case ds.round.stop != nil:
		return Errorf(CodeInvalid, "another stop of the round was announced before, which may be the cause: %s", ds.round.stopReason())
	case ds.round.tally[participantLost] > 0 || ds.round.overtaken != "":
		return Errorf(CodeInvalid, "the round lost a node before, which may be the cause: %s", ds.round.inState(participantLost))
	default:
		return err
	}
}

// ownWordRefusal says why a node cannot be kept out at its own request now; nil if it can. Neither a
// check that is wrong nor a script that fails may take out more than a share of the nodes.
func (ds *directives) ownWordRefusal(n *node, row DrainedFact) *Error {
	most, out := max(1, ds.forming.policy.Max/ownWordShare), 0
	left := headcount{segment: ds.forming.policy.segment()}
	for _, other := range ds.nodes.live {
		if other != n && ds.rowOf(other.id, other.hostName) == nil {
			left.add(other.domain, 1)
		}
	}
	for _, d := range ds.drained {
		if d.Cause != CauseAdmin {
			out++
		}
	}
	switch {
	case row.For <= 0 || row.For > MaxWithin:
		return Errorf(CodeInvalid, "a node is kept out for %v, it must be above 0 and at most %v", row.For, MaxWithin)
	case ds.round.run.closed != nil:
		return Errorf(CodeInvalid, "the job %s", ds.round.run.closed.sentence())
	case ds.round.finishing():
		return Errorf(CodeInvalid, "the job is finishing")
	case left.usable < ds.forming.policy.Min:
		return Errorf(CodeInvalid, "%d would be left, at least %d are needed", left.usable, ds.forming.policy.Min)
	case out >= most:
		return Errorf(CodeInvalid, "%d of at most %d nodes are out at their own request already: the job itself may be the cause", out, most)
	}
	f := ds.makeFacts()
	f.Drained = append(f.Drained, row)
	return ds.tooMuchToTell(f)
}

// drainUnfit is for a node that a check has found unfit; the error says why it stays. It is kept
// out from now on; while its workers run it stays until they have saved, by a drain of it. One that
// is out already, or that a directive has leave anyway, has what it asks for.
func (m *Machine) drainUnfit(n *node, d Direct) *Error {
	d.By, d.Reason = "node "+m.names.of(n.id), printable.Text(d.Reason)
	if m.directives.knows(d.ID) || m.directives.rowOf(n.id, n.hostName) != nil {
		return nil
	}
	s, key := m.round.participantOf(n), m.nodes.ownKey(n)
	d.Nodes = []string{key}
	runs := d.Within > 0 && s != nil && s.state == participantRunning && !m.directives.covered(&d)
	row := DrainedFact{Node: key, By: d.By, Reason: d.Reason, For: d.For, Cause: CauseCheck, Cordoned: runs}
	err := m.directives.ownWordRefusal(n, row)
	if d.Kind != DirectiveDrain {
		err = Errorf(CodeInvalid, "a node that is unfit is drained, it cannot ask for a %v", d.Kind)
	}
	if err != nil {
		err = Errorf(err.Code, "run %q: it asked to leave as unfit, and was refused: %s", m.runID, err.Text)
	} else if runs {
		err = m.directiveRefusal(d)
	}
	if err != nil {
		return err
	}
	m.directives.keepOut(row)
	m.directives.own = true
	m.directives.changed()
	m.out.note("node %s is not fit, and is kept out: %s", m.names.of(n.id), d.Reason)
	if runs {
		m.direct(d)
	} else if n.join != nil { // it asked while its workers ran, and has stopped them since
		m.forming.refuseJoin(n, m.directives.drainedError(n.id, m.directives.rowOf(n.id, n.hostName)), "is not fit: "+d.Reason)
	}
	return nil
}
