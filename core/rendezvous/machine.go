// Package rendezvous agrees on who takes part in a distributed job.
//
// [Machine] is the heart: one pure state machine per run, without clock,
// goroutine or I/O. Its driver (core/control) feeds it events in
// one order and carries out the effects it returns; the twelve guarantees of
// docs/design.md are properties of this machine alone. Its state is six types, each with
// pointers to those below it only: run, nodes, round, forming, directives and agentStore. The
// files stand in floors, too: a file uses those below it, and apply.go is on top.
//
// One node's side, with the calls that an agent needs, is package core/member.
package rendezvous

import (
	"slices"
	"strings"
	"time"
)

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

// Machine is the state of one run, and does what takes several of its parts. Apply it one event
// at a time; it is not safe for concurrent use.
type Machine struct {
	*run
	out        *output
	names      *names
	nodes      *nodes
	round      *round
	forming    *forming
	directives *directives

	reserve string // generation of the next round, since the state was restored; "": none
	uptime  time.Duration

	keys   *agentStore // of the last round; nil: it has none yet
	limits Limits

	viewed view // what the last updates were computed from
}

// New makes the state of a run that no node has joined yet.
func New(c Config) *Machine {
	uptime := c.Uptime
	if c.Succession.Term > 1 {
		uptime = 0 // it has not begun yet
	}
	out := &output{running: map[Timer]runningTimer{}}
	names, run := newNames(), &run{out: out, runID: c.RunID, generation: c.Generation, succession: c.Succession}
	nodes, round := newNodes(out, names, run), newRound(out, names, run)
	forming := &forming{out: out, nodes: nodes, round: round}
	return &Machine{
		run:        run,
		out:        out,
		names:      names,
		nodes:      nodes,
		round:      round,
		forming:    forming,
		directives: &directives{out: out, nodes: nodes, round: round, forming: forming, drained: map[string]*DrainedFact{}},
		uptime:     uptime,
		limits:     c.Limits.withDefaults(),
	}
}

// Round returns the number of the last completed round, 0 if there is none.
func (m *Machine) Round() uint64 { return m.round.number }

// NameOf is what texts call a node.
func (m *Machine) NameOf(id string) string { return m.names.of(id) }

// Generation returns what the control plane's rounds are named by, beside their
// numbers.
func (m *Machine) Generation() string { return m.generation }

// Live returns the number of nodes that are alive.
func (m *Machine) Live() int { return len(m.nodes.live) }

// Has reports whether the session is known.
func (m *Machine) Has(session SessionID) bool { return m.nodes.sessions[session] != nil }

// HasNode reports whether a node of that id is alive.
func (m *Machine) HasNode(id string) bool { return m.nodes.live[id] != nil }

// Policy returns what the run's nodes have agreed on; zero before the first.
func (m *Machine) Policy() Policy { return m.forming.policy }

// Timers returns the running timers as the effects that set them, oldest first. A
// driver of a restored machine executes them: each timer runs for
// its whole time once more, since how much of it had passed is not known.
func (m *Machine) Timers() []SetTimer { return m.out.timers() }

// causeSilent begins the cause of a node's loss whose lease has run out.
const causeSilent = "lost: not heard of for "

// Awaits reports whether a member of the last round is taken for lost by its silence
// alone, and may come back: to continue, or to learn that the run has ended.
func (m *Machine) Awaits() bool {
	return slices.ContainsFunc(m.round.participants, func(s *participant) bool {
		return s.state == participantLost && strings.HasPrefix(s.cause, causeSilent)
	})
}

// Begun reports whether the run has had a round, was closed, or was asked for something: a
// node that comes to it must find it as it is.
func (m *Machine) Begun() bool {
	return m.round.highest() > 0 || m.closed != nil || m.directives.standing != nil || len(m.directives.past)+len(m.directives.drained) > 0
}

// view is what the updates of running members follow from. Updates are computed
// only when it changes, so that an event costs no work per member.
type view struct {
	waiting bool
	only    bool // because of lost members alone
	planned bool // because the job grows or shrinks
	closed  ClosedKind
	round   uint64
	stop    bool // a stop is announced
	lost    bool // and a member is lost

	generation    string
	host          int
	finished      bool
	finishedHosts int  // how many
	domains       bool // of the round's segments are told

	directives uint64 // last change of what nodes learn of them
}
