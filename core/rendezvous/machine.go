// Package rendezvous agrees on who takes part in a distributed job.
//
// [Machine] is the heart: one pure state machine per run, without clock,
// goroutine or I/O. Its driver (the hosted server, a shared log) feeds it events in
// one order and carries out the effects it returns; the twelve guarantees of
// docs/design.md are properties of this machine alone.
//
// One node's side, with the calls that an agent needs, is package core/member.
package rendezvous

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"rallypoint/internal/wording"
)

// StateVersion is the version of events and state. A log or snapshot written by
// a newer version is refused. What an older program would not read, or apply
// otherwise, needs a higher number.
const StateVersion = 7

// Config is what the driver knows about a run before its first node.
type Config struct {
	RunID      string
	Generation string // drawn at random: with a round's number it names that round, whatever becomes of the control plane
	// Uptime is how long the control plane has been listening, if its endpoint is
	// one that nodes of an earlier control plane may come back to; negative if not.
	Uptime time.Duration
	// Succession tells of the control plane that this one succeeds, if it does. Uptime is
	// not looked at then.
	Succession Succession
	Limits     Limits
}

// Machine is the state of one run. Apply it one event at a time; it is not safe
// for concurrent use.
type Machine struct {
	out        *output
	nodes      *nodes
	round      *round
	forming    *forming
	directives *directives

	runID      string
	generation string

	reserve string // generation to go on under if what was stored turns out to be old; "": none
	uptime  time.Duration

	succession Succession

	closed  *Closing
	keys    *agentStore // of the last round; nil: it has none yet
	limits  Limits
	waitSeq uint64 // orders the pending key waits

	viewed view // what the last updates were computed from
}

// New makes the state of a run that no node has joined yet.
func New(c Config) *Machine {
	uptime := c.Uptime
	if c.Succession.Term > 1 {
		uptime = 0 // it has not begun yet
	}
	out := &output{running: map[Timer]runningTimer{}}
	nodes, round := newNodes(out), newRound(out)
	forming := &forming{out: out, nodes: nodes, round: round}
	return &Machine{
		out:        out,
		nodes:      nodes,
		round:      round,
		forming:    forming,
		directives: &directives{out: out, nodes: nodes, round: round, forming: forming, drained: map[string]*drained{}},
		runID:      c.RunID,
		generation: c.Generation,
		uptime:     uptime,
		succession: c.Succession,
		limits:     c.Limits.withDefaults(),
	}
}

// Apply applies one event and returns what the driver must do, in order. The
// returned slice is the caller's.
func (m *Machine) Apply(ev Event) []Effect {
	r, ofNode := RequestOf(ev)
	if c, ok := ev.(CloseRun); ok && c.Session == "" {
		ofNode = false // an administrator's
	}
	if !ofNode {
		m.applyOther(ev)
	} else if n := m.take(r); n != nil {
		m.applyRequest(n, ev)
	}
	m.settle()
	return m.out.take()
}

// applyRequest applies a request of a node that take admits.
func (m *Machine) applyRequest(n *node, ev Event) {
	switch ev := ev.(type) {
	case Join:
		m.join(n, ev)
	case Withdraw:
		m.withdraw(n, ev)
	case Leave:
		m.leave(n, ev)
	case CloseRun:
		m.closeRun(ev)
		m.nodes.answer(n, ev.Number, nil)
	case Finish:
		m.finish(n)
		m.nodes.answer(n, ev.Number, nil)
	case AwaitPeers:
		if len(n.linger) == 0 {
			m.nodes.awaitingPeers = append(m.nodes.awaitingPeers, n)
		}
		m.nodes.addAwait(n, ev.Number)
	case KeyRequest:
		m.keyRequest(n, ev)
	case GiveDirective:
		if err := m.room(ev); err != nil {
			m.nodes.fail(n, ev.Number, err)
			break
		}
		m.giveDirective(n, ev)
	case ReportDirective:
		m.reportDirective(n, ev)
		m.nodes.answer(n, ev.Number, nil)
	case AnnounceStop:
		if err := m.announceStop(n, ev); err != nil {
			m.nodes.fail(n, ev.Number, err)
			break
		}
		m.nodes.answer(n, ev.Number, nil)
	default:
		panic(fmt.Sprintf("rendezvous: unknown request %T", ev))
	}
}

