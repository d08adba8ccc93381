package rendezvous

import "fmt"

// Limit changes the limits. They decide answers: a driver that logs events takes a snapshot
// after it.
func (m *Machine) Limit(l Limits) {
	m.limits = l.withDefaults()
	if m.keys != nil {
		m.keys.engine.Limit(m.limits.Keys)
	}
}

// Usage returns what the run takes. It costs the same however much that is.
func (m *Machine) Usage() Usage {
	u := m.nodes.usage
	if m.keys != nil {
		waits := m.keys.engine.WaitBytes()
		u.Waits += waits
		u.Keys = m.keys.engine.Memory() - waits
	}
	u.Names = m.round.cost() + m.directives.cost()
	return u
}

// cost is the part of Usage.Names that directives and drained nodes take.
func (ds *directives) cost() int64 {
	cost := drainedCost*int64(len(ds.drained)) + MaxNameLen*int64(len(ds.past))
	if ds.standing != nil {
		cost += costOfDirective(*ds.standing)
	}
	return cost
}

// AnswerBytes returns how many bytes of keys and values the answer to an event has at most
// as the keys are now.
func (m *Machine) AnswerBytes(ev Event) int64 {
	k, ok := ev.(KeyRequest)
	if !ok || m.keys == nil || checkKeyRequest(k) != nil {
		return 0
	}
	return m.keys.engine.ReplyBytes(k.onStore())
}

// FreedBy returns about how much a request frees by what it acknowledges.
func (m *Machine) FreedBy(r Request) (freed int64) {
	if n := m.nodes.sessions[r.Session]; n != nil {
		for number, reply := range n.answered {
			if number <= r.Acked {
				freed += reply.cost()
			}
		}
	}
	return freed
}

// room returns why there is no room for a request and its answer; nil if there is.
func (m *Machine) room(ev Event) *Error {
	answer := m.AnswerBytes(ev)
	most := int64(maxAnswerBytes)
	if m.limits.Bytes > 0 {
		most = maxValueLen
	}
	if answer > most {
		return Errorf(CodeTooLarge, "run %q: the answer has %d bytes, at most %d can be sent: ask for fewer keys at once", m.runID, answer, most)
	}
	k, isKey := ev.(KeyRequest)
	if m.limits.Bytes > 0 && (!isKey || Grows(k)) && m.Usage().Total()+answer+costOf(ev)+answerCost > m.limits.Bytes {
		return Errorf(CodeTooLarge, "%s: no room for a request of %d bytes, with an answer of %d%s", m.describeUsage(), costOf(ev), answer, usageHint)
	}
	return nil
}

func (m *Machine) describeUsage() string {
	u := m.Usage()
	return fmt.Sprintf("run %q keeps %d of at most %d bytes (its agents' keys %d, answers that its nodes have not acknowledged %d, waits for keys %d, its nodes %d)",
		m.runID, u.Total(), m.limits.Bytes, u.Keys, u.Answers, u.Waits, u.Sessions+u.Names)
}

// usageHint says where that bound comes from.
const usageHint = "; the agents of a job need little, so look what fills it; `rallypoint serve` takes --max-bytes"
