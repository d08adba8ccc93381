package conformance

import (
	"fmt"
	"slices"
	"strings"

	r "rallypoint/core/rendezvous"
	"rallypoint/core/store"
)

// apply records what an event says by itself.
func (j *Checker) apply(ev r.Event, effects []r.Effect) {
	switch ev := ev.(type) {
	case r.Hello:
		j.hello(ev, effects)
	case r.Disconnect:
		j.disconnect(ev)
	case r.LeaseExpired:
		j.departed(ev.Session)
	case r.Recovered:
		j.stored, j.reserve = true, ev.Generation
		for _, s := range j.sessions {
			s.grace, s.recovering = true, true
		}
	case r.TimerFired:
		j.timerFired(ev.Timer)
	case r.Join:
		j.join(ev, effects)
	case r.Withdraw:
		j.withdraw(ev, effects)
	case r.Leave:
		j.leave(ev)
	case r.CloseRun:
		by, kind := ev.By, admission
		if s := j.sessions[ev.Session]; s != nil {
			by = s.node
		}
		if ev.Stop {
			kind = failed
		}
		j.close(closing{kind, by, ev.Reason})
	case r.Finish:
		j.finish(j.sessions[ev.Session])
	case r.AwaitPeers:
		s := j.sessions[ev.Session]
		s.awaiting = append(s.awaiting, ev.Number)
	case r.KeyRequest:
		j.keyRequest(ev, effects)
	}
}

// hello checks how a node is received.
func (j *Checker) hello(h r.Hello, effects []r.Effect) {
	refused, welcomed := received(effects)
	if s := j.sessions[h.Session]; s != nil {
		switch {
		case s.node != h.Node:
			if refused == nil {
				j.violated(11, "a hello of node %s on the session of node %s was not refused", h.Node, s.node)
			}
		case welcomed == nil:
			j.violated(11, "the known session %s of node %s was not welcomed again: %+v", s.id, s.node, effects)
		case !welcomed.Resumed:
			j.violated(11, "node %s came back and was taken for a new one", s.node)
		}
		return
	}
	if r.Printable(h.Node) != h.Node {
		if refused == nil {
			j.violated(11, "a node was taken whose name %q cannot be shown", h.Node)
		}
		return
	}
	if j.ended() && len(j.nodes()) == 0 && !j.seen[h.Node] {
		j.forget()
	}
	p, invalid := h.Policy, h.Policy.Validate() != nil
	old := j.nodeOf(h.Node)
	switch {
	case invalid:
	case len(j.nodes()) == 0:
		j.policy, j.policyBy = p, h.Node
	case j.policy.Min != p.Min || j.policy.Max != p.Max || j.policy.NodeUnit != p.NodeUnit || j.policy.Target != p.Target:
		if r.CodeOf(asError(refused)) != r.CodeMismatch {
			j.violated(2, "node %s wants another size than the run's and was not refused for it: %+v", h.Node, effects)
		}
		return
	case old != nil && h.Incarnation <= old.incarnation:
		if r.CodeOf(asError(refused)) != r.CodeNodeInUse {
			j.violated(4, "a second node %s was not refused: %+v", h.Node, effects)
		}
		return
	}
	if invalid != (refused != nil) || (refused == nil) != (welcomed != nil) {
		j.violated(11, "the hello of node %s was answered by %+v", h.Node, effects)
	}
}

func received(effects []r.Effect) (refused *r.Error, welcomed *r.Welcome) {
	for _, e := range effects {
		switch e := e.(type) {
		case r.Refuse:
			refused = e.Err
		case r.Welcome:
			welcomed = &e
		}
	}
	return refused, welcomed
}

func asError(e *r.Error) error {
	if e == nil {
		return nil
	}
	return e
}

// welcome registers a session, or its new connection.
func (j *Checker) welcome(ev r.Event, e r.Welcome) {
	h, ok := ev.(r.Hello)
	if !ok || h.Session != e.Session {
		j.violated(4, "session %s was welcomed without a hello", e.Session)
		return
	}
	if s := j.sessions[e.Session]; s != nil {
		s.grace, s.recovering, s.update = false, false, e.Update
		j.returned(s, h.LastRound)
		return
	}
	s := &session{
		id: h.Session, node: h.Node, incarnation: h.Incarnation, inHost: h.InHost, update: e.Update,
		asked: map[uint64]struct{}{}, answers: map[uint64]r.Reply{}, barrier: map[uint64]struct{}{},
	}
	j.sessions[s.id] = s
	j.lastRound(s, h.LastRound)
}

// No run comes near these rounds: reports of higher ones are not believed.
const (
	mostAdopted = 1 << 63
	mostRaised  = 1 << 48
)

