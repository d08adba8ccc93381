package rendezvous

import "rallypoint/core/store"

// Reads reports whether the operation changes no key. It may still have to wait for
// one, and a wait is kept.
func (o KeyOp) Reads() bool {
	switch o {
	case KeyGet, KeyMultiGet, KeyCheck, KeyWait, KeyCount, KeyList, KeyQueueLen:
		return true
	}
	return false
}

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
	result, ready := readKeys(m.keys.engine, k)
	if !ready {
		return nil, false
	}
	reply.Result = result
	return []Effect{reply}, true
}

// readKeys does an operation that reads; false if a key that it needs is missing.
func readKeys(e *store.Engine, r KeyRequest) (result KeyResult, ready bool) {
	switch r.Op {
	case KeyGet, KeyMultiGet:
		for _, key := range r.Keys {
			if _, there := e.Get(key); !there {
				return result, false
			}
		}
		for _, key := range r.Keys {
			value, _ := e.Get(key)
			result.Values = append(result.Values, clone(value))
		}
	case KeyCheck:
		result.Ready = e.Check(r.Keys)
	case KeyWait:
		result.Ready = e.Check(r.Keys)
		return result, result.Ready
	case KeyCount:
		result.Number = int64(e.NumKeys())
	case KeyList:
		result.Keys = e.Keys()
	case KeyQueueLen:
		result.Number = int64(e.QueueLen(r.Keys[0]))
	}
	return result, true
}
