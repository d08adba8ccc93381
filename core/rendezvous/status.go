package rendezvous

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"rallypoint/internal/wording"
)

// Status is what the machine knows of a run and its nodes. The document of GET /status has all of
// it, by these names (docs/status.md), and a server adds what only it knows. Lists are never nil.
type Status struct {
	RunStatus
	Members []MemberStatus  // of the last round, by rank
	Waiting []WaitingStatus // pending joins, in the order in which they would be seated
	Idle    []IdleStatus    // live nodes that are neither, by id
}

// RunStatus is a run without its nodes.
type RunStatus struct {
	RunID           string            `json:"run_id"`
	Generation      string            `json:"generation"`
	Phase           Phase             `json:"phase"`
	State           string            `json:"state"` // the phase, or what tells more of it: restarting after a failure, or stalled as its nodes report it
	Nodes           NodeRange         `json:"nodes"`
	LeaseTimeoutS   float64           `json:"lease_timeout_s"`
	Round           uint64            `json:"round"`            // last completed; 0: none
	RoundGeneration string            `json:"round_generation"` // that completed the round: a takeover keeps it
	RoundStore      string            `json:"round_store"`      // its store's HOST:PORT; "": not known
	NotStarted      string            `json:"not_started"`      // why no round has been completed, in one sentence; "" unless one is forming
	Missing         Missing           `json:"missing"`
	Below           Below             `json:"below"`
	Finished        []string          `json:"finished"` // members, by id
	Counts          CountsStatus      `json:"counts"`   // of the nodes, also where their lists are left out
	Closed          *ClosedStatus     `json:"closed"`   // null: open
	Directives      []DirectiveStatus `json:"directives"`
	Drained         []DrainedStatus   `json:"drained"`   // nodes that are not admitted, by id
	ScaledTo        int               `json:"scaled_to"` // nodes that the last scale has asked for; 0: none has
	Stopping        string            `json:"stopping"`  // who announced the stop of the last round, and why; "": no node has
}

// NodeRange is how many nodes a round may have.
type NodeRange struct {
	Min     int `json:"min"` // all 0: no node was here yet
	Max     int `json:"max"`
	Unit    int `json:"unit"`
	Target  int `json:"target"`  // 0: max
	Segment int `json:"segment"` // so many consecutive ranks are on nodes of one topology domain
}

// Missing is what the forming round lacks; all zero if none is formed.
type Missing struct {
	Min    int    `json:"min"`    // nodes to min
	Target int    `json:"target"` // nodes to the target of the last scale; without one to target, or to max
	Who    string `json:"who"`    // names or node ranks where they are known
}

// Below is what a running round lacks; all zero if one is formed.
type Below struct {
	Nodes int    `json:"nodes"` // to the target of the last scale; without one to target, or to max
	Who   string `json:"who"`   // names of some that were members and were lost, where this control plane has seen it
}

