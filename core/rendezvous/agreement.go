package rendezvous

import (
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

// agreement is what the members of the running round have said of the directive that stands.
// The zero value is that none was asked, or that none stands.
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

// count counts the reports of a member that begins (1) or ceases (-1) to run.
func (a *agreement) count(rank, by int) {
	a.held.count(rank, by)
	a.saved.count(rank, by)
}

func agreeTimer(id string) Timer { return Timer{Kind: TimerAgree, Session: SessionID(id)} }

// canAgree reports whether the round can agree on a directive: its members run, and none of
// them is about to stop its workers.
func (m *Machine) canAgree() bool {
	return m.closed == nil && m.round.stop == nil && m.round.overtaken == "" && m.round.tally[participantRunning] > 0
}

// settleDirective does what follows from the reports: it asks the members of a round that can
// agree, ends the agreement, and carries the directive out when all have saved.
func (m *Machine) settleDirective() {
	d := m.directives.standing
	if d == nil {
		return
	}
	switch canAgree := m.canAgree(); {
	case m.round.allSaved():
		m.carryOut(d, "all have saved")
	case m.round.agreement.phase == phaseWaiting && canAgree:
		m.directives.ask(d)
	case m.round.agreement.phase == phaseAsking && !canAgree:
		m.round.agreement.phase = phaseGivenUp
		m.out.stopAll(TimerAgree)
		m.directives.changed()
	case m.round.agreement.phase == phaseAsking && m.round.all(&m.round.agreement.held):
		m.directives.agree(d, m.round.agreement.step)
	}
}

// agreeTime is how long the members may take to say where they hold their workers.
func (d *directive) agreeTime() time.Duration { return min(agreeTime, (d.Within+1)/2) }

// reportDirective records what a member says of a directive.
func (m *Machine) reportDirective(n *node, ev ReportDirective) {
	if ev.Round == m.round.number && ev.Generation == m.round.origin && !m.round.disowned() {
		m.directives.report(n, DirectiveReport{ID: ev.ID, Step: ev.Step, Saved: ev.Saved})
	}
}

// applyReports records what the node of a hello says that it has reported in its last round.
func (m *Machine) applyReports(n *node, c LastRound) {
	if c.Round != m.round.number || c.Generation != m.round.origin || m.round.disowned() {
		return
	}
	if d := m.directives.standing; d != nil && m.round.agreement.phase == phaseWaiting && m.canAgree() {
		m.directives.ask(d) // the first member that comes to a successor answers what it has not asked yet
	}
	for _, r := range c.Reports {
		m.directives.report(n, r)
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
