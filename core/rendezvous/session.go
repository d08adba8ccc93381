package rendezvous

import (
	"cmp"
	"fmt"

	"rallypoint/core/store"
	"rallypoint/internal/pack"
)

// take admits a numbered request: nil means that there is nothing to apply,
// because the session is unknown (its connection was dropped), the answer is known
// (it is sent again) or still owed.
func (m *Machine) take(r Request) *node {
	n := m.nodes.sessions[r.Session]
	if n == nil {
		return nil
	}
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

// TryRead answers a request by which nothing would change: one that was made before,
// and one that reads present keys. It returns what Apply would, but leaves
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
	if reply.Err = m.round.keyRefusal(n, k); reply.Err != nil {
		return []Effect{reply}, true
	}
	if m.keys == nil {
		return nil, false // the round gets its keys with the first request
	}
	if reply.Err = m.room(k); reply.Err != nil {
		return []Effect{reply}, true
	}
	result, ready, _ := m.keys.engine.Apply(k.onStore(), nil) // reads do not fail
	if !ready {
		return nil, false
	}
	reply.Result = KeyResult(result)
	return []Effect{reply}, true
}

// CauseOverLimit begins the cause of the loss of a node that holds too much of its run's limit.
const CauseOverLimit = "lost: the run keeps far more than its limit"

// loseHogs loses the nodes that hold most, until the run does not take far more than its limit,
// or little of it for answers and waits.
func (m *Machine) loseHogs() {
	for most := m.limits.Bytes; most > 0 && m.nodes.usage.Answers+m.nodes.usage.Waits > most/4 && m.Usage().Total() > most+most/4; {
		var hog *node
		for _, n := range m.nodes.sessions {
			if hog == nil || cmp.Or(cmp.Compare(n.holds(), hog.holds()), cmp.Compare(n.session, hog.session)) > 0 {
				hog = n
			}
		}
		m.lose(hog, fmt.Sprintf("%s, of which it holds %d bytes in waits for keys and answers that it does not acknowledge: %s%s", CauseOverLimit, hog.holds(), m.describeUsage(), usageHint))
	}
}

// keyRequest applies one operation on the agents' keys. Only members of the last
// round have keys, and only those of that round.
func (m *Machine) keyRequest(n *node, r KeyRequest) {
	if err := m.round.keyRefusal(n, r); err != nil {
		m.nodes.fail(n, r.Number, err)
		return
	}
	if r.Op == opRefuse {
		m.nodes.fail(n, r.Number, Errorf(CodeTooLarge, "%s", pack.CutText(r.Keys[0], maxRefusal)))
		return
	}
	if m.keys == nil {
		m.keys = newAgentStore(m.out, m.limits.Keys)
	}
	space := m.keys
	if (m.round.fresh || m.round.overtaken != "") && space.ranksLost(r) {
		m.round.overtake(fmt.Sprintf("the ranks of round %d were being assigned when the control plane was restarted, and what had been written of them is lost", m.round.number))
		m.nodes.fail(n, r.Number, Errorf(CodeRoundOver, "run %q: round %d is over: %s", m.runID, m.round.number, m.round.overtaken))
		return
	}
	if r.Op == store.OpCancelWait {
		m.nodes.cancelWait(n, r)
		return
	}
	if err := m.room(r); err != nil {
		m.nodes.fail(n, r.Number, err)
		return
	}
	if m.nodes.applyKey(space, &keyWait{node: n, req: r}) {
		m.noteKey(n, r)
	}
	m.serveWoken(space)
}

// keyRefusal returns why the node may not do the operation, nil if it may.
func (r *round) keyRefusal(n *node, k KeyRequest) *Error {
	if k.Round != r.number || r.participantOf(n) == nil || r.disowned() {
		return Errorf(CodeRoundOver, "run %q: node %s is not a member of round %d any more", r.run.runID, r.names.of(n.id), k.Round)
	}
	return checkKeyRequest(k)
}
