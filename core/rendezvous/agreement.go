package rendezvous

import (
	"fmt"
	"slices"
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

// How long a directive waits for members at most.
const (
	agreeTime = 5 * time.Second // for the step at which each holds its workers
	turnTime  = 5 * time.Second // for those that have agreed on a save before it to do so
)

// agreement is what the members of the running round have said of a directive. The zero
// value is that none was asked.
type agreement struct {
	phase agreementPhase
	step  int64 // of those held so far, then what was agreed; -1: none reports steps
	held  ranks // that have reported a step
	saved ranks
	order uint64 // in which the directives of a round were agreed
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

func turnTimer(id string) Timer { return Timer{Kind: TimerTurn, Session: SessionID(id)} }

// countReports counts the reports of a member that begins (1) or ceases (-1) to run.
func (m *Machine) countReports(rank, by int) {
	for _, d := range m.directives {
		d.held.count(rank, by)
		d.saved.count(rank, by)
	}
}

// forgetAgreements drops what the members of a round have said when it is over: the next one
// agrees again.
func (m *Machine) forgetAgreements() {
	for _, d := range m.directives {
		if d.phase != phaseWaiting {
			m.stopTimer(agreeTimer(d.ID))
			d.agreement = agreement{}
			m.directivesChanged()
		}
	}
	m.endTurn()
}

func (m *Machine) endTurn() {
	m.turnDue = false
	for _, d := range m.directives {
		m.stopTimer(turnTimer(d.ID))
	}
}

// canAgree reports whether the round can agree on directives: its members run, and none of
// them is about to stop its workers.
func (m *Machine) canAgree() bool {
	return m.closed == nil && m.stop == nil && m.overtaken == "" && m.tally[participantRunning] > 0
}

// settleDirectives does what follows from the reports: one directive after the other is
// agreed, and those are carried out for which all have saved.
func (m *Machine) settleDirectives() {
	for {
		d := m.saved()
		if d == nil {
			break
		}
		m.carryOut(d, "all have saved")
	}
	if len(m.directives) == 0 {
		m.endTurn()
		return
	}
	canAgree := m.canAgree()
	if d := m.asking(); d != nil {
		switch {
		case !canAgree:
			d.phase = phaseGivenUp
			m.stopTimer(agreeTimer(d.ID))
			m.directivesChanged()
		case m.all(&d.held):
			m.agree(d, d.step)
		default:
			return
		}
	}
	if canAgree {
		m.askNext()
	}
}

// all reports whether all running members are in a set, and each member is accounted for.
func (m *Machine) all(r *ranks) bool {
	n := m.tally[participantRunning]
	return n > 0 && r.running == n && m.tally[participantUnknown] == 0
}

// saved is an agreed directive for which all members have saved; nil if there is none. Of a
// round that has lost a member, or regroups, not all can have: the next one agrees again.
func (m *Machine) saved() *directive {
	if m.tally[participantLost]+m.tally[participantRejoined] > 0 {
		return nil
	}
	for _, d := range m.directives {
		if d.phase == phaseAgreed && m.all(&d.saved) {
			return d
		}
	}
	return nil
}

// asking is the directive that members are asked about; nil if there is none.
func (m *Machine) asking() *directive {
	for _, d := range m.directives {
		if d.phase == phaseAsking {
			return d
		}
	}
	return nil
}

// askNext asks the members about the directive that has waited longest, once the ones
// before it are done or have had their time.
func (m *Machine) askNext() {
	at := slices.IndexFunc(m.directives, func(d *directive) bool { return d.phase == phaseWaiting })
	if at >= 0 && !m.turnDue && m.awaitTurns() {
		return
	}
	m.endTurn()
	if at < 0 {
		return
	}
	d := m.directives[at]
	d.agreement = agreement{phase: phaseAsking, step: -1}
	m.armTimer(agreeTimer(d.ID), d.agreeTime())
	m.directivesChanged()
}

// awaitTurns gives each directive that waits a time of its own to wait for those that are agreed
// and stand, and reports false if there are none of these. The first time that is over is the
// turn of the one that has waited longest: what is behind it has no time to lose.
func (m *Machine) awaitTurns() bool {
	agreed, ends, idle := false, false, false
	for _, d := range m.directives {
		if d.phase == phaseAgreed {
			agreed, idle = true, !ends && d.Kind.EndsRound()
			ends = ends || d.Kind.EndsRound()
		}
	}
	for _, d := range m.directives {
		if !agreed || d.phase != phaseWaiting {
			continue
		}
		wait := min(turnTime, d.Within/4)
		if idle { // the workers wait for the end of their round: to go on for another would lose steps
			wait = d.Within / 2
		}
		wait = max(1, wait)
		if running, armed := m.timers[turnTimer(d.ID)]; !armed || wait < running.after {
			m.armTimer(turnTimer(d.ID), wait)
		}
	}
	return agreed
}

// agreeTime is how long the members may take to say where they hold their workers.
func (d *directive) agreeTime() time.Duration { return min(agreeTime, (d.Within+1)/2) }

// agree ends the agreement: the step is the one for this round, and there is no other.
func (m *Machine) agree(d *directive, step int64) {
	m.stopTimer(agreeTimer(d.ID))
	m.directivesChanged()
	d.phase, d.step, d.order = phaseAgreed, step, m.directiveSeq
	if step >= 0 {
		m.note("directive %s: the workers of round %d are told at step %d", d.ID, m.round, step)
	} else {
		m.note("directive %s: the workers of round %d are told at once", d.ID, m.round)
	}
}

// agreeTimePassed goes on without an agreed step: what a silent member's workers do is not
// known, so that no step is the same for all.
func (m *Machine) agreeTimePassed(id string) {
	at := m.directive(id)
	if at < 0 || m.directives[at].phase != phaseAsking {
		return
	}
	d := m.directives[at]
	m.note("directive %s: no step is agreed: %v passed without an answer of %s", id, d.agreeTime(), m.namesWithout(&d.held))
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
	if m.canAgree() && m.asking() == nil {
		m.askNext() // the first member that comes to a successor answers what it has not asked yet
	}
	for _, r := range c.Reports {
		m.applyReport(n, r)
	}
}

// applyReport records a report of the running round.
func (m *Machine) applyReport(n *node, r DirectiveReport) {
	s, at := m.participantOf(n), m.directive(r.ID)
	if s == nil || s.state != participantRunning || at < 0 || r.Step < -1 {
		return
	}
	switch d := m.directives[at]; {
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

// DirectiveNotice is the directive that a node is to know of, of those that stand: the one
// that the running round's members are asked about; else the one on which they have agreed
// last; else the one that was given first. It is level-triggered: one that is not in the
// notice any more needs no workers to be held. What was agreed reaches the workers of its
// round at its step, also if it is canceled or over by then, so that no worker is left out.
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

// shownDirective is the one that nodes see in their notice; nil if none stands.
func (m *Machine) shownDirective() *directive {
	var shown *directive
	for _, d := range m.directives {
		switch {
		case d.phase == phaseAsking:
			return d
		case shown == nil, d.phase == phaseAgreed && d.order > shown.order:
			shown = d
		}
	}
	return shown
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
	d := m.shownDirective()
	if d == nil || n.ended {
		return DirectiveNotice{}
	}
	v := DirectiveNotice{ID: d.ID, Kind: d.Kind, Named: d.names(n.id), Text: d.said(), Within: d.Within, Target: d.Target, By: d.By, Reason: d.Reason}
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