// CountsStatus counts the nodes of a run.
type CountsStatus struct {
	Running   int `json:"running"` // members of the last round, by state
	Unknown   int `json:"unknown"`
	Rejoined  int `json:"rejoined"`
	Finished  int `json:"finished"`
	Lost      int `json:"lost"`
	Newcomers int `json:"newcomers"` // that wait for a place
	Spares    int `json:"spares"`
	Idle      int `json:"idle"`
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

// NodeStatus is what a member, a waiting node and an idle one have in common.
type NodeStatus struct {
	Name         string    `json:"name"` // what texts call it: its machine, or the id where nodes share that
	Node         string    `json:"node"` // "" for a member of an earlier control plane that has not returned
	Label        string    `json:"label"`
	Address      string    `json:"address"`
	Topology     string    `json:"topology"`     // its domain; "": none
	Reconnecting bool      `json:"reconnecting"` // its connection broke and its grace runs
	Session      SessionID `json:"-"`            // "" unless the node is alive
}

// MemberStatus is one member of the last round.
type MemberStatus struct {
	Rank int `json:"rank"`
	NodeStatus
	Alive bool   `json:"alive"`
	State string `json:"state"` // running, unknown, rejoined, finished or lost
	Cause string `json:"cause"` // why it was lost
	Host  bool   `json:"host"`  // its process hosts the control plane
}

// WaitingStatus is one pending join.
type WaitingStatus struct {
	NodeStatus
	Role     string `json:"role"`
	NodeRank int    `json:"node_rank"` // that it asks for; -1: any
}

// The roles of waiting nodes.
const (
	RoleMember   = "member" // of the last round
	RoleNewcomer = "newcomer"
	RoleSpare    = "spare" // the round has no place for it
)

// IdleStatus is a live node that is no member of the last round and does not ask
// for a place.
type IdleStatus struct {
	NodeStatus
	Reason string `json:"reason"` // why it has no place any more; "" if it never had one
}

// ClosedStatus is who closed a run, when and why.
type ClosedStatus struct {
	How    string     `json:"how"` // closed, ended successfully, failed or stopped to be queued again
	By     string     `json:"by"`
	Reason string     `json:"reason"`
	At     *time.Time `json:"at"` // by the clock of the process that closed it
}

var participantStateNames = [participantStates]string{"running", "unknown", "rejoined", "finished", "lost"}

// Status describes the run. It costs O(n log n) for n nodes.
func (m *Machine) Status() Status {
	p, tally, forming := &m.forming.policy, &m.round.tally, m.forming.phase().Forming()
	s := Status{
		RunStatus: RunStatus{
			RunID: m.runID, Generation: m.generation, Phase: m.forming.phase(), State: string(m.forming.phase()),
			Nodes:         NodeRange{p.Min, p.Max, p.NodeUnit, p.Target, max(p.Segment, min(p.Max, 1))},
			LeaseTimeoutS: StatusSeconds(p.LeaseTimeout),
			Round:         m.round.number, RoundGeneration: m.round.origin, RoundStore: m.round.store,
			NotStarted: m.forming.notStarted(), Finished: []string{}, ScaledTo: m.forming.target,
			Counts: CountsStatus{
				Running: tally[participantRunning], Unknown: tally[participantUnknown], Rejoined: tally[participantRejoined],
				Finished: tally[participantFinished], Lost: tally[participantLost],
			},
		},
		Members: make([]MemberStatus, 0, len(m.round.participants)), Waiting: []WaitingStatus{}, Idle: []IdleStatus{},
	}
	for _, member := range m.round.participants {
		ms := MemberStatus{
			Rank: member.rank, State: participantStateNames[member.state], Cause: member.cause, Host: member.host,
			NodeStatus: NodeStatus{Name: m.names.ofMember(member), Node: member.node, Label: member.label, Topology: member.domain},
		}
		if n := m.nodes.live[member.node]; n != nil && m.round.participantOf(n) == member {
			ms.Label, ms.Address, ms.Session, ms.Reconnecting, ms.Alive = n.label, n.seenAddr, n.session, n.grace, true
		}
		if member.state == participantFinished {
			s.Finished = append(s.Finished, member.node)
		}
		s.Members = append(s.Members, ms)
	}
	for i, n := range m.forming.candidates() {
		w := WaitingStatus{m.nodes.status(n), RoleNewcomer, n.join.NodeRank}
		switch {
		case m.round.participantOf(n) != nil:
			w.Role = RoleMember
		case forming && i >= m.forming.places(), !forming && !m.forming.admits():
			w.Role = RoleSpare
			s.Counts.Spares++
		default:
			s.Counts.Newcomers++
		}
		s.Waiting = append(s.Waiting, w)
	}
	for _, n := range m.nodes.live {
		if n.join == nil && m.round.participantOf(n) == nil {
			s.Idle = append(s.Idle, IdleStatus{m.nodes.status(n), n.stale})
		}
	}
	slices.SortFunc(s.Idle, func(a, b IdleStatus) int { return strings.Compare(a.Node, b.Node) })
	s.Counts.Idle = len(s.Idle)
	if forming {
		s.Missing = Missing{m.forming.lack(), m.forming.lackFull(), m.forming.missing()}
	}
	if s.Phase == PhaseRunning {
		s.Below = m.below()
	}
	s.Directives, s.Drained = m.directives.status()
	if m.round.stop != nil {
		s.Stopping = m.round.stopReason()
		if !m.round.stop.Leaving && (s.Phase == PhaseRunning || s.Phase == PhaseRegroup) {
			s.State = "restarting"
		}
	}
	if c := m.closed; c != nil {
		s.Closed = &ClosedStatus{c.how(), c.By, c.Reason, StatusTime(c.At)}
	}
	return s
}

// below says what the running round lacks.
func (m *Machine) below() Below {
	lack := max(0, m.forming.enough()-len(m.round.participants))
	absent := m.round.absent[max(0, len(m.round.absent)-lack):]
	if len(absent) == 0 {
		return Below{Nodes: lack}
	}
	return Below{lack, nameSome(slices.Clone(absent[:min(len(absent), maxAbsentShown)]), len(absent))}
}

func (ns *nodes) status(n *node) NodeStatus {
	return NodeStatus{ns.names.of(n.id), n.id, n.label, n.seenAddr, n.domain, n.grace, n.session}
}

// status lists what stands, and the drained nodes by id.
func (ds *directives) status() (standing []DirectiveStatus, away []DrainedStatus) {
	standing, away = []DirectiveStatus{}, []DrainedStatus{}
	if d := ds.standing; d != nil {
		s := DirectiveStatus{
			ID: d.ID, Kind: d.Kind.String(), Nodes: append([]string{}, d.Nodes...), WithinS: StatusSeconds(d.Within), At: d.At, By: d.By, Reason: d.Reason,
			Target: d.Target, Phase: DirectiveWaiting, Missing: []string{},
		}
		if ds.round.agreement.phase != phaseWaiting {
			ds.agreementStatus(&s)
		}
		standing = append(standing, s)
	}
	for _, node := range slices.Sorted(maps.Keys(ds.drained)) {
		row := ds.drained[node]
		away = append(away, DrainedStatus{row.Node, row.By, row.Reason, row.Cause.String(), row.Cordoned})
	}
	return standing, away
}

func (ds *directives) agreementStatus(s *DirectiveStatus) {
	s.Members = ds.round.awaited()
	switch a := &ds.round.agreement; a.phase {
	case phaseAsking:
		s.Phase, s.Round, s.Missing = DirectiveAgreeing, ds.round.number, ds.round.missingOf(&a.held)
	case phaseAgreed:
		s.Phase, s.Round, s.Saved, s.Missing = DirectiveAgreed, ds.round.number, a.saved.running, ds.round.missingOf(&a.saved)
		if a.step >= 0 {
			s.Step = new(a.step)
		}
	}
}

// StatusSeconds is a duration in seconds, rounded to a millisecond, as statuses have it.
func StatusSeconds(d time.Duration) float64 { return math.Round(d.Seconds()*1000) / 1000 }

// StatusTime is a time in UTC, rounded to a millisecond, as statuses have it; nil for none.
func StatusTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return new(t.UTC().Round(time.Millisecond))
}