// applyOther applies an event that is no node's request.
func (m *Machine) applyOther(ev Event) {
	switch ev := ev.(type) {
	case Hello:
		m.hello(ev)
	case Disconnect:
		m.disconnect(ev)
	case LeaseExpired:
		if n := m.nodes.sessions[ev.Session]; n != nil && (ev.Heard == 0 || n.heard <= ev.Heard) {
			m.lose(n, fmt.Sprintf(causeSilent+"%v", m.forming.policy.LeaseTimeout))
		}
	case TimerFired:
		m.timerFired(ev.Timer)
	case Recovered:
		m.recovered(ev)
	case Ended:
		m.goOnClosed(ev)
	case Evict, CloseRun, Direct, CancelDirective, Cordon, Undrain, Forget:
		m.request(ev)
	default:
		panic(fmt.Sprintf("rendezvous: unknown event %T", ev))
	}
}

// settle brings everything that follows from the state up to date.
func (m *Machine) settle() {
	m.settleDirective()
	if m.closed == nil {
		m.endIfAllFinished()
	}
	if m.closed == nil {
		if m.forming.evaluate() {
			m.complete()
		} else if m.round.finishing() {
			m.refuseRejoined()
		}
		m.endIfAllFinished() // the last members may have been refused a regroup
	}
	m.settleDirective() // of a round that was completed
	m.settleExitBarrier()
	m.settleAwaitPeers()
	m.settleViews()
}

// Alive is a request by which a session only shows that it lives: it counts as heard, changes
// nothing and has neither a number nor an answer. Of a session that is not known it is nothing.
func Alive(session SessionID) Event { return Withdraw{Request: Request{Session: session}} }

// Round returns the number of the last completed round, 0 if there is none.
func (m *Machine) Round() uint64 { return m.round.number }

// Generation returns what the control plane's rounds are named by, beside their
// numbers.
func (m *Machine) Generation() string { return m.generation }

// Live returns the number of nodes that are alive.
func (m *Machine) Live() int { return len(m.nodes.live) }

// Has reports whether the session is known.
func (m *Machine) Has(session SessionID) bool { return m.nodes.sessions[session] != nil }

// Heard returns how many hellos and requests of the session were applied, repeated ones
// included; 0 if it is not known.
func (m *Machine) Heard(session SessionID) uint64 {
	if n := m.nodes.sessions[session]; n != nil {
		return n.heard
	}
	return 0
}

// HasNode reports whether a node of that id is alive.
func (m *Machine) HasNode(id string) bool { return m.nodes.live[id] != nil }

// Policy returns what the run's nodes have agreed on; zero before the first.
func (m *Machine) Policy() Policy { return m.forming.policy }

// Timers returns the running timers as the effects that set them, oldest first. A
// driver of a restored machine executes them: each timer runs for
// its whole time once more, since how much of it had passed is not known.
func (m *Machine) Timers() []SetTimer { return m.out.timers() }

// recovered gives every node one lease, or what the event says, to come back.
func (m *Machine) recovered(ev Recovered) {
	m.round.stored, m.reserve = true, ev.Generation
	grace := cmp.Or(ev.Grace, m.forming.policy.LeaseTimeout)
	if len(m.nodes.live) > 0 {
		m.out.note("the control plane was restarted and knows %s %v to come back",
			wording.Count(len(m.nodes.live), "node, which has", "nodes, which have"), grace)
	}
	for _, session := range slices.Sorted(maps.Keys(m.nodes.sessions)) {
		n := m.nodes.sessions[session]
		m.setGrace(n, false)
		m.beginGrace(n, grace)
		n.recovering = true
	}
}

func (m *Machine) timerFired(t Timer) {
	if !m.out.fired(t) {
		return
	}
	switch t.Kind { // nothing follows from TimerClosed: see Kept
	case TimerLastCall:
		m.forming.lastCall.due = true
	case TimerQuiet:
		m.forming.quiet.due = true
	case TimerRegroup:
		m.forming.regroup.due = true
	case TimerAdmit:
		m.forming.admit.due = true
	case TimerHold:
		m.endHold()
	case TimerDirective:
		m.deadlinePassed()
	case TimerAgree:
		m.directives.agreeTimePassed()
	case TimerDrained:
		m.directives.undrain(string(t.Session), "its time is over")
	case TimerGrace:
		if n := m.nodes.sessions[t.Session]; n != nil && n.grace {
			m.lose(n, n.graceCause())
		}
	}
}
