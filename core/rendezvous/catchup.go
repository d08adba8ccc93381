package rendezvous

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// AppendSessions appends all sessions to list, in no order: those of live nodes,
// also inside their grace, and of nodes that ended and await their peers.
func (m *Machine) AppendSessions(list []SessionID) []SessionID {
	for session := range m.sessions {
		list = append(list, session)
	}
	return list
}

// AppendAttached appends the sessions of AppendSessions that may still act: neither have
// they ended, nor is their connection broken, which a shared log tells by a goodbye.
func (m *Machine) AppendAttached(list []SessionID) []SessionID {
	for session, n := range m.sessions {
		if !n.ended && !n.grace {
			list = append(list, session)
		}
	}
	return list
}

// causeSilent begins the cause of a node's loss whose lease has run out.
const causeSilent = "lost: not heard of for "

// Awaits reports whether a member of the last round is taken for lost by its silence
// alone, and may come back to a run that is open.
func (m *Machine) Awaits() bool {
	return m.closed == nil && slices.ContainsFunc(m.participants, func(s *participant) bool {
		return s.state == participantLost && strings.HasPrefix(s.cause, causeSilent)
	})
}

// IsClosed reports whether the run was closed.
func (m *Machine) IsClosed() bool { return m.closed != nil }

// CatchUp returns what a node has to know that has not seen the effects of all
// events: its update, and the answers that it has not acknowledged, by number. The
// answers come first: the update may be about the round that one of them names.
//
// The node is not known if it was dropped. Nor is it if its session is not the one of
// before, the state as the node saw it last, in which it had the round that it reports: a
// hello that came late has begun the session again, and nothing else would ever tell the node
// what it has missed.
func (m *Machine) CatchUp(session SessionID, before *Machine, claim LastRound) (answers []Reply, notice MembershipUpdate, known bool) {
	n := m.sessions[session]
	if n == nil {
		return nil, MembershipUpdate{}, false
	}
	if was := before.sessions[session]; was != nil && (n.acked < was.acked || claim.Round > 0 && m.orphanedJoin(n)) {
		return nil, MembershipUpdate{}, false
	}
	answers = slices.SortedFunc(maps.Values(n.answered), func(a, b Reply) int { return cmp.Compare(a.Number, b.Number) })
	return answers, m.updateFor(n), true
}

// orphanedJoin reports whether a live node has no part in a round, waits for none, and
// was not told to.
func (m *Machine) orphanedJoin(n *node) bool {
	return m.closed == nil && !n.ended && n.join == nil && n.stale == "" && m.participantOf(n) == nil
}