// Forming reports whether a round is being formed.
func (p Phase) Forming() bool { return p == PhaseForming || p == PhaseRegroup }

func (f *forming) phase() Phase {
	switch {
	case f.round.run.closed != nil:
		return PhaseClosed
	case f.round.finishing():
		return PhaseFinishing
	case f.round.tally[participantRejoined] > 0:
		return PhaseRegroup
	case f.round.live() > 0:
		return PhaseRunning
	case f.joined.nodes > 0:
		return PhaseForming
	}
	return PhaseEmpty
}

// notStarted says what keeps the next round from being completed.
func (f *forming) notStarted() string {
	switch f.phase() {
	case PhaseEmpty:
		if len(f.nodes.live) == 0 {
			return "no node is here"
		}
		return fmt.Sprintf("no node has asked for a place; %s connected", wording.Count(len(f.nodes.live), "node is", "nodes are"))
	case PhaseForming, PhaseRegroup:
		return f.notComplete()
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
		Phase: m.forming.phase(), Round: m.round.number, Live: len(m.nodes.live),
		Running: m.round.tally[participantRunning], Unknown: m.round.tally[participantUnknown], Rejoined: m.round.tally[participantRejoined],
		Finished: m.round.tally[participantFinished], Lost: m.round.tally[participantLost],
	}
	for _, row := range m.directives.drained {
		if row.Cause >= 0 && row.Cause < causes { // else of a later release
			c.Out[row.Cause]++
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
		if j.Role != RoleMember {
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