// lastRound records what a new session's node says of the round that it was in: it has its
// place again if that is known and free. If this control plane has completed no round,
// the report builds the one of an earlier control plane, unless another one is known
// already that it does not follow. Nothing else comes of a report but that the next
// round has a higher number; and if this control plane was restarted and does not know
// a round of its own generation, that it goes on under another.
func (j *Checker) lastRound(s *session, c r.LastRound) {
	if c.Round == 0 {
		return
	}
	valid := c.World >= 1 && c.World <= j.policy.Max && c.Rank >= 0 && c.Rank < c.World && c.HostRank < c.World && c.Round <= mostAdopted
	follows := len(j.participants) == 0 || c.Generation == j.origin || j.count(unknown) > 0
	own := j.generation != "" && c.Generation == j.generation
	if j.fresh && c.Round > j.round && valid && follows && !own {
		for _, other := range j.nodes() {
			if other != s && j.participantOf(other) != nil {
				other.stale = true
			}
		}
		j.origin, j.round, j.overtaken = c.Generation, c.Round, false
		j.participants, j.byNode, j.sums = nil, map[string]*participant{}, map[string]*sum{}
		for rank := range c.World {
			j.participants = append(j.participants, &participant{rank: rank, state: unknown})
		}
		if c.HostRank >= 0 && c.HostRank != c.Rank {
			j.participants[c.HostRank].state = lost
		}
	}
	if c.Generation == j.origin && c.Round == j.round && c.Rank >= 0 && c.Rank < len(j.participants) && j.participants[c.Rank].state == unknown {
		t := j.participants[c.Rank]
		t.node, t.state = s.node, running
		if c.Finished {
			t.state = finished
		}
		j.byNode[s.node], j.seen[s.node] = t, true
		return
	}
	if own && j.news(c) {
		j.wentBack()
	}
	j.raise(c.Round)
	s.stale = true
}

// news tells whether a report is of a later round than any heard of.
func (j *Checker) news(c r.LastRound) bool {
	return c.Round > max(j.round, j.floor) && c.Round <= mostRaised
}

func (j *Checker) raise(round uint64) {
	if round <= mostRaised {
		j.floor = max(j.floor, round)
	}
}

// returned records what the node of a known session says. One that was in a later round
// than any that this control plane has heard of is a member of the known one no more;
// after a restart, no node is. One that is in no round here has to rejoin from another.
func (j *Checker) returned(s *session, c r.LastRound) {
	switch {
	case j.ended():
	case j.news(c):
		if j.stored || c.Generation == j.generation {
			j.wentBack()
		}
		if t := j.participantOf(s); !j.stored && t != nil && t.live() {
			t.state = lost
		}
		j.raise(c.Round)
		j.notAsked(s)
		if j.participantOf(s) == nil {
			s.stale = true
			clear(s.barrier)
		}
	case c.Finished && c.Generation == j.origin && c.Round == j.round:
		j.finish(s)
	case s.join == nil && j.participantOf(s) == nil && j.foreign(c):
		s.stale = true
	}
}

// foreign reports whether a claim is of a round that this control plane neither completed
// nor adopted.
func (j *Checker) foreign(c r.LastRound) bool {
	return c.Round > j.round || c.Round != 0 && c.Generation != j.origin && c.Generation != j.generation
}

// wentBack records that the state of a restarted control plane is older than its nodes:
// the round that it knows is over, the next ones have another generation, and what nodes
// that are not back yet had asked they ask again, unless it was answered.
func (j *Checker) wentBack() {
	if j.reserve != "" {
		j.generation, j.reserve = j.reserve, ""
	}
	if !j.stored || j.ended() {
		return
	}
	for _, s := range j.nodes() {
		if s.grace {
			j.notAsked(s)
		}
	}
	if j.overtaken {
		return
	}
	j.overtaken = true
	clear(j.sums)
	for _, t := range j.participants {
		if t.state == finished {
			t.state = lost
			if s := j.nodeOf(t.node); s != nil {
				s.stale = true
			}
		}
	}
}

// disowned reports whether the known round is not the last one of its members.
func (j *Checker) disowned() bool { return j.stored && j.overtaken }

// notAsked records that a join is pending no more, without an answer.
func (j *Checker) notAsked(s *session) {
	if s.join == nil {
		return
	}
	if t := j.participantOf(s); t != nil && t.state == rejoined {
		t.state = running
	}
	delete(s.asked, s.join.Number)
	s.join = nil
}

// forget begins a closed run again; the numbers of its rounds go on.
func (j *Checker) forget() {
	clear(j.sessions)
	clear(j.seen)
	clear(j.sums)
	j.participants, j.byNode, j.closing, j.overtaken = nil, map[string]*participant{}, closing{}, false
}

