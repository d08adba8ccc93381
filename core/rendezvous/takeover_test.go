package rendezvous

import (
	"cmp"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestGuaranteesAcrossTakeovers is TestGuarantees of a run whose hosts die one after the
// other, judged as one history: at any point, with messages that did not arrive, nodes that
// come in any order or not at all, and reports that are not true.
func TestGuaranteesAcrossTakeovers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSim(t)
		s.isHosted()
		follow := func(t *rapid.T) {
			s.follow(t, s.pick(t, func(n *rigNode) bool { return n.moved && s.nodes[n.id] == n }))
		}
		s.formRound(t)
		t.Repeat(map[string]func(*rapid.T){
			"hello": s.hello, "join": s.join, "join 2": s.join, "disconnect": s.disconnect, "reconnect": s.reconnect, "timer": s.timer,
			"withdraw": s.withdraw, "finish": s.finish, "leave": s.leave, "add": s.add, "role info": s.roleInfo, "close": s.close,
			"linger": s.linger, "restore": s.restore, "stranger": s.stranger, "announce": s.announceAny, "unfit": s.unfitAny,
			"direct": s.directAny, "undirect": s.undirectAny, "report": s.reportAny, "report 2": s.reportAny, "takeover": s.takeover, "follow": follow, "follow 2": follow, "follow 3": follow, "": func(*rapid.T) {},
		})
	})
}

// isHosted makes the run one that the process of its first node hosts.
func (s *sim) isHosted() {
	if s.host != "" {
		return
	}
	s.host, s.term = "n0", 1
	s.m.succession.Term, s.twin.succession.Term, s.lean.succession.Term = 1, 1, 1
	s.checker.TookOver(s.host, Succession{Term: 1})
}

// takeover kills the process that hosts, and goes on in another node's. That one begins
// with what it was told, which may be older than what others were told; each of the others
// comes by itself, or never does, or another takeover is first.
func (s *sim) takeover(t *rapid.T) {
	if s.host == "" || rapid.IntRange(0, 2).Draw(t, "rarely") > 0 {
		t.Skip("rarely")
	}
	next := s.pick(t, func(n *rigNode) bool { return n.id != s.host && s.nodes[n.id] == n })
	from := cmp.Or(s.hosts[next.facts.Generation], s.host)
	silent := rapid.IntRange(0, 2).Draw(t, "the host is silent") == 0
	if from != s.host && (silent || s.nodes[from] != nil) {
		t.Skip("who is elected in a silent host's place knows what the last one has told")
	}
	if dead := s.nodes[s.host]; dead != nil && !silent {
		delete(s.nodes, s.host)
		s.nodes["was "+string(dead.session)] = dead
	}
	for _, n := range s.sorted() {
		n.moved, n.inHost = true, n == next
		n.forgets(rapid.IntRange(0, 2).Draw(t, "messages that did not arrive at "+n.id))
	}
	old := s.m
	s.term++
	c := Succession{Term: s.term, From: from, Facts: next.facts, Silent: silent}
	if silent {
		c.Grace = 7 * time.Second
	}
	if rapid.IntRange(0, 9).Draw(t, "it was told nothing") == 0 {
		c.Facts = Facts{}
	}
	s.host = next.id
	s.checker.TookOver(s.host, c)
	s.replace(Config{Uptime: -1, Succession: c})
	s.waited = c.Facts.World == 0 // it does not know whom to wait for
	s.mustKnow(old, next)
}

// mayStillCome names a live node that the next host has to wait for: it was in the round
// that goes on there, and is on its way.
func (s *sim) mayStillCome(ev Event) string {
	if fired, is := ev.(TimerFired); is && fired.Timer.Kind == TimerHold {
		s.waited = true
	}
	if !s.m.succession.succeeds() || !s.m.round.fresh || s.waited || len(s.m.round.participants) == 0 {
		return ""
	}
	hello, _ := ev.(Hello)
	for _, n := range s.sorted() {
		if f := hello.LastRound.Facts; hello.Session == n.session && f.Generation != "" && !f.Equal(n.facts) {
			continue // it comes, and loses its place by a false report
		}
		if n.moved && s.nodes[n.id] == n && !n.claim.Finished && n.claim.Round == s.m.round.number && n.claim.Generation == s.m.round.origin {
			return n.id
		}
	}
	return ""
}

