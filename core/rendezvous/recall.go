package rendezvous

import (
	"cmp"
	"maps"
	"slices"
)

// AppendSessions appends all sessions to list, in no order: those of live nodes,
// also inside their grace, and of nodes that ended and linger.
func (m *Machine) AppendSessions(list []SessionID) []SessionID {
	for session := range m.sessions {
		list = append(list, session)
	}
	return list
}

// Recall returns what a node has to know that has not seen the effects of all
// events: its notice, and the answers that it has not acknowledged, by number. It
// is not known if it was dropped.
func (m *Machine) Recall(session SessionID) (notice Notice, answers []Reply, known bool) {
	n := m.sessions[session]
	if n == nil {
		return Notice{}, nil, false
	}
	answers = slices.SortedFunc(maps.Values(n.answered), func(a, b Reply) int { return cmp.Compare(a.Number, b.Number) })
	return m.noticeFor(n), answers, true
}
