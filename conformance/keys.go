package conformance

import (
	"fmt"
	"slices"
	"strings"

	r "rallypoint/core/rendezvous"
	"rallypoint/core/store"
)

// keyRequest checks the answer to an operation on a round's keys, as far as the
// guarantees go.
func (c *Checker) keyRequest(q r.KeyRequest, effects []r.Effect) {
	s := c.sessions[q.Session]
	reply := replyTo(effects, q.Request)
	member := c.participantOf(s) != nil && q.Round == c.round && !c.disowned()
	var code r.Code
	if reply != nil {
		code = r.CodeOf(asError(reply.Err))
	}
	over := member && c.ranksLost(q, reply)
	if over {
		c.overtaken = true
	}
	if !over && (member == (code == r.CodeRoundOver) || !member && reply == nil) {
		c.violated(4, "node %s, member of round %d: %v, asked for keys of it and got %+v", s.node, q.Round, member, effects)
	}
	if !member {
		return
	}
	if reply == nil && q.Op == store.OpWait && len(q.Keys) == 1 && q.Keys[0] == barrierLast {
		s.barrier[q.Number] = struct{}{}
	}
	if code != 0 || len(q.Keys) == 0 {
		return
	}
	if q.Op == store.OpAdd && q.Keys[0] == barrierCount {
		c.finish(s)
	}
	c.addUp(q, reply)
}

// Keys by which the agents assign ranks (docs/spec/agent.md A49).
const (
	roleInfo      = "torchelastic/role_info/"
	assignedRanks = "torchelastic/assigned_ranks/"
)

// ranksLost checks a request for keys of the rank assignment, and reports whether it was
// told that the round is over: in a round that an earlier control plane completed, and in
// one that was overtaken, no agent writes what is missing, so that no request may wait.
func (c *Checker) ranksLost(q r.KeyRequest, reply *r.Reply) bool {
	reads := q.Op == store.OpGet || q.Op == store.OpMultiGet || q.Op == store.OpWait
	others := func(key string) bool {
		return !strings.HasPrefix(key, roleInfo) && !strings.HasPrefix(key, assignedRanks)
	}
	if !reads || !c.fresh && !c.overtaken || len(q.Keys) == 0 || slices.ContainsFunc(q.Keys, others) {
		return false
	}
	if reply == nil {
		c.violated(7, "session %s waits for %q in a round whose ranks are lost", q.Session, q.Keys)
		return false
	}
	return r.CodeOf(asError(reply.Err)) == r.CodeRoundOver
}

// addUp follows the sums of keys that nothing but additions has changed.
func (c *Checker) addUp(q r.KeyRequest, reply *r.Reply) {
	switch q.Op {
	case store.OpAdd:
		t := c.sums[q.Keys[0]]
		if t == nil {
			t = &sum{known: true}
			c.sums[q.Keys[0]] = t
		}
		t.value += q.Amount
		if reply == nil || !t.known {
			return
		}
		if got, ok := reply.Result.(r.KeyResult); !ok || got.Number != t.value {
			c.violated(11, "the sum of all additions to %s is %d, the answer to %d of %s says %+v", q.Keys[0], t.value, q.Number, q.Session, reply.Result)
		}
	case store.OpSet, store.OpCompareSet, store.OpAppend, store.OpDelete, store.OpMultiSet:
		for _, key := range q.Keys {
			c.sums[key] = &sum{}
		}
	case store.OpBarrier: // counts in keys of its own
		for _, key := range q.Keys {
			c.sums[key] = &sum{}
			c.sums[fmt.Sprint(key, "/num_members")], c.sums[fmt.Sprint(key, "/last_member")] = &sum{}, &sum{}
		}
	}
}
