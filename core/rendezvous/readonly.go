package rendezvous

// TryRead answers a request by which nothing would change: one that was made before,
// and one that reads keys which are there. It returns what Apply would, but leaves
// the machine as it is: it acknowledges nothing, and an answer that was read is not
// kept, so that the request, should it come again, reads again. So a driver that logs
// events need not log it, if its machine has applied every event that anybody was
// told of. False means that the request has to be applied.
func (m *Machine) TryRead(ev Event) (effects []Effect, ok bool) {
	r, _ := requestOf(ev)
	n := m.sessions[r.Session]
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
	result, ready, _ := m.keys.engine.Apply(k.onStore(), nil) // what reads does not fail
	if !ready {
		return nil, false
	}
	reply.Result = KeyResult(result)
	return []Effect{reply}, true
}
