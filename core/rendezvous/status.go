package rendezvous

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"rallypoint/internal/wording"
)

// Status is what a run looks like to people and programs. The driver adds what
// only it knows: ages and the history.
type Status struct {
	RunID      string
	Generation string
	Round      uint64 // last completed; 0: none yet
	Origin     string // generation in which that was completed
	Store      string // HOST:PORT of its store; "": not known
	Phase      Phase
	Policy     Policy
	Members    []MemberStatus    // of the last round, by rank
	Waiting    []JoinStatus      // pending joins, in the order in which they would be seated
	Idle       []IdleStatus      // live nodes that are neither, by id
	Lack       int               // nodes that the forming round lacks for min; 0 in other phases
	LackFull   int               // the same for the target of the last scale; without one for target, or for max
	Missing    string            // who or how many the forming round lacks; "" in other phases
	NotStarted string            // why no round has been completed, in one sentence; "" unless one is being formed
	Closed     *ClosedStatus     // nil while the run is open
	Restarting bool              // workers of the last round failed, and the next one is not complete
	Stopping   string            // who announced the stop of the last round, and why; "" if none is announced
	Directives []DirectiveStatus // that stand, in the order in which they were given
	Drained    []DrainedStatus   // nodes that are not admitted, by id
	ScaledTo   int               // the number of nodes that the last scale has asked for; 0: none has
}

// Phase is where a run stands.
type Phase string

// The phases.
const (
	PhaseEmpty     Phase = "empty"     // no node has joined
	PhaseForming   Phase = "forming"   // a round is being formed
	PhaseRunning   Phase = "running"   // a round runs
	PhaseRegroup   Phase = "regroup"   // members rejoin
	PhaseFinishing Phase = "finishing" // members have finished, no node is admitted
	PhaseClosed    Phase = "closed"
)

// Phases are all phases, in the order of a run's life.
var Phases = []Phase{PhaseEmpty, PhaseForming, PhaseRunning, PhaseRegroup, PhaseFinishing, PhaseClosed}

// MemberStatus is one member of the last round.
type MemberStatus struct {
	Rank      int
	Name      string // what texts call it
	Node      string // "" for a member of an earlier control plane that has not returned
	Label     string
	Topology  string // its domain; "": none
	Addr      string
	Session   SessionID // zero unless the node is alive
	State     string    // running, unknown, rejoined, finished or lost
	Cause     string    // why it was lost
	Host      bool      // its process hosts the control plane
	Reconnect bool      // its connection broke and its grace runs
}

// JoinStatus is one pending join.
type JoinStatus struct {
	Name      string // what texts call it
	Node      string
	Label     string
	Topology  string // its domain; "": none
	Addr      string
	Session   SessionID
	NodeRank  int  // preferred; -1: none
	Member    bool // of the last round
	Spare     bool // the running round has no place for it
	Reconnect bool // its connection broke and its grace runs
}

// IdleStatus is a live node that is no member of the last round and does not ask
// for a place.
type IdleStatus struct {
	Name      string // what texts call it
	Node      string
	Label     string
	Topology  string // its domain; "": none
	Addr      string
	Session   SessionID
	Reason    string // why it has no place any more; "" if it never had one
	Reconnect bool   // its connection broke and its grace runs
}

// ClosedStatus is who closed a run, when and why.
type ClosedStatus struct {
	How    string // "closed", "ended successfully", "failed" or "stopped to be queued again"
	Did    string // the same after a subject: "was closed"
	By     string
	Reason string
	At     time.Time
}

var participantStateNames = [participantStates]string{"running", "unknown", "rejoined", "finished", "lost"}

// Status describes the run. It costs O(n log n) for n nodes.
func (m *Machine) Status() Status {
	s := Status{RunID: m.runID, Generation: m.generation, Round: m.round.number, Origin: m.round.origin, Store: m.round.store, Phase: m.phase(), Policy: m.forming.policy}
	for _, member := range m.round.participants {
		ms := MemberStatus{Rank: member.rank, Name: m.names.ofMember(member), Node: member.node, Label: member.label, Topology: member.domain, State: participantStateNames[member.state], Cause: member.cause, Host: member.host}
		if n := m.nodes.live[member.node]; n != nil && m.round.participantOf(n) == member {
			ms.Label, ms.Addr, ms.Session, ms.Reconnect = n.label, n.seenAddr, n.session, n.grace
		}
		s.Members = append(s.Members, ms)
	}
	forming := s.Phase.Forming()
	for i, n := range m.forming.candidates() {
		s.Waiting = append(s.Waiting, JoinStatus{
			Name: m.names.of(n.id), Node: n.id, Label: n.label, Topology: n.domain, Addr: n.seenAddr, Session: n.session, NodeRank: n.join.NodeRank,
			Member: m.round.participantOf(n) != nil, Reconnect: n.grace,
			Spare: forming && i >= m.forming.places() || !forming && !m.forming.admits(),
		})
	}
	for _, n := range m.nodes.live {
		if n.join == nil && m.round.participantOf(n) == nil {
			s.Idle = append(s.Idle, IdleStatus{m.names.of(n.id), n.id, n.label, n.domain, n.seenAddr, n.session, n.stale, n.grace})
		}
	}
	slices.SortFunc(s.Idle, func(a, b IdleStatus) int { return strings.Compare(a.Node, b.Node) })
	if forming {
		c := m.Census()
		s.Lack, s.LackFull = c.Lack, c.LackFull
		s.Missing = m.forming.missing()
	}
	s.NotStarted = m.notStarted()
	s.Directives, s.Drained = m.directives.status()
	s.ScaledTo = m.forming.target
	if m.round.stop != nil {
		s.Stopping, s.Restarting = m.round.stopReason(), !m.round.stop.leaving
	}
	if c := m.closed; c != nil {
		s.Closed = &ClosedStatus{How: c.how(), Did: c.did(), By: c.By, Reason: c.Reason, At: c.At}
	}
	return s
}

