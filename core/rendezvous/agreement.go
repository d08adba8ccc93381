package rendezvous

import (
	"fmt"
	"strings"
	"time"
)

// ReportDirective tells what has become of a directive at a member of its round. First, that
// the node's workers are held, and at which step; then that they have saved. What is said
// again, of a directive that is over, or of another round, changes nothing.
type ReportDirective struct {
	Request
	ID         string
	Generation string // of the round
	Round      uint64
	// Step is the largest over the node's workers of the step at which each is held, or one
	// past its last report; -1 if none reports steps.
	Step  int64
	Saved bool // they have saved, or have nothing to save
}

func (ReportDirective) event() {}

// DirectiveReport is what a node has reported of a directive in its last round. It says so
// again in each hello, since a control plane that has taken over does not know.
type DirectiveReport struct {
	ID    string
	Step  int64
	Saved bool
}

// MaxDirectiveReports is how many reports a hello carries, the last ones.
const MaxDirectiveReports = 8

// agreeTime is how long members may take to say at which step they hold their workers.
const agreeTime = 5 * time.Second

// agreement is what the members of the running round have said of a directive. The zero
// value is that none was asked.
type agreement struct {
	phase agreementPhase
	step  int64 // of those held so far, then what was agreed; -1: none reports steps
	held  ranks // that have reported a step
	saved ranks
}

type agreementPhase int

const (
	phaseWaiting agreementPhase = iota // not asked in this round
	phaseAsking                        // members hold their workers and say where
	phaseAgreed                        // the workers get it at step; final for the round
	phaseGivenUp                       // the round was about to end before all had answered
	agreementPhases
)

// ranks is a set of members of the round.
type ranks struct {
	has     []byte // one bit a rank
	running int    // how many of them run
}

func (r *ranks) contains(rank int) bool {
	return rank>>3 < len(r.has) && r.has[rank>>3]&(1<<(rank&7)) != 0
}

// add adds a running member.
func (r *ranks) add(rank int) {
	if r.contains(rank) {
		return
	}
	if extra := rank>>3 + 1 - len(r.has); extra > 0 {
		r.has = append(r.has, make([]byte, extra)...)
	}
	r.has[rank>>3] |= 1 << (rank & 7)
	r.running++
}

// count keeps how many members of the set run, when one begins (1) or ceases (-1) to.
func (r *ranks) count(rank, by int) {
	if r.contains(rank) {
		r.running += by
	}
}

func agreeTimer(id string) Timer { return Timer{Kind: TimerAgree, Session: SessionID(id)} }

// countReports counts the reports of a member that begins (1) or ceases (-1) to run.
func (m *Machine) countReports(rank, by int) {
	if d := m.standing; d != nil {
		d.held.count(rank, by)
		d.saved.count(rank, by)
	}
}

// forgetAgreement drops what the members of a round have said when it is over: the next one
// agrees again.
func (m *Machine) forgetAgreement() {
	if d := m.standing; d != nil && d.phase != phaseWaiting {
		m.out.stopAll(TimerAgree)
		d.agreement = agreement{}
		m.directivesChanged()
	}
}

// canAgree reports whether the round can agree on a directive: its members run, and none of
// them is about to stop its workers.
func (m *Machine) canAgree() bool {
	return m.closed == nil && m.stop == nil && m.overtaken == "" && m.tally[participantRunning] > 0
}

// settleDirective does what follows from the reports: it asks the members of a round that can
// agree, ends the agreement, and carries the directive out when all have saved.
func (m *Machine) settleDirective() {
	d := m.standing
	if d == nil {
		return
	}
	switch canAgree := m.canAgree(); {
	case m.allSaved(d):
		m.carryOut(d, "all have saved")
	case d.phase == phaseWaiting && canAgree:
		m.ask(d)
	case d.phase == phaseAsking && !canAgree:
		d.phase = phaseGivenUp
		m.out.stopAll(TimerAgree)
		m.directivesChanged()
	case d.phase == phaseAsking && m.all(&d.held):
		m.agree(d, d.step)
	}
}

// all reports whether all running members are in a set, and each member is accounted for.
func (m *Machine) all(r *ranks) bool {
	n := m.tally[participantRunning]
	return n > 0 && r.running == n && m.tally[participantUnknown] == 0
}

// allSaved reports whether a directive is agreed and all members have saved. Of a round that has
// lost a member, or regroups, not all can have: the next one agrees again.
func (m *Machine) allSaved(d *directive) bool {
	return d.phase == phaseAgreed && m.tally[participantLost]+m.tally[participantRejoined] == 0 && m.all(&d.saved)
}

// ask asks the members at which step they hold their workers.
func (m *Machine) ask(d *directive) {
	d.agreement = agreement{phase: phaseAsking, step: -1}
	m.out.set(agreeTimer(d.ID), d.agreeTime())
	m.directivesChanged()
}

// agreeTime is how long the members may take to say where they hold their workers.
func (d *directive) agreeTime() time.Duration { return min(agreeTime, (d.Within+1)/2) }