// mustKnow checks that the next host, with a node that was told everything, knows what the
// one before knew, before any other node has come.
func (s *sim) mustKnow(old *Machine, next *rigNode) {
	if next.lied || !next.facts.Equal(old.Facts()) || !s.m.succession.Facts.Equal(next.facts) {
		return
	}
	twin := New(Config{RunID: "job", Generation: "twin", Succession: s.m.succession})
	twin.Apply(Hello{Session: next.session, Node: next.id, Policy: s.policy, LastRound: next.reports(), InHost: true})
	if twin.forming.policy.Min != old.forming.policy.Min || twin.forming.policy.Max != old.forming.policy.Max {
		return
	}
	if old.closed != nil && (twin.closed == nil || twin.closed.Kind != old.closed.Kind) {
		s.t.Fatalf("the run is closed (%s), its next host says %v", old.closed.text(), twin.closed)
	}
	if old.round.finishing() && !twin.round.finishing() && twin.closed == nil {
		s.t.Fatalf("members have finished, of which the next host knows nothing")
	}
	if len(old.round.participants) > 0 && (twin.round.highest() < old.round.number || len(twin.round.participants) != len(old.round.participants)) {
		s.t.Fatalf("the last round was %d, of %d; the next host knows %d, of %d", old.round.number, len(old.round.participants), twin.round.number, len(twin.round.participants))
	}
	s.mustKnowDirectives(old, twin)
	if old.round.hostRank < 0 || len(old.round.participants) == 0 || old.closed != nil {
		return
	}
	was, is := old.round.participants[old.round.hostRank].state, twin.round.participants[old.round.hostRank].state
	want := participantLost
	if s.m.succession.Silent {
		want = participantUnknown
	}
	if was == participantFinished && is != was || was != participantFinished && is != want {
		s.t.Fatalf("the last host's node was %s, it is %s", participantStateNames[was], participantStateNames[is])
	}
}

// forgets takes back what the node was told last: it was on its way when the host died.
func (r *rigNode) forgets(messages int) {
	for ; messages > 0 && len(r.seen) > 0; messages-- {
		last := r.seen[len(r.seen)-1]
		r.seen = r.seen[:len(r.seen)-1]
		r.claim, r.facts = last.claim, last.facts
		delete(r.replies, last.answer)
	}
	r.seen = nil
}

// follow brings a node to the next host, with the join that it has no answer to. Some
// bring facts that are not true.
func (s *sim) follow(t *rapid.T, n *rigNode) {
	if s.nodes[n.id] != n {
		t.Skip("its process is dead")
	}
	c := n.reports()
	switch rapid.IntRange(0, 9).Draw(t, "facts") {
	case 0:
		c.Facts = Facts{}
	case 1:
		c.Facts = s.falseFacts(t)
		n.lied = true
	}
	h := Hello{Session: n.session, Node: n.id, Policy: s.policy, SeenAddr: "10.0.0.1", LastRound: c, InHost: n.inHost}
	s.do(h)
	n.moved = false
	if _, answered := n.replies[n.joinNo]; n.joinNo == 0 || answered || !s.connected(n) {
		return
	}
	s.send(Join{Request: Request{Session: n.session, Number: n.joinNo}, StorePort: 1, NodeRank: -1, RankHint: -1})
}

// falseFacts are any facts, possible or not, that seem to come from the host before.
func (s *sim) falseFacts(t *rapid.T) Facts {
	f := Facts{
		Generation: rapid.SampledFrom([]string{s.m.succession.Facts.Generation, s.m.generation, "another job"}).Draw(t, "generation"),
		Origin:     rapid.SampledFrom([]string{s.m.round.origin, s.m.generation, "another job", ""}).Draw(t, "origin"),
		Round:      rapid.SampledFrom([]uint64{0, s.m.round.number, s.m.round.number + 1, maxFloor + 1, maxRound + 1}).Draw(t, "round"),
		World:      rapid.IntRange(-1, s.policy.Max+1).Draw(t, "world"),
		HostRank:   rapid.IntRange(-2, s.policy.Max).Draw(t, "host"),
		Finished:   rapid.Bool().Draw(t, "finished"),
		Closed:     Closing{Kind: ClosedKind(rapid.IntRange(-1, 4).Draw(t, "closed")), By: "by", Reason: "why"},
	}
	for range rapid.IntRange(0, 2).Draw(t, "finished hosts") {
		f.FinishedHosts = append(f.FinishedHosts, rapid.IntRange(-1, s.policy.Max).Draw(t, "rank"))
	}
	return f
}

// sorted are the nodes in an order that a seed repeats.
func (s *sim) sorted() (list []*rigNode) {
	for _, key := range slices.Sorted(maps.Keys(s.nodes)) {
		list = append(list, s.nodes[key])
	}
	return list
}
