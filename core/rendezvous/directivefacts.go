package rendezvous

import (
	"maps"
	"slices"

	"rallypoint/internal/pack"
	"rallypoint/internal/printable"
)

// directivesChanged records a change of what nodes and a successor have to know of
// directives.
func (m *Machine) directivesChanged() {
	m.directiveSeq++
	m.directiveFacts = DirectiveFacts{}
}

// canBeSucceeded reports whether another process may go on with this control plane's run:
// one that is alone, or stores what it knows, has no successor and tells no facts of
// directives, however many nodes are drained.
func (m *Machine) canBeSucceeded() bool { return m.succession.Term > 0 }

// factsOfDirectives are what a successor has to know. They are made once for each change:
// they go to every node.
func (m *Machine) factsOfDirectives() DirectiveFacts {
	if m.directiveSeq == 0 || !m.canBeSucceeded() {
		return DirectiveFacts{}
	}
	if m.directiveFacts.Seq != m.directiveSeq {
		m.directiveFacts = m.makeDirectiveFacts()
	}
	return m.directiveFacts
}

func (m *Machine) makeDirectiveFacts() DirectiveFacts {
	f := DirectiveFacts{Seq: m.directiveSeq, Target: m.target, EndedRound: m.endedRound}
	for _, d := range m.directives {
		s := StandingFact{Direct: d.Direct}
		if d.phase == phaseAgreed {
			s.Round, s.Step = m.round, d.step
		}
		f.Standing = append(f.Standing, s)
	}
	f.Ended = slices.Clone(m.directed[max(0, len(m.directed)-maxEndedFacts):])
	for _, node := range slices.Sorted(maps.Keys(m.drained)) {
		d := m.drained[node]
		f.Drained = append(f.Drained, DrainedFact{Node: node, By: d.by, Reason: d.reason, For: d.away})
	}
	return f
}

// tooMuchToTell refuses a directive with which the facts would grow out of bounds: a
// directive must not be lost with the control plane's host.
func (m *Machine) tooMuchToTell(d Direct) *Error {
	if !m.canBeSucceeded() {
		return nil
	}
	f := m.makeDirectiveFacts()
	f.Standing = append(f.Standing, StandingFact{Direct: d})
	for _, s := range f.Standing { // who is going to be drained
		if s.Kind != DirectiveDrain {
			continue
		}
		for _, node := range s.Nodes {
			f.Drained = append(f.Drained, DrainedFact{Node: node, By: s.By, Reason: s.Reason, For: s.For})
		}
	}
	f.Ended, f.Seq = nil, m.directiveSeq+1
	if size := len(pack.Append(nil, func(p *pack.Packer) { packDirectiveFacts(p, f) })); size > maxDirectiveFacts {
		return Errorf(CodeTooLarge, "with it, the run's directives and drained nodes would have %d bytes; a control plane in a node's process hands at most %d on to "+
			"its next host: name fewer nodes at a time, undrain some, give a shorter reason, or meet at `rallypoint serve`", size, maxDirectiveFacts)
	}
	return nil
}

// learnDirectives applies what the control plane before this one has told of directives, if
// it is newer than what is known. What was given or taken back here since stands: an id that
// has ended here stays so.
func (m *Machine) learnDirectives(f DirectiveFacts) {
	if f.Seq <= m.learned {
		return
	}
	m.learned = f.Seq
	m.endedRound = max(m.endedRound, f.EndedRound)
	for _, id := range f.Ended {
		if at := m.directive(id); at >= 0 {
			m.endDirective(m.directives[at])
			m.note("directive %s had ended at the control plane before", id)
		} else if !slices.Contains(m.directed, id) {
			m.remember(id)
		}
	}
	for _, s := range f.Standing {
		m.learnStanding(s)
	}
	if !m.directivesOwn {
		m.forgetDrained()
		m.target = f.Target
	}
	for _, d := range f.Drained {
		if m.drained[d.Node] == nil {
			m.drained[d.Node] = &drained{by: printable.Text(d.By), reason: printable.Text(d.Reason), away: d.For}
			if d.For > 0 {
				m.armTimer(drainedTimer(d.Node), d.For)
			}
		}
	}
	m.directiveSeq = max(m.directiveSeq, f.Seq)
	m.directivesChanged()
}

// learnStanding adds a directive that stood, and the step on which the members of the round
// have agreed: there is no second one for the round.
func (m *Machine) learnStanding(s StandingFact) {
	at := m.directive(s.ID)
	if at < 0 {
		if slices.Contains(m.directed, s.ID) || len(m.directives) >= MaxDirectives || m.closed != nil {
			return
		}
		s.By, s.Reason = printable.Text(s.By), printable.Text(s.Reason)
		at = len(m.directives)
		m.directives = append(m.directives, &directive{Direct: s.Direct})
		m.armTimer(directiveTimer(s.ID), s.Within)
		m.note("directive %s, of the control plane before: %s", s.ID, s.describe())
	}
	d := m.directives[at]
	if s.Round == m.round && s.Round > 0 && d.phase != phaseAgreed {
		m.stopTimer(agreeTimer(d.ID))
		m.directivesChanged()
		d.agreement = agreement{phase: phaseAgreed, step: s.Step, order: m.directiveSeq}
	}
}

func (m *Machine) forgetDrained() {
	for node := range m.drained {
		m.stopTimer(drainedTimer(node))
	}
	clear(m.drained)
}