// Forming reports whether a round is being formed.
func (p Phase) Forming() bool { return p == PhaseForming || p == PhaseRegroup }

func (m *Machine) phase() Phase {
	switch {
	case m.closed != nil:
		return PhaseClosed
	case m.round.finishing():
		return PhaseFinishing
	case m.round.tally[participantRejoined] > 0:
		return PhaseRegroup
	case m.round.live() > 0:
		return PhaseRunning
	case m.forming.joined.nodes > 0:
		return PhaseForming
	}
	return PhaseEmpty
}

// notStarted says what keeps the next round from being completed.
func (m *Machine) notStarted() string {
	switch m.phase() {
	case PhaseEmpty:
		if len(m.nodes.live) == 0 {
			return "no node is here"
		}
		return fmt.Sprintf("no node has asked for a place; %s connected", wording.Count(len(m.nodes.live), "node is", "nodes are"))
	case PhaseForming, PhaseRegroup:
		if text := m.forming.mismatch.text; text != "" {
			return m.forming.notComplete() + "; " + text
		}
		return m.forming.notComplete()
	}
	return ""
}

// Census is how many nodes a run has in which state. It costs O(1).
type Census struct {
	Phase    Phase
	Round    uint64 // last completed
	Live     int    // nodes that are alive
	Running  int    // members of the last round whose workers run
	Unknown  int    // members of an earlier control plane that have not returned
	Rejoined int    // members that wait for the next round
	Finished int
	Lost     int
	Waiting  int         // pending joins of others that the next round would take
	Spare    int         // pending joins that it would not
	Idle     int         // live, but neither running nor waiting: finished members that await their peers too
	Lack     int         // nodes that the forming round lacks for min
	Out      [causes]int // entries of nodes that are kept out, by DrainCause
	LackFull int         // the same for the target of the last scale; without one for target, or for max
	Ended    string      // how it was closed, as in ClosedStatus; "" while it is open
}

// Census counts the nodes.
func (m *Machine) Census() Census {
	c := Census{
		Phase: m.phase(), Round: m.round.number, Live: len(m.nodes.live),
		Running: m.round.tally[participantRunning], Unknown: m.round.tally[participantUnknown], Rejoined: m.round.tally[participantRejoined],
		Finished: m.round.tally[participantFinished], Lost: m.round.tally[participantLost],
	}
	for _, row := range m.directives.drained {
		if row.cause >= 0 && row.cause < causes { // else of a later release
			c.Out[row.cause]++
		}
	}
	others := m.forming.joined.nodes - c.Rejoined
	switch {
	case c.Phase.Forming():
		c.Waiting = max(0, min(others, m.forming.places()-c.Rejoined))
		c.Lack, c.LackFull = m.forming.lack(), m.forming.lackFull()
	case m.forming.admits():
		c.Waiting = others
	}
	c.Spare = others - c.Waiting
	if m.closed != nil {
		c.Ended = m.closed.how()
	}
	// A finished member may still be here.
	c.Idle = max(0, len(m.nodes.live)-m.round.live()+c.Unknown-others)
	return c
}

// nodeTexts describes live nodes.
func nodeTexts(was *Status, ids []string) (who string) {
	for i, id := range ids {
		if i > 0 {
			who = strings.TrimSuffix(who, ",") + "; "
		}
		text, _ := findNode(was, id)
		who += text
	}
	return who
}

// findNode describes a live node; the error names those that there are.
func findNode(s *Status, node string) (string, *Error) {
	var alive []string
	cause := ""
	for _, m := range s.Members {
		switch {
		case m.Node == node && m.Session != "":
			return fmt.Sprintf("node %s, rank %d of round %d,", m.Name, m.Rank, s.Round), nil
		case m.Node == node && m.Cause != "":
			cause = fmt.Sprintf(": rank %d of round %d, %s", m.Rank, s.Round, m.Cause)
		case m.Session != "":
			alive = append(alive, m.Name)
		}
	}
	for _, j := range s.Waiting {
		if j.Node == node {
			return fmt.Sprintf("node %s, which waited for a place,", j.Name), nil
		}
		if !j.Member {
			alive = append(alive, j.Name)
		}
	}
	for _, i := range s.Idle {
		if i.Node == node {
			return "node " + i.Name, nil
		}
		alive = append(alive, i.Name)
	}
	there := "none is"
	if len(alive) > 0 {
		slices.Sort(alive)
		there = "alive: " + wording.Names(alive)
	}
	if cause != "" {
		return "", Errorf(CodeInvalid, "node %q of run %q is not alive any more%s; %s", node, s.RunID, cause, there)
	}
	return "", Errorf(CodeInvalid, "run %q has no live node %q; %s", s.RunID, node, there)
}

// finished returns a node of the run whose workers have succeeded; "" if there is none.
func finished(was *Status) string {
	for _, m := range was.Members {
		if m.State == "finished" {
			return m.Name
		}
	}
	return ""
}

// endsAsItIs is why nothing changes the nodes of a job any more.
func endsAsItIs(was *Status) string {
	return fmt.Sprintf("node %s has finished, so that the job ends with the nodes that it has", finished(was))
}