func (j *Checker) disconnect(ev r.Disconnect) {
	s := j.sessions[ev.Session]
	switch {
	case s == nil || s.grace:
	case s.ended:
		j.departed(s.id)
	default:
		s.grace = j.policy.ReconnectGrace > 0 // without a grace it is dropped at once
	}
}

// departed forgets a node that had left, and of which nothing more is expected.
func (j *Checker) departed(id r.SessionID) {
	if s := j.sessions[id]; s != nil && s.ended {
		delete(j.sessions, id)
	}
}

func (j *Checker) timerFired(t r.Timer) {
	name := nameOf(t)
	if running := j.timers[name]; !running.running || running.seq != t.Seq {
		return
	}
	delete(j.timers, name)
	switch t.Kind {
	case r.TimerGrace:
		j.departed(t.Session)
	case r.TimerHold:
		j.held = false
		for _, t := range j.participants {
			if t.state == unknown {
				t.state = lost
			}
		}
	default:
		j.due[t.Kind] = true
	}
}

// dropped checks and records that a node was given up.
func (j *Checker) dropped(ev r.Event, e r.Drop) {
	s := j.sessions[e.Session]
	if s == nil {
		j.violated(6, "session %s was dropped, which is not there", e.Session)
		return
	}
	if !grounds(ev, s, j.policy.ReconnectGrace > 0) {
		j.violated(6, "node %s was given up at %T %+v", s.node, ev, ev)
	}
	j.errs = append(j.errs, failure{err: e.Err, ev: ev, session: s})
	j.part(s)
	delete(j.sessions, s.id)
}

// grounds are the reasons for which a node is given up.
func grounds(ev r.Event, s *session, grace bool) bool {
	switch ev := ev.(type) {
	case r.LeaseExpired:
		return ev.Session == s.id
	case r.Disconnect:
		return ev.Session == s.id && !grace
	case r.TimerFired:
		return ev.Timer.Kind == r.TimerGrace && ev.Timer.Session == s.id && s.grace
	case r.Evict:
		return ev.Node == s.node
	case r.Hello:
		return ev.Node == s.node && ev.Incarnation > s.incarnation
	}
	q, ok := requestOf(ev)
	return ok && q.Session == s.id && (len(s.asked) > 1<<12 || s.held() > 1<<25) // it does not acknowledge answers
}

// held is how many bytes of keys and values the answers have that the session has
// not acknowledged.
func (s *session) held() (bytes int) {
	for _, answer := range s.answers {
		if result, ok := answer.Result.(r.KeyResult); ok {
			for _, value := range result.Values {
				bytes += len(value)
			}
			for _, key := range result.Keys {
				bytes += len(key)
			}
		}
	}
	return bytes
}

func (j *Checker) join(ev r.Join, effects []r.Effect) {
	s := j.sessions[ev.Session]
	var refusal *r.Error
	for _, e := range effects {
		if reply, ok := e.(r.Reply); ok && reply.Session == s.id && reply.Number == ev.Number {
			refusal = reply.Err
		}
	}
	t := j.participantOf(s)
	var want r.Code
	guarantee := 9
	switch {
	case s.ended:
		want = r.CodeInvalid
	case j.ended():
		want = r.CodeClosed
	case t != nil && j.count(finished) > 0:
		want, guarantee = r.CodeClosed, 8
	}
	if got := r.CodeOf(asError(refusal)); got != want {
		if want == 0 {
			guarantee = 4
		}
		j.violated(guarantee, "the join of %s was answered with code %d, want %d (%+v)", s.node, got, want, effects)
	}
	if want != 0 || drops(effects, s.id) {
		return
	}
	if old := s.join; old != nil && !refuses(effects, old.Request) {
		j.violated(1, "node %s joined anew and its join %d was not answered", s.node, old.Number)
	}
	j.arrivals++
	s.join, s.order, s.stale = &ev, j.arrivals, false
	if t != nil {
		t.state = rejoined
	} else {
		j.due[r.TimerQuiet] = false
	}
}

func (j *Checker) withdraw(ev r.Withdraw, effects []r.Effect) {
	s := j.sessions[ev.Session]
	pending := s.join != nil && s.join.Number == ev.Join
	for _, e := range effects {
		if reply, ok := e.(r.Reply); ok && reply.Session == s.id && reply.Number == ev.Number {
			if w, ok := reply.Result.(r.Withdrawn); !ok || w.Completed == pending {
				j.violated(1, "node %s withdrew join %d, pending: %v, and was told %+v", s.node, ev.Join, pending, reply)
			}
		}
	}
	if pending {
		if !refuses(effects, s.join.Request) {
			j.violated(11, "node %s withdrew join %d, which was left without an answer", s.node, ev.Join)
		}
		j.unjoin(s)
	}
}

