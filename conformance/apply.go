package conformance

import (
	"slices"
	"strings"

	r "rallypoint/core/rendezvous"
	"rallypoint/internal/printable"
)

func (c *Checker) apply(ev r.Event, effects []r.Effect) {
	switch ev := ev.(type) {
	case r.Hello:
		c.hello(ev, effects)
	case r.Disconnect:
		c.disconnect(ev)
	case r.LeaseExpired:
		c.departed(ev.Session)
	case r.Recovered:
		c.stored, c.reserve, c.recovery = true, ev.Generation, ev.Grace
		for _, s := range c.sessions {
			s.grace, s.recovering = true, true
		}
	case r.TimerFired:
		c.timerFired(ev.Timer)
	case r.Join:
		c.join(ev, effects)
	case r.Withdraw:
		c.withdraw(ev, effects)
	case r.Leave:
		c.leave(ev)
	case r.CloseRun:
		by, kind := ev.By, admission
		if s := c.sessions[ev.Session]; s != nil {
			by = r.MachineOf(s.node)
		}
		if ev.Stop {
			kind = failed
		}
		c.close(closing{kind: kind, by: by, reason: ev.Reason})
	case r.Finish:
		c.finish(c.sessions[ev.Session])
	case r.AwaitPeers:
		s := c.sessions[ev.Session]
		s.awaiting = append(s.awaiting, ev.Number)
	case r.KeyRequest:
		c.keyRequest(ev, effects)
	case r.AnnounceStop:
		c.announceStop(ev, effects)
	case r.Direct:
		c.direct(ev)
	case r.CancelDirective:
		if c.stands(ev.ID) != nil {
			c.own = true
			c.endDirective()
		}
	case r.GiveDirective:
		c.given(ev, effects)
	case r.ReportDirective:
		c.reported(c.sessions[ev.Session], ev.Generation, ev.Round, r.DirectiveReport{ID: ev.ID, Step: ev.Step, Saved: ev.Saved})
	case r.Forget:
		if c.ended() && len(c.nodes()) == 0 {
			c.forget()
		}
	case r.Ended:
		if k := closedKind(ev.Closing.Kind); !c.ended() && c.round == 0 && len(c.sessions) == 0 && (k == admission || k == success) && ev.For > 0 {
			c.closing = closing{k, printable.Text(ev.Closing.By), printable.Text(ev.Closing.Reason), ev.Closing.Commands}
			c.rest = ev.For
		}
	case r.Cordon:
		c.cordon(ev)
	case r.Undrain:
		if _, away := c.drained[ev.Node]; away {
			c.own = true
		}
		delete(c.drained, ev.Node)
	}
}

