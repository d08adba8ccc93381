package rendezvous

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// take admits a numbered request: nil means that there is nothing to apply,
// because the session is unknown (its connection was dropped), the answer is known
// (it is sent again) or still owed.
func (m *Machine) take(r Request) *node {
	n := m.nodes.sessions[r.Session]
	if n == nil {
		return nil
	}
	n.heard++
	if r.Acked > n.acked {
		n.acked = r.Acked
		for number := range n.answered {
			if number <= r.Acked {
				m.nodes.dropAnswer(n, number)
			}
		}
	}
	if r.Number <= n.acked {
		return nil
	}
	if len(n.answered)+len(n.waits)+len(n.linger) >= maxAnswers || n.held > maxAnswerBytes {
		m.lose(n, "lost: it does not acknowledge answers")
		return nil
	}
	if m.loseHogs(); m.nodes.sessions[r.Session] != n {
		return nil
	}
	if reply, ok := n.answered[r.Number]; ok {
		for _, e := range n.again(reply) {
			m.out.emit(e)
		}
		return nil
	}
	if n.owes(r.Number) {
		return nil
	}
	return n
}

// Bounds of the answers kept for a node and owed to it; a well-behaved one has a
// few. One that asks on without acknowledging any is lost.
const (
	maxAnswers     = 1 << 14
	maxAnswerBytes = 64 << 20
)

// TryRead answers a request by which nothing would change: one that was made before,
// and one that reads keys which are there. It returns what Apply would, but leaves
// the machine as it is: it acknowledges nothing, and an answer that was read is not
// kept, so that the request, should it come again, reads again. So a driver that logs
// events need not log it, if its machine has applied every event that a node was
// answered. False means that the request has to be applied.
func (m *Machine) TryRead(ev Event) (effects []Effect, ok bool) {
	r, _ := RequestOf(ev)
	n := m.nodes.sessions[r.Session]
	if n == nil {
		return nil, false
	}
	if reply, answered := n.answered[r.Number]; answered && r.Number > r.Acked {
		return n.again(reply), true
	}
	if r.Number <= max(n.acked, r.Acked) || n.owes(r.Number) {
		return nil, true
	}
	k, ok := ev.(KeyRequest)
	if !ok || !k.Op.Reads() {
		return nil, false
	}
	reply := Reply{Session: n.session, Number: r.Number}
	if reply.Err = m.keyRefusal(n, k); reply.Err != nil {
		return []Effect{reply}, true
	}
	if m.keys == nil {
		return nil, false // the round gets its keys with the first request
	}
	if reply.Err = m.room(k); reply.Err != nil {
		return []Effect{reply}, true
	}
	result, ready, _ := m.keys.engine.Apply(k.onStore(), nil) // what reads does not fail
	if !ready {
		return nil, false
	}
	reply.Result = KeyResult(result)
	return []Effect{reply}, true
}

// AppendSessions appends all sessions to list, in no order: those of live nodes,
// also inside their grace, and of nodes that ended and await their peers.
func (m *Machine) AppendSessions(list []SessionID) []SessionID {
	for session := range m.nodes.sessions {
		list = append(list, session)
	}
	return list
}

// AppendAttached appends the sessions of AppendSessions that may still act: neither have
// they ended, nor is their connection broken, which a shared log tells by a goodbye.
func (m *Machine) AppendAttached(list []SessionID) []SessionID {
	for session, n := range m.nodes.sessions {
		if !n.ended && !n.grace {
			list = append(list, session)
		}
	}
	return list
}

// causeSilent begins the cause of a node's loss whose lease has run out.
const causeSilent = "lost: not heard of for "

// Awaits reports whether a member of the last round is taken for lost by its silence
// alone, and may come back: to go on, or to learn that the run has ended.
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
	n := m.nodes.sessions[session]
	if n == nil {
		return nil, MembershipUpdate{}, false
	}
	if was := before.nodes.sessions[session]; was != nil && (n.acked < was.acked || claim.Round > 0 && m.orphanedJoin(n)) {
		return nil, MembershipUpdate{}, false
	}
	answers = slices.SortedFunc(maps.Values(n.answered), func(a, b Reply) int { return cmp.Compare(a.Number, b.Number) })
	return answers, m.updateFor(n, m.waitingReason), true
}

// orphanedJoin reports whether a live node has no part in a round, waits for none, and
// was not told to.
func (m *Machine) orphanedJoin(n *node) bool {
	return m.closed == nil && !n.ended && n.join == nil && n.stale == "" && m.round.participantOf(n) == nil
}