// refuses reports whether a request was answered with an error.
func refuses(effects []r.Effect, q r.Request) bool {
	return slices.ContainsFunc(effects, func(e r.Effect) bool {
		reply, ok := e.(r.Reply)
		return ok && reply.Session == q.Session && reply.Number == q.Number && reply.Err != nil
	})
}

func (j *Checker) leave(ev r.Leave) {
	s := j.sessions[ev.Session]
	if s.ended {
		return
	}
	if t := j.participantOf(s); t != nil {
		switch ev.Ending {
		case r.EndSuccess:
			j.finish(s)
			j.close(closing{success, s.node, ev.Reason})
		case r.EndFailed:
			t.state = lost
			j.close(closing{failed, s.node, ev.Reason})
		}
	}
	j.part(s)
	s.ended = true
	for number := range s.asked { // what it waited for is dropped; only the others' end may still matter to it
		if _, answered := s.answers[number]; !answered && number != ev.Number && !slices.Contains(s.awaiting, number) {
			delete(s.asked, number)
		}
	}
}

func (j *Checker) finish(s *session) {
	if t := j.participantOf(s); t != nil && t.state == running && !j.disowned() {
		t.state = finished
	}
}

// keyRequest checks the answer to an operation on a round's keys, as far as the
// guarantees go.
func (j *Checker) keyRequest(q r.KeyRequest, effects []r.Effect) {
	s := j.sessions[q.Session]
	var reply *r.Reply
	for _, e := range effects {
		if e, ok := e.(r.Reply); ok && e.Session == s.id && e.Number == q.Number {
			reply = &e
		}
	}
	member := j.participantOf(s) != nil && q.Round == j.round && !j.disowned()
	var code r.Code
	if reply != nil {
		code = r.CodeOf(asError(reply.Err))
	}
	over := member && j.ranksLost(q, reply)
	if over {
		j.overtaken = true
	}
	if !over && (member == (code == r.CodeRoundOver) || !member && reply == nil) {
		j.violated(4, "node %s, member of round %d: %v, asked for keys of it and got %+v", s.node, q.Round, member, effects)
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
		j.finish(s)
	}
	j.addUp(q, reply)
}

// Keys by which the agents assign ranks (docs/spec/agent.md A49).
const (
	roleInfo      = "torchelastic/role_info/"
	assignedRanks = "torchelastic/assigned_ranks/"
)

// ranksLost checks a request for keys of the rank assignment, and reports whether it was
// told that the round is over: in a round that an earlier control plane completed, and in
// one that was overtaken, no agent writes what is missing, so that no request may wait.
func (j *Checker) ranksLost(q r.KeyRequest, reply *r.Reply) bool {
	reads := q.Op == store.OpGet || q.Op == store.OpMultiGet || q.Op == store.OpWait
	others := func(key string) bool {
		return !strings.HasPrefix(key, roleInfo) && !strings.HasPrefix(key, assignedRanks)
	}
	if !reads || !j.fresh && !j.overtaken || len(q.Keys) == 0 || slices.ContainsFunc(q.Keys, others) {
		return false
	}
	if reply == nil {
		j.violated(7, "session %s waits for %q in a round whose ranks are lost", q.Session, q.Keys)
		return false
	}
	return r.CodeOf(asError(reply.Err)) == r.CodeRoundOver
}

// addUp follows the sums of keys that nothing but additions has changed.
func (j *Checker) addUp(q r.KeyRequest, reply *r.Reply) {
	switch q.Op {
	case store.OpAdd:
		t := j.sums[q.Keys[0]]
		if t == nil {
			t = &sum{known: true}
			j.sums[q.Keys[0]] = t
		}
		t.value += q.Amount
		if reply == nil || !t.known {
			return
		}
		if got, ok := reply.Result.(r.KeyResult); !ok || got.Number != t.value {
			j.violated(11, "the sum of all additions to %s is %d, the answer to %d of %s says %+v", q.Keys[0], t.value, q.Number, q.Session, reply.Result)
		}
	case store.OpSet, store.OpCompareSet, store.OpAppend, store.OpDelete, store.OpMultiSet:
		for _, key := range q.Keys {
			j.sums[key] = &sum{}
		}
	case store.OpBarrier: // counts in keys of its own
		for _, key := range q.Keys {
			j.sums[key] = &sum{}
			j.sums[fmt.Sprint(key, "/num_members")], j.sums[fmt.Sprint(key, "/last_member")] = &sum{}, &sum{}
		}
	}
}