func (c *Checker) hello(h r.Hello, effects []r.Effect) {
	refused, welcomed := received(effects)
	if s := c.sessions[h.Session]; s != nil {
		switch {
		case s.node != h.Node:
			if refused == nil {
				c.violated(11, "a hello of node %s on the session of node %s was not refused", h.Node, s.node)
			}
		case welcomed == nil:
			c.violated(11, "the known session %s of node %s was not welcomed again: %+v", s.id, s.node, effects)
		case !welcomed.Resumed:
			c.violated(11, "node %s came back and was taken for a new one", s.node)
		}
		return
	}
	for _, name := range []string{h.Node, h.Topology} {
		if printable.Text(name) == name {
			continue
		}
		if refused == nil {
			c.violated(11, "a node was taken whose name or topology %q cannot be shown", name)
		}
		return
	}
	if c.ended() && len(c.nodes()) == 0 && c.beginsAgain(h) {
		c.forget()
	}
	if c.refusesDrained(h, refused) {
		return
	}
	p, invalid := h.Policy, h.Policy.Validate() != nil || h.Policy.Segment > 1 && h.Topology == ""
	old := c.nodeOf(h.Node)
	switch {
	case invalid:
	case len(c.nodes()) == 0:
		c.policy, c.policyBy = p, h.Node
		if !c.fitting(c.target) {
			c.target = 0
		}
		c.begin()
	case c.policy.Min != p.Min || c.policy.Max != p.Max || c.policy.NodeUnit != p.NodeUnit || c.segment() != max(1, p.Segment) || c.policy.Target != p.Target || c.policy.NoQuorum != p.NoQuorum:
		if r.CodeOf(asError(refused)) != r.CodeMismatch {
			c.violated(2, "node %s wants another size than the run's and was not refused for it: %+v", h.Node, effects)
		}
		return
	case old != nil && h.Incarnation <= old.incarnation:
		if r.CodeOf(asError(refused)) != r.CodeNodeInUse {
			c.violated(4, "a second node %s was not refused: %+v", h.Node, effects)
		}
		return
	}
	if invalid != (refused != nil) || (refused == nil) != (welcomed != nil) {
		c.violated(11, "the hello of node %s was answered by %+v", h.Node, effects)
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

// commandOf is the digest of a node's command, if it is one.
func commandOf(h r.Hello) string {
	if d := h.Command.Digest; len(d) <= 64 && strings.Trim(d, "0123456789abcdef") == "" {
		return d
	}
	return ""
}

// welcome registers a session, or its new connection.
func (c *Checker) welcome(ev r.Event, e r.Welcome) {
	h, ok := ev.(r.Hello)
	if !ok || h.Session != e.Session {
		c.violated(4, "session %s was welcomed without a hello", e.Session)
		return
	}
	if s := c.sessions[e.Session]; s != nil {
		s.grace, s.recovering, s.update, s.inHost = false, false, e.Update, h.InHost
		s.command, s.member = commandOf(h), s.member || h.LastRound.Round > 0
		c.tell(e.Update)
		c.tellDirective(e.Update.Directive)
		c.hosts(s)
		c.returned(s, h.LastRound)
		c.reports(s, h.LastRound)
		return
	}
	s := &session{
		id: h.Session, node: h.Node, hostName: printable.Text(h.HostName), domain: h.Topology, command: commandOf(h), member: h.LastRound.Round > 0, incarnation: h.Incarnation, inHost: h.InHost, update: e.Update,
		asked: map[uint64]struct{}{}, answers: map[uint64]r.Reply{}, barrier: map[uint64]struct{}{},
	}
	c.sessions[s.id] = s
	c.tell(e.Update)
	c.lastRound(s, h.LastRound)
	c.unclaimed(s)
	c.tellDirective(e.Update.Directive)
	c.reports(s, h.LastRound)
	c.hosts(s)
}

// No run comes near these rounds: reports of higher ones are not believed.
const (
	mostAdopted = 1 << 63
	mostRaised  = 1 << 48
)

// lastRound records the report of a new session's node about its last round. The node gets its
// place back if that is known and free. If this control plane has completed no round, the report
// builds the round of an earlier control plane, unless another one is already known that it does
// not follow. Otherwise a report only raises the number of the next round. A restarted control
// plane that does not know a round of its own generation also continues under another one.
//
// A successor acts on the facts that come with a report, if they may be believed: see learn.
// A report with facts that cannot be is worth nothing.
func (c *Checker) lastRound(s *session, last r.LastRound) {
	f := last.Facts
	if !c.possible(f, last) {
		c.raise(last.Round)
		s.stale = s.stale || last.Round > 0
		return
	}
	if c.believed(f) && f.Round > last.Round && f.World > 0 && f.Round > c.round && c.follows(f.Origin) {
		c.rebuild(f.Origin, f.Round, f.World)
	}
	c.ownRound(s, last)
	if c.believed(f) {
		c.raise(f.Round)
		c.learn(f)
	}
}

// unclaimed gives up a silent host's place if its node comes back and does not claim it.
func (c *Checker) unclaimed(s *session) {
	if t := c.byNode[s.node]; t != nil && t.state == unknown {
		t.state = lost
	}
}

// follows reports whether a round of that generation may take the place of the known one.
func (c *Checker) follows(generation string) bool {
	if before := c.succession.Facts.Generation; c.succeeds() && before != "" {
		return generation == c.origin || generation == before
	}
	return (c.generation == "" || generation != c.generation) && (len(c.participants) == 0 || generation == c.origin || c.count(unknown) > 0)
}

// ownRound records a report about its node's own round.
func (c *Checker) ownRound(s *session, last r.LastRound) {
	if last.Round == 0 {
		return
	}
	valid := last.World >= 1 && last.World <= c.policy.Max && last.Rank >= 0 && last.Rank < last.World && last.HostRank < last.World && last.Round <= mostAdopted
	own := c.generation != "" && last.Generation == c.generation
	if c.fresh && last.Round > c.round && valid && c.follows(last.Generation) {
		c.rebuild(last.Generation, last.Round, last.World)
		told := c.believed(last.Facts) && last.Facts.Round == last.Round && last.Facts.Origin == last.Generation // who hosts by now
		if !told && !c.succession.Silent && last.HostRank >= 0 && last.HostRank != last.Rank {
			c.participants[last.HostRank].state = lost
		}
	}
	if last.Generation == c.origin && last.Round == c.round && last.Rank >= 0 && last.Rank < len(c.participants) && c.participants[last.Rank].vacant(last) {
		t := c.participants[last.Rank]
		if named := c.byNode[s.node]; named != nil && named != t && named.state == unknown {
			named.node = ""
		}
		if t.node != s.node {
			delete(c.byNode, t.node)
		}
		t.node, t.domain, t.command, t.state = s.node, s.domain, s.command, running
		if last.Finished {
			t.state = finished
		}
		c.byNode[s.node], c.seen[s.node] = t, true
		return
	}
	if own && c.news(last) {
		c.wentBack()
	}
	c.raise(last.Round)
	s.stale = true
}

// news tells whether a report is of a later round than any heard of.
func (c *Checker) news(last r.LastRound) bool {
	return last.Round > max(c.round, c.floor) && last.Round <= mostRaised
}

func (c *Checker) raise(round uint64) {
	if round <= mostRaised {
		c.floor = max(c.floor, round)
	}
}

// returned records the report of a known session's node. A node that was in a later round than
// any known here is no longer a member of the known round. After a restart no node is. A node
// that is in no round here has to rejoin from another.
func (c *Checker) returned(s *session, last r.LastRound) {
	switch {
	case c.ended():
	case c.news(last):
		if c.stored || last.Generation == c.generation {
			c.wentBack()
		}
		if t := c.participantOf(s); !c.stored && t != nil && t.live() {
			t.state = lost
		}
		c.raise(last.Round)
		c.notAsked(s)
		if c.participantOf(s) == nil {
			s.stale = true
			clear(s.barrier)
		}
	case last.Finished && last.Generation == c.origin && last.Round == c.round:
		c.finish(s)
	case s.join == nil && c.participantOf(s) == nil && c.foreign(last):
		s.stale = true
	}
}

// foreign reports whether a report is of a round that this control plane neither completed
// nor adopted. A report without a generation is of none, nor has the checker one before the first
// outcome.
func (c *Checker) foreign(last r.LastRound) bool {
	known := last.Generation != "" && (last.Generation == c.origin || last.Generation == c.generation)
	return last.Round > c.round || last.Round != 0 && !known
}

// wentBack records that the state of a restarted control plane is older than its nodes'. The
// round that it knows is over, and the next ones have another generation. Nodes that are not back
// yet repeat their requests, unless those were answered.
func (c *Checker) wentBack() {
	if c.reserve != "" {
		c.generation, c.reserve = c.reserve, ""
	}
	if !c.stored || c.ended() {
		return
	}
	for _, s := range c.nodes() {
		if s.grace {
			c.notAsked(s)
		}
	}
	if c.overtaken {
		return
	}
	c.overtaken = true
	clear(c.sums)
	for _, t := range c.participants {
		if t.state == finished {
			t.state = lost
			if s := c.nodeOf(t.node); s != nil {
				s.stale = true
			}
		}
	}
}

// disowned reports whether the known round is not the last one of its members.
func (c *Checker) disowned() bool { return c.stored && c.overtaken }

// notAsked records that a join is pending no more, without an answer.
func (c *Checker) notAsked(s *session) {
	if s.join == nil {
		return
	}
	if t := c.participantOf(s); t != nil && t.state == rejoined {
		t.state = running
	}
	delete(s.asked, s.join.Number)
	s.join = nil
}

// forget begins a closed run again; the numbers of its rounds continue.
func (c *Checker) forget() {
	clear(c.sessions)
	clear(c.seen)
	clear(c.sums)
	c.participants, c.byNode, c.closing, c.overtaken = nil, map[string]*participant{}, closing{}, false
	c.domains = ""
	c.stop = r.RoundStop{}
	c.hostRank, c.finishedHosts, c.finishReported = -1, nil, false
	clear(c.drained)
	c.target, c.rest = 0, 0
}

func (c *Checker) disconnect(ev r.Disconnect) {
	s := c.sessions[ev.Session]
	switch {
	case s == nil || s.grace && !ev.Dead:
	case s.ended:
		c.departed(s.id)
	case !ev.Dead:
		s.grace = c.policy.ReconnectGrace > 0 // without a grace it is dropped at once
	}
}

// departed forgets a node that had left, and of which nothing more is expected.
func (c *Checker) departed(id r.SessionID) {
	if s := c.sessions[id]; s != nil && s.ended {
		delete(c.sessions, id)
	}
}

func (c *Checker) timerFired(t r.Timer) {
	name := nameOf(t)
	if running := c.timers[name]; !running.running || running.seq != t.Seq {
		return
	}
	delete(c.timers, name)
	switch t.Kind {
	case r.TimerGrace:
		c.departed(t.Session)
	case r.TimerDirective:
		if c.standing != nil {
			c.carryOut(c.standing)
		}
	case r.TimerDrained:
		node := string(t.Session)
		if d := c.standing; d != nil && slices.Contains(d.Nodes, node) && c.drained[node].cordoned {
			break // it has not left yet
		}
		c.own = true
		delete(c.drained, node)
	case r.TimerHold:
		c.held = false
		for _, t := range c.participants {
			if t.state == unknown {
				t.state = lost
			}
		}
	default:
		c.due[t.Kind] = true
	}
}

// dropped checks and records that a node was given up.
func (c *Checker) dropped(ev r.Event, e r.Drop) {
	s := c.sessions[e.Session]
	if s == nil {
		c.violated(6, "session %s was dropped, which is not there", e.Session)
		return
	}
	if !c.grounds(ev, s) && !c.leaving[s.node] && !hogs(ev, s, e) {
		c.violated(6, "node %s was given up at %T %+v", s.node, ev, ev)
	}
	c.errs = append(c.errs, failure{err: e.Err, ev: ev, session: s})
	c.part(s)
	delete(c.sessions, s.id)
}

// grounds are the reasons for which a node is given up.
func (c *Checker) grounds(ev r.Event, s *session) bool {
	switch ev := ev.(type) {
	case r.LeaseExpired:
		return ev.Session == s.id
	case r.Disconnect:
		return ev.Session == s.id && (ev.Dead || c.policy.ReconnectGrace <= 0)
	case r.TimerFired:
		return ev.Timer.Kind == r.TimerGrace && ev.Timer.Session == s.id && s.grace
	case r.Evict:
		return s.isNamed([]string{ev.Node})
	case r.Hello:
		return ev.Node == s.node && ev.Incarnation > s.incarnation
	}
	q, ok := requestOf(ev)
	return ok && q.Session == s.id && (len(s.asked) > 1<<12 || s.held() > 1<<25) // it does not acknowledge answers
}

// hogs reports whether a node is given up at a request, of any node, because its run keeps too
// much, and it holds some of that.
func hogs(ev r.Event, s *session, e r.Drop) bool {
	_, ok := requestOf(ev)
	return ok && len(s.asked) > 0 && strings.Contains(e.Err.Text, r.CauseOverLimit)
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

func (c *Checker) join(ev r.Join, effects []r.Effect) {
	s := c.sessions[ev.Session]
	refused := refusal(effects, ev.Request)
	t := c.participantOf(s)
	var want r.Code
	guarantee := 9
	row, away := c.rowOf(s.node, s.hostName) // by its own word: it is still here
	switch {
	case s.ended:
		want = r.CodeInvalid
	case c.ended():
		want = r.CodeClosed
		if (t == nil || t.state == finished) && c.closing.kind == success {
			want = r.CodeGraceful
			if !s.member && s.command != "" && c.closing.commands != "" && !strings.Contains(c.closing.commands, s.command) {
				want = r.CodeMismatch
			}
		}
	case away:
		want, guarantee = row.code(), 4
	case t != nil && c.finishing():
		want, guarantee = r.CodeClosed, 8
	case t == nil && c.strange(s):
		want, guarantee = r.CodeMismatch, 4
	}
	if got := r.CodeOf(asError(refused)); got != want {
		if want == 0 {
			guarantee = 4
		}
		c.violated(guarantee, "the join of %s was answered with code %d, want %d (%+v)", s.node, got, want, effects)
	}
	if want != 0 || drops(effects, s.id) {
		return
	}
	if old := s.join; old != nil && refusal(effects, old.Request) == nil {
		c.violated(1, "node %s joined again and its join %d was not answered", s.node, old.Number)
	}
	c.arrivals++
	s.join, s.order, s.stale = &ev, c.arrivals, false
	if t != nil {
		t.state = rejoined
	} else {
		c.due[r.TimerQuiet] = false
	}
}

func (c *Checker) withdraw(ev r.Withdraw, effects []r.Effect) {
	s := c.sessions[ev.Session]
	pending := s.join != nil && s.join.Number == ev.Join
	if reply := replyTo(effects, ev.Request); reply != nil {
		if w, ok := reply.Result.(r.Withdrawn); !ok || w.Completed == pending {
			c.violated(1, "node %s withdrew join %d, pending: %v, and was told %+v", s.node, ev.Join, pending, *reply)
		}
	}
	if pending {
		if refusal(effects, s.join.Request) == nil {
			c.violated(11, "node %s withdrew join %d, which was left without an answer", s.node, ev.Join)
		}
		c.unjoin(s)
	}
}

// replyTo is the answer to a request; nil: there is none.
func replyTo(effects []r.Effect, q r.Request) *r.Reply {
	for _, e := range effects {
		if reply, ok := e.(r.Reply); ok && reply.Session == q.Session && reply.Number == q.Number {
			return &reply
		}
	}
	return nil
}

// refusal is the error that answers a request; nil: none does.
func refusal(effects []r.Effect, q r.Request) *r.Error {
	if reply := replyTo(effects, q); reply != nil {
		return reply.Err
	}
	return nil
}

func (c *Checker) leave(ev r.Leave) {
	s := c.sessions[ev.Session]
	if s.ended {
		return
	}
	if t := c.participantOf(s); t != nil {
		switch ev.Ending {
		case r.EndSuccess:
			c.finish(s)
			c.close(closing{kind: success, by: r.MachineOf(s.node), reason: ev.Reason})
		case r.EndFailed:
			t.state = lost
			c.close(closing{kind: failed, by: r.MachineOf(s.node), reason: ev.Reason})
		}
	}
	c.part(s)
	s.ended = true
	for number := range s.asked { // what it waited for is dropped; only the others' end may still matter to it
		if _, answered := s.answers[number]; !answered && number != ev.Number && !slices.Contains(s.awaiting, number) {
			delete(s.asked, number)
		}
	}
}

func (c *Checker) finish(s *session) {
	if t := c.participantOf(s); t != nil && t.state == running && !c.disowned() {
		t.state = finished
		c.hosts(s)
	}
}

// vacant reports whether the node of a report may have the place: no other node has, and
// if the dead control plane told that it has finished, so has the node.
func (p *participant) vacant(last r.LastRound) bool {
	return p.state == unknown || p.state == finished && p.node == "" && last.Finished
}
