package rendezvous

// take admits a numbered request: nil means that there is nothing to apply,
// because the session is unknown (its connection was dropped), the answer is known
// (it is sent again) or still owed.
func (m *Machine) take(r Request) *node {
	n := m.sessions[r.Session]
	if n == nil {
		return nil
	}
	if r.Acked > n.acked {
		n.acked = r.Acked
		for number, reply := range n.answered {
			if number <= r.Acked {
				n.held -= reply.size()
				delete(n.answered, number)
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
	if reply, ok := n.answered[r.Number]; ok {
		for _, e := range n.again(reply) {
			m.emit(e)
		}
		return nil
	}
	if n.owes(r.Number) {
		return nil
	}
	return n
}

// again is an answer that is sent once more. Behind an outcome comes the update, if it
// tells to regroup: while the node had no outcome it took that for one of the round before.
func (n *node) again(reply Reply) []Effect {
	if _, joined := reply.Result.(Outcome); joined && n.update.Waiting > 0 {
		return []Effect{reply, Notify{n.session, n.update}}
	}
	return []Effect{reply}
}

// owes reports whether the request is applied and its answer still to come.
func (n *node) owes(number uint64) bool {
	if n.join != nil && n.join.Number == number {
		return true
	}
	if _, ok := n.waits[number]; ok {
		return true
	}
	for _, l := range n.linger {
		if l == number {
			return true
		}
	}
	return false
}

// answer answers a request and keeps the answer until the node has it.
func (m *Machine) answer(n *node, number uint64, result Result) {
	m.reply(n, Reply{Session: n.session, Number: number, Result: result})
}

func (m *Machine) fail(n *node, number uint64, err *Error) {
	m.reply(n, Reply{Session: n.session, Number: number, Err: err})
}

func (m *Machine) reply(n *node, r Reply) {
	if m.sessions[n.session] == n {
		n.keep(r)
	}
	m.emit(r)
}

// keep keeps an answer until the node acknowledges it.
func (n *node) keep(r Reply) {
	n.held += r.size() - n.answered[r.Number].size()
	n.answered[r.Number] = r
}

// size is how many bytes of keys and values a reply holds; the rest of it is small.
func (r Reply) size() (bytes int) {
	if result, ok := r.Result.(KeyResult); ok {
		for _, value := range result.Values {
			bytes += len(value)
		}
		for _, key := range result.Keys {
			bytes += len(key)
		}
	}
	return bytes
}

// Bounds of the answers kept for a node and owed to it; a well-behaved one has a
// few. One that asks on without acknowledging any is lost.
const (
	maxAnswers     = 1 << 14
	maxAnswerBytes = 64 << 20
)
