package rendezvous

import "time"

// Status is what a run looks like to people and programs. The driver adds what
// only it knows: ages and the history.
type Status struct {
	RunID      string
	Generation string
	Round      uint64 // last completed; 0: none yet
	Phase      Phase
	Policy     Policy
	Members    []MemberStatus // of the last round, by rank
	Waiting    []JoinStatus   // pending joins, in the order in which they would be seated
	Missing    string         // who or how many the forming round lacks; "" in other phases
	Closed     *ClosedStatus  // nil while the run is open
}

// Phase is where a run stands.
type Phase string

// The phases.
const (
	PhaseEmpty     Phase = "empty"     // no node has joined
	PhaseForming   Phase = "forming"   // a round is being formed
	PhaseRunning   Phase = "running"   // a round runs
	PhaseRegroup   Phase = "regroup"   // members rejoin
	PhaseFinishing Phase = "finishing" // members have finished, nobody is admitted
	PhaseClosed    Phase = "closed"
)

// MemberStatus is one member of the last round.
type MemberStatus struct {
	Rank    int
	Node    string // "" for a member of an earlier control plane that has not returned
	Label   string
	Addr    string
	Session SessionID // zero unless the node is alive
	State   string    // running, unknown, rejoined, finished or lost
	Cause   string    // why it was lost
	Host    bool      // its process hosts the control plane
}

// JoinStatus is one pending join.
type JoinStatus struct {
	Node      string
	Label     string
	Addr      string
	Session   SessionID
	NodeRank  int  // preferred; -1: none
	Member    bool // of the last round
	Spare     bool // the running round has no seat for it
	Reconnect bool // its connection broke and its grace runs
}

// ClosedStatus is who closed a run, when and why.
type ClosedStatus struct {
	How    string // "closed", "ended successfully" or "failed"
	By     string
	Reason string
	At     time.Time
}

var seatNames = [seatStates]string{"running", "unknown", "rejoined", "finished", "lost"}

// Status describes the run. It costs O(n log n) for n nodes.
func (m *Machine) Status() Status {
	s := Status{RunID: m.runID, Generation: m.generation, Round: m.round, Phase: m.phase(), Policy: m.policy}
	for _, seat := range m.seats {
		ms := MemberStatus{Rank: seat.rank, Node: seat.node, Label: seat.label, State: seatNames[seat.state], Cause: seat.cause, Host: seat.host}
		if n := m.nodes[seat.node]; n != nil && m.seatOf(n) == seat {
			ms.Addr, ms.Session = n.seenAddr, n.session
		}
		s.Members = append(s.Members, ms)
	}
	regrouping := s.Phase == PhaseForming || s.Phase == PhaseRegroup
	for i, n := range m.candidates() {
		s.Waiting = append(s.Waiting, JoinStatus{
			Node: n.id, Label: n.label, Addr: n.seenAddr, Session: n.session, NodeRank: n.join.NodeRank,
			Member: m.seatOf(n) != nil, Reconnect: n.grace,
			Spare: !regrouping && m.gain() == 0 || regrouping && i >= m.policy.Max,
		})
	}
	if regrouping {
		s.Missing = m.missing()
	}
	if c := m.closed; c != nil {
		s.Closed = &ClosedStatus{How: c.how(), By: c.by, Reason: c.reason, At: c.at}
	}
	return s
}

func (m *Machine) phase() Phase {
	switch {
	case m.closed != nil:
		return PhaseClosed
	case m.tally[seatFinished] > 0:
		return PhaseFinishing
	case m.tally[seatRejoined] > 0:
		return PhaseRegroup
	case m.live() > 0:
		return PhaseRunning
	case m.joined > 0:
		return PhaseForming
	}
	return PhaseEmpty
}
