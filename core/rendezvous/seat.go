package rendezvous

import (
	"fmt"
	"strings"
)

// seatState is where a member of the last completed round stands.
type seatState int

const (
	seatRunning  seatState = iota // its workers run
	seatUnknown                   // of a round of an earlier control plane; not heard of yet
	seatRejoined                  // it waits for the next round
	seatFinished                  // its workers all succeeded
	seatLost                      // it died, left or gave up
	seatStates
)

// seat is one member of the last completed round.
type seat struct {
	rank  int
	node  string // id; "" while unknown
	label string // for people
	host  bool   // its process hosts the control plane
	state seatState
	cause string // why it was lost
}

// live reports whether the round still counts on the member.
func (s *seat) live() bool { return s.state != seatFinished && s.state != seatLost }

func (s *seat) name() string {
	if s.node == "" {
		return fmt.Sprintf("the node of rank %d", s.rank)
	}
	return s.label
}

// seatOf returns the node's seat in the last round, nil if it has none or lost
// it to time.
func (m *Machine) seatOf(n *node) *seat {
	s := m.byNode[n.id]
	if s == nil || s.state == seatLost || m.nodes[n.id] != n {
		return nil
	}
	return s
}

func (m *Machine) setSeat(s *seat, state seatState, cause string) {
	m.tally[s.state]--
	s.state, s.cause = state, cause
	m.tally[s.state]++
}

// awaited is the number of live members that have not rejoined.
func (m *Machine) awaited() int { return m.tally[seatRunning] + m.tally[seatUnknown] }

// live is the number of members that the round still counts on.
func (m *Machine) live() int { return m.awaited() + m.tally[seatRejoined] }

// inState lists the members in a state by name, with the cause if there is one.
func (m *Machine) inState(state seatState) string {
	var names []string
	for _, s := range m.seats {
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
