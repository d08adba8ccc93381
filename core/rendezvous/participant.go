package rendezvous

import (
	"fmt"
	"strings"
)

// participantState is where a member of the last completed round stands.
type participantState int

const (
	participantRunning  participantState = iota // its workers run
	participantUnknown                          // of a round of an earlier control plane; not heard of yet
	participantRejoined                         // it waits for the next round
	participantFinished                         // its workers all succeeded
	participantLost                             // it died, left or gave up
	participantStates
)

// participant is one member of the last completed round.
type participant struct {
	rank  int
	node  string // id; "" while unknown
	label string // for display
	host  bool   // its process hosts the control plane
	state participantState
	cause string // why it was lost
}

// live reports whether the round still counts on the member.
func (s *participant) live() bool {
	return s.state != participantFinished && s.state != participantLost
}

func (s *participant) name() string {
	if s.node == "" {
		return fmt.Sprintf("the node of rank %d", s.rank)
	}
	return s.label
}

// participantOf returns the node's place in the last round, nil if it has none or lost
// it to time.
func (m *Machine) participantOf(n *node) *participant {
	s := m.byNode[n.id]
	if s == nil || s.state == participantLost || m.nodes[n.id] != n {
		return nil
	}
	return s
}

func (m *Machine) setParticipant(s *participant, state participantState, cause string) {
	if s.state == participantFinished && state != s.state {
		m.dropFinishedHost(s.rank)
	}
	m.tally[s.state]--
	s.state, s.cause = state, cause
	m.tally[s.state]++
}

// awaited is the number of live members that have not rejoined.
func (m *Machine) awaited() int { return m.tally[participantRunning] + m.tally[participantUnknown] }

// live is the number of members that the round still counts on.
func (m *Machine) live() int { return m.awaited() + m.tally[participantRejoined] }

// inState lists the members in a state by name, with the cause if there is one.
func (m *Machine) inState(state participantState) string {
	var names []string
	for _, s := range m.participants {
		if s.state != state {
			continue
		}
		if len(names) == maxNames {
			names = append(names, fmt.Sprintf("and %d more", m.tally[state]-maxNames))
			break
		}
		name := s.name()
		if s.cause != "" {
			name += " (" + s.cause + ")"
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

// maxNames bounds how many nodes a text or a progress report names, so that
// neither grows with the size of the job.
const maxNames = 8