// agree ends the agreement: the step is the one for this round, and there is no other.
func (m *Machine) agree(d *directive, step int64) {
	m.out.stopAll(TimerAgree)
	m.directivesChanged()
	d.phase, d.step = phaseAgreed, step
	if step >= 0 {
		m.out.note("directive %s: the workers of round %d are told at step %d", d.ID, m.round, step)
	} else {
		m.out.note("directive %s: the workers of round %d are told at once", d.ID, m.round)
	}
}

// agreeTimePassed goes on without an agreed step: what a silent member's workers do is not
// known, so that no step is the same for all.
func (m *Machine) agreeTimePassed() {
	d := m.standing
	if d == nil || d.phase != phaseAsking {
		return
	}
	m.out.note("directive %s: no step is agreed: %v passed without an answer of %s", d.ID, d.agreeTime(), m.namesWithout(&d.held))
	m.agree(d, -1)
}

// reportDirective records what a member says of a directive.
func (m *Machine) reportDirective(n *node, ev ReportDirective) {
	if ev.Round == m.round && ev.Generation == m.origin && !m.disowned() {
		m.applyReport(n, DirectiveReport{ID: ev.ID, Step: ev.Step, Saved: ev.Saved})
	}
}

// applyReports records what the node of a hello says that it has reported in its last round.
func (m *Machine) applyReports(n *node, c LastRound) {
	if c.Round != m.round || c.Generation != m.origin || m.disowned() {
		return
	}
	if d := m.standing; d != nil && d.phase == phaseWaiting && m.canAgree() {
		m.ask(d) // the first member that comes to a successor answers what it has not asked yet
	}
	for _, r := range c.Reports {
		m.applyReport(n, r)
	}
}

// applyReport records a report of the running round.
func (m *Machine) applyReport(n *node, r DirectiveReport) {
	s, d := m.participantOf(n), m.standingAs(r.ID)
	if s == nil || s.state != participantRunning || d == nil || r.Step < -1 {
		return
	}
	switch {
	case d.phase == phaseAsking && !r.Saved && !d.held.contains(s.rank):
		d.held.add(s.rank)
		d.step = max(d.step, r.Step)
	case d.phase == phaseAgreed && r.Saved:
		d.saved.add(s.rank)
	}
}

// namesWithout names running members that are not in a set.
func (m *Machine) namesWithout(r *ranks) string {
	return nameSome(m.missingOf(r), m.awaited()-r.running)
}

// nameSome lists the first of so many names.
func nameSome(names []string, all int) string {
	if more := all - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// missingOf names some of the members that are not in a set and belong into it.
func (m *Machine) missingOf(r *ranks) (names []string) {
	for _, s := range m.participants {
		if (s.state == participantRunning || s.state == participantUnknown) && !r.contains(s.rank) {
			if names = append(names, s.name()); len(names) == maxNames {
				break
			}
		}
	}
	return names
}

// agreementStatus says how far a directive is in the running round.
func (m *Machine) agreementStatus(d *directive, s *DirectiveStatus) {
	s.Members = m.awaited()
	switch d.phase {
	case phaseAsking:
		s.Phase, s.Round, s.Missing = DirectiveAgreeing, m.round, m.missingOf(&d.held)
	case phaseAgreed:
		s.Phase, s.Round, s.Step = DirectiveAgreed, m.round, d.step
		s.Saved, s.Missing = d.saved.running, m.missingOf(&d.saved)
	}
}

// DirectiveNotice is the directive that stands, as a node is to know of it. It is
// level-triggered: one that is not in the notice any more needs no workers to be held. What was
// agreed reaches the workers of its round at its step, also if it is canceled, replaced or over
// by then, so that no worker is left out.
type DirectiveNotice struct {
	ID     string        // "": none stands
	Kind   DirectiveKind //
	Named  bool          // this node leaves, or the run ends
	Text   string        // what it asks for, by whom, why; human-readable
	Within time.Duration // from when it was given to its deadline

	// Round is the one whose members hold their workers and report (ReportDirective), or
	// have agreed, if this node is a running one of them; else 0: nothing is asked of it.
	Round  uint64
	Agreed bool  // Step is decided; there is one for each directive and round
	Step   int64 // each worker gets it at its first report of this step, or of a later one; -1: at once
	Target int   // of a scale

	By     string // who asked for it
	Reason string
}

// said is what the directive asks for, in words: the same for all nodes.
func (d *directive) said() string {
	if d.text == "" {
		d.text = d.describe()
	}
	return d.text
}

// directiveFor is that directive as a node is to see it.
func (m *Machine) directiveFor(n *node) DirectiveNotice {
	d := m.standing
	if d == nil || n.ended {
		return DirectiveNotice{}
	}
	v := DirectiveNotice{ID: d.ID, Kind: d.Kind, Named: d.names(n), Text: d.said(), Within: d.Within, Target: d.Target, By: d.By, Reason: d.Reason}
	s := m.participantOf(n)
	if s == nil || s.state != participantRunning {
		return v
	}
	switch d.phase {
	case phaseAsking:
		v.Round = m.round
	case phaseAgreed:
		v.Round, v.Agreed, v.Step = m.round, true, d.step
	}
	return v
}
