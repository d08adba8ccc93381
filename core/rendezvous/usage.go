package rendezvous

import (
	"cmp"
	"fmt"

	"rallypoint/core/store"
)

// Usage is about how much memory a run takes, in bytes, by what for. Names is what outlives
// sessions: the members of the last round, the ids of those of earlier ones, drained nodes.
type Usage struct{ Sessions, Answers, Waits, Keys, Names int64 }

// Total returns the sum.
func (u Usage) Total() int64 { return u.Sessions + u.Answers + u.Waits + u.Keys + u.Names }

// About what each takes beside its texts and values; of a drained node and a directive with
// them, which have bounds.
const (
	sessionCost     = 1 << 10
	answerCost      = 288
	partCost        = 32 // a key or value of an answer or wait
	waitCost        = 288
	awaitCost       = 64
	participantCost = 256
	seenCost        = 64
	drainedCost     = 2 << 10
	directiveCost   = 4 << 10
)

// DefaultMaxBytes is how much a run may take of a server.
const DefaultMaxBytes = 512 << 20

// Limits bounds what a run takes. A zero field of Keys is its default.
type Limits struct {
	Keys store.Limits
	// Bytes bounds Usage.Total: a request that would take more is refused, and above it by
	// a quarter the nodes are lost that hold most. It also bounds a single answer by what a
	// frame carries. 0: there is no bound but those of each node.
	Bytes int64
}

func (l Limits) withDefaults() Limits {
	l.Keys.MaxBytes = cmp.Or(l.Keys.MaxBytes, DefaultMaxKeyBytes)
	l.Keys.MaxEntries = cmp.Or(l.Keys.MaxEntries, DefaultMaxKeys)
	return l
}

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
	u.Names = m.round.cost() + m.costOfNames()
	return u
}

// costOfNames is the part of Usage.Names that directives and drained nodes take.
func (m *Machine) costOfNames() int64 {
	cost := drainedCost*int64(len(m.directives.drained)) + MaxNameLen*int64(len(m.directives.past))
	if m.directives.standing != nil {
		cost += costOfDirective(m.directives.standing.Direct)
	}
	return cost
}

// costOfDirective is about what a standing directive takes at most.
func costOfDirective(d Direct) int64 {
	return directiveCost + (partCost+MaxNameLen)*int64(len(d.Nodes))
}

// CostOfHello returns how much more a run takes at most after a hello.
func CostOfHello(h Hello) int64 {
	world := max(h.LastRound.World, h.LastRound.Facts.World, 0)
	return sessionCost + 7*MaxNameLen + participantCost*int64(world)
}

// costOf is about what the lists of a request take.
func costOf(ev Event) (cost int64) {
	switch r := ev.(type) {
	case KeyRequest:
		for _, key := range r.Keys {
			cost += partCost + int64(len(key))
		}
		for _, value := range r.Values {
			cost += partCost + int64(len(value))
		}
	case GiveDirective:
		cost = costOfDirective(r.Directive)
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

// Grows reports whether a request for keys may make a run take more than its answer without
// keys and values: then a driver may apply Refused in its place.
func Grows(k KeyRequest) bool {
	switch k.Op {
	case store.OpCheck, store.OpDelete, store.OpNumKeys, store.OpQueueLen, store.OpCancelWait, opRefuse:
		return false
	}
	return true
}

// opRefuse is a request that its driver had no room for: its one key is the text of the refusal.
const opRefuse store.Op = 1 << 10

const maxRefusal = 4 << 10 // bytes of that text

// Refused returns what a driver logs and applies in the place of a request for which it has no
// room: the node receives an error of CodeTooLarge, and the request counts as answered. Like
// any other it has no effect if the request was applied before.
func Refused(k KeyRequest, text string) Event {
	return KeyRequest{Request: k.Request, Round: k.Round, Op: opRefuse, Keys: []string{text}}
}

// room returns why there is no room for a request and its answer; nil if there is.
func (m *Machine) room(ev Event) *Error {
	answer := m.AnswerBytes(ev)
	most := int64(maxAnswerBytes)
	if m.limits.Bytes > 0 {
		most = MaxValueLen
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

// describeUsage says what the run takes, and for what.
func (m *Machine) describeUsage() string {
	u := m.Usage()
	return fmt.Sprintf("run %q keeps %d of at most %d bytes (its agents' keys %d, answers that its nodes have not acknowledged %d, waits for keys %d, its nodes %d)",
		m.runID, u.Total(), m.limits.Bytes, u.Keys, u.Answers, u.Waits, u.Sessions+u.Names)
}

// CauseOverLimit begins the cause of the loss of a node that holds too much of its run's limit.
const CauseOverLimit = "lost: the run keeps far more than its limit"

// usageHint says where that bound comes from.
const usageHint = "; the agents of a job need little, so look what fills it; `rallypoint serve` takes --max-bytes"

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
