package rendezvous

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func drainOf(id string, within, away time.Duration, nodes ...string) Direct {
	return Direct{ID: id, Kind: DirectiveDrain, Nodes: nodes, Within: within, For: away, By: "admin carol", Reason: "its disk"}
}

// TestDrainOfASpare: a node without workers leaves at once, and the workers of the round are not
// asked to save, nor to wait, for it.
func TestDrainOfASpare(t *testing.T) {
	p := policy(2, 2)
	r := newRig(t, -1)
	n := r.group(p, "a", "b")
	spare := r.hello("c", p)
	r.join(spare)
	r.apply(drainOf("d1", time.Minute, 0, "c"))
	r.wantNoDirective(n...)
	if spare.dropped == nil || n[0].notice.Waiting > 0 || r.hello("c", p).welcomed {
		t.Errorf("the spare was told %v, a member %+v", spare.dropped, n[0].notice)
	}
	again := r.hello("d", p)
	r.join(again)
	r.apply(drainOf("d2", time.Minute, 0, "d", "b"))
	if again.dropped != nil || n[0].notice.Directive.ID != "d2" {
		t.Errorf("it leaves before the member that is drained with it: %+v", n[0].notice)
	}
}

// TestUndrain admits a node whose drain has no end of its own.
func TestUndrain(t *testing.T) {
	p := policy(1, 2)
	r := newRig(t, -1)
	r.group(p, "a", "b")
	r.apply(drainOf("d1", 0, 0, "b"))
	if r.runs(TimerDrained) || r.hello("b", p).welcomed {
		t.Error("it is admitted")
	}
	r.apply(Undrain{Node: "b", By: "admin", Reason: "mended"})
	if !r.hello("b", p).welcomed {
		t.Error("it is not admitted")
	}
}

// TestRoundEndedByADirective: the next round is told that a drain or a scale has ended the one
// before, whatever its deadline and also after a takeover; and of nothing else.
func TestRoundEndedByADirective(t *testing.T) {
	p := policy(1, 3)
	scale := func(target int, within time.Duration) Direct {
		return Direct{ID: "d1", Kind: DirectiveScale, Target: target, Within: within, By: "admin", Reason: "why"}
	}
	for name, c := range map[string]struct {
		given  []Event
		events func(r *rig, n []*rigNode)
		want   bool
	}{
		"a drain at once":      {given: []Event{drainOf("d1", 0, 0, "b")}, want: true},
		"a drain":              {[]Event{drainOf("d1", time.Minute, 0, "b")}, func(r *rig, _ []*rigNode) { r.fire(TimerDirective) }, true},
		"and it may come back": {[]Event{drainOf("d1", 0, 0, "b"), Undrain{Node: "b", By: "admin"}}, nil, true},
		"the node has gone":    {[]Event{drainOf("d1", time.Minute, 0, "b")}, func(r *rig, n []*rigNode) { r.lost(n[1]) }, true},
		"a scale at once":      {given: []Event{scale(2, 0)}, want: true},
		"a scale":              {[]Event{scale(2, time.Minute)}, func(r *rig, _ []*rigNode) { r.fire(TimerDirective) }, true},
		"room for all":         {[]Event{scale(3, 0)}, func(r *rig, n []*rigNode) { r.lost(n[1]) }, false},
		"another node is lost": {[]Event{drainOf("d1", time.Minute, 0, "b")}, func(r *rig, n []*rigNode) { r.lost(n[2]) }, false},
		"canceled":             {[]Event{scale(2, time.Minute), CancelDirective{ID: "d1"}}, func(r *rig, n []*rigNode) { r.lost(n[1]) }, false},
		"a save":               {[]Event{Direct{ID: "d1", Kind: DirectiveSave, Within: time.Minute, By: "admin"}}, func(r *rig, n []*rigNode) { r.fire(TimerDirective); r.lost(n[1]) }, false},
	} {
		r := newRig(t, -1)
		n := r.group(p, "a", "b", "c")
		for _, ev := range c.given {
			r.apply(ev)
		}
		if c.events != nil {
			c.events(r, n)
		}
		for range 2 { // nothing but the joins of its members ends the second one
			for _, node := range n {
				if r.m.Has(node.session) {
					r.join(node)
				}
			}
			if o, _, ok := n[0].outcome(); !ok || o.ByDirective != c.want {
				t.Errorf("%s: round %d was told %v", name, o.Round, o.ByDirective)
			}
			c.want = false
		}
	}
}

// TestDirectivesInSnapshot: a directive, and who is drained, survive a restart.
func TestDirectivesInSnapshot(t *testing.T) {
	p := policy(1, 3)
	r := newRig(t, -1)
	r.group(p, "a", "b", "c")
	r.apply(drainOf("d0", 0, time.Hour, "c"))
	r.apply(drainOf("d1", time.Minute, 0, "b"))
	state := r.m.Snapshot()
	m, err := Restore(state)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(m.Snapshot(), state) {
		t.Error("a restored machine is another one")
	}
	r.m = m
	r.fire(TimerDirective)
	for _, id := range []string{"b", "c"} {
		if r.hello(id, p).welcomed {
			t.Errorf("node %s is admitted", id)
		}
	}
	r.apply(drainOf("d0", 0, 0, "a"))
	if r.m.directives.drained["a"] != nil {
		t.Error("a directive that had ended is carried out again")
	}
}

// directAny, undirectAny and reportAny are actions of TestGuarantees.
func (s *sim) directAny(t *rapid.T) {
	if rapid.IntRange(0, 2).Draw(t, "rarely") > 0 {
		t.Skip("rarely")
	}
	node := rapid.SampledFrom([]string{"n0", "n1", "n2", "n3", "h0", "h1"})
	d := Direct{
		ID: fmt.Sprint("d", rapid.IntRange(0, 9).Draw(t, "id")), Kind: rapid.SampledFrom([]DirectiveKind{DirectiveSave, DirectiveSave, DirectiveDrain, DirectiveDrain, DirectiveScale, DirectiveStop}).Draw(t, "kind"),
		By: "admin", Reason: "why", Within: time.Duration(rapid.IntRange(0, 3).Draw(t, "within")) * time.Minute,
	}
	if rapid.IntRange(0, 5).Draw(t, "cordon") == 0 {
		s.do(Cordon{Node: node.Draw(t, "name"), For: time.Duration(rapid.IntRange(0, 1).Draw(t, "for")) * time.Minute, By: "admin", Reason: "why"})
		return
	}
	switch d.Kind {
	case DirectiveDrain:
		d.Nodes = rapid.SliceOfN(node, 1, 2).Draw(t, "nodes")
		d.For = time.Duration(rapid.IntRange(0, 1).Draw(t, "for")) * time.Minute
	case DirectiveScale:
		d.Target = rapid.IntRange(s.policy.Min, s.policy.Max+1).Draw(t, "target")
	case DirectiveStop:
		if rapid.IntRange(0, 2).Draw(t, "stops rarely") > 0 {
			t.Skip("rarely")
		}
	}
	if rapid.Bool().Draw(t, "by a node") {
		n := s.pick(t, func(n *rigNode) bool { return s.connected(n) })
		unfit := d.Kind == DirectiveDrain && rapid.Bool().Draw(t, "unfit")
		if unfit {
			d.Nodes, d.For = nil, time.Duration(rapid.IntRange(0, 2).Draw(t, "away"))*time.Minute
		}
		s.send(GiveDirective{Request: n.request(), Directive: d, Unfit: unfit})
		return
	}
	s.do(d)
}

func (s *sim) reportAny(t *rapid.T) {
	d := s.m.directives.standing
	if d == nil {
		t.Skip("none stands")
	}
	n := s.pick(t, func(n *rigNode) bool { return s.connected(n) && n.claim.Round > 0 })
	report := DirectiveReport{ID: d.ID, Step: int64(rapid.IntRange(-1, 5).Draw(t, "step")), Saved: rapid.Bool().Draw(t, "saved")}
	round := n.claim.Round
	if rapid.IntRange(0, 9).Draw(t, "another round") == 0 {
		round++
	} else if len(n.claim.Reports) < MaxDirectiveReports && !slices.ContainsFunc(n.claim.Reports, func(r DirectiveReport) bool { return r.ID == report.ID && r.Saved == report.Saved }) {
		n.claim.Reports = append(slices.Clone(n.claim.Reports), report)
	}
	s.send(ReportDirective{Request: n.request(), ID: report.ID, Generation: n.claim.Generation, Round: round, Step: report.Step, Saved: report.Saved})
}

// mustKnowDirectives checks that the next host knows what stands, what has ended, which
// nodes are drained, and what was agreed.
func (s *sim) mustKnowDirectives(old, twin *Machine) {
	if twin.closed != nil {
		return
	}
	if is, was := twin.directives.standing, old.directives.standing; was != nil {
		if is == nil || is.ID != was.ID || !slices.Equal(is.Nodes, was.Nodes) || is.Within != was.Within {
			s.t.Fatalf("directive %+v is lost with its control plane, %+v stands", was, is)
		}
		if was, is := old.round.agreement, twin.round.agreement; was.phase == phaseAgreed && (is.phase != phaseAgreed || is.step != was.step) {
			s.t.Fatalf("directive %s was agreed at step %d, its next host has phase %d, step %d", old.directives.standing.ID, was.step, is.phase, is.step)
		}
	} else if is != nil {
		s.t.Fatalf("the next host knows of directive %+v, none stands", is)
	}
	if twin.forming.target != old.forming.target {
		s.t.Fatalf("the next host knows of the target %d, it is %d", twin.forming.target, old.forming.target)
	}
	for _, id := range old.directives.past[max(0, len(old.directives.past)-maxEndedFacts):] {
		if !slices.Contains(twin.directives.past, id) {
			s.t.Fatalf("directive %s had ended, of which the next host knows nothing", id)
		}
	}
	if was, is := slices.Sorted(maps.Keys(old.directives.drained)), slices.Sorted(maps.Keys(twin.directives.drained)); !slices.Equal(was, is) {
		s.t.Fatalf("drained: %q, the next host has %q", was, is)
	}
}

// noteStep checks that a directive has one step in a round, whatever control plane tells it.
func (r *rig) noteStep(n *rigNode, u MembershipUpdate) {
	d := u.Directive
	if !d.Agreed {
		return
	}
	key := fmt.Sprint(d.ID, " in ", r.m.round.origin, " ", d.Round)
	if step, known := r.steps[key]; known && step != d.Step {
		r.t.Fatalf("directive %s has step %d and %d", key, step, d.Step)
	}
	r.steps[key] = d.Step
}

func (s *sim) undirectAny(t *rapid.T) {
	if rapid.Bool().Draw(t, "cancel") {
		s.do(CancelDirective{ID: fmt.Sprint("d", rapid.IntRange(0, 9).Draw(t, "id")), By: "admin", Reason: "why"})
		return
	}
	drained := make([]string, 0, len(s.m.directives.drained))
	for node := range s.m.directives.drained {
		drained = append(drained, node)
	}
	if len(drained) == 0 {
		t.Skip("no node is drained")
	}
	slices.Sort(drained)
	s.do(Undrain{Node: rapid.SampledFrom(drained).Draw(t, "node"), By: "admin", Reason: "why"})
}

// TestQueuedAgainBegunByADrainedNode: a job that is queued again begins without the drains of
// the one before, whichever of its nodes comes first.
func TestQueuedAgainBegunByADrainedNode(t *testing.T) {
	p := policy(1, 2)
	r := newRig(t, -1)
	n := r.group(p, "a", "b")
	r.apply(drainOf("d1", 0, 0, "b"))
	r.apply(Direct{ID: "d2", Kind: DirectiveStop, By: "admin carol", Reason: "why not"})
	if !n[0].notice.Requeue {
		t.Fatalf("%+v", n[0].notice)
	}
	r.apply(Leave{Request: n[0].request(), Ending: EndLeave})
	if back := r.hello("b", p); !back.welcomed {
		t.Errorf("it is refused: %v", back.refused)
	}
}

// TestProcessOfAJobToBeQueuedAgain: a process that comes back when its job has ended, to be
// queued again, learns that, also if all others are gone; it does not begin the next job.
func TestProcessOfAJobToBeQueuedAgain(t *testing.T) {
	p := policy(1, 2)
	r := newRig(t, -1)
	n := r.group(p, "a", "b")
	r.apply(LeaseExpired{Session: n[1].session})
	r.apply(Direct{ID: "d", Kind: DirectiveStop, By: "admin carol", Reason: "why not"})
	r.apply(Leave{Request: n[0].request(), Ending: EndLeave})
	back := &rigNode{id: "b", session: "b/2", claim: n[1].claim, replies: map[uint64]Reply{}}
	r.nodes["b"] = back
	r.again(back, p)
	if u := back.notice; !u.Requeue || !u.Closed || u.Waiting == 0 {
		t.Errorf("it was told %+v", u)
	}
	r.apply(Leave{Request: back.request(), Ending: EndLeave})
	r.group(p, "a", "b")
}

// TestDirectiveKinds: the kinds have names of their own and the numbers of the formats; what is
// no kind has no traits.
func TestDirectiveKinds(t *testing.T) {
	names := make(map[string]DirectiveKind)
	for i, kind := range DirectiveKinds() {
		if other, twice := names[kind.String()]; twice || int(kind) != i+1 {
			t.Errorf("kind %d is number %d and named like %d", i+1, int(kind), int(other))
		}
		names[kind.String()] = kind
	}
	for _, kind := range []DirectiveKind{-1, 0, DirectiveKind(len(directiveKinds))} {
		if kind.traits() != (kindTraits{}) {
			t.Errorf("kind %d has traits %+v", int(kind), kind.traits())
		}
	}
	if d := (Direct{ID: "d", Kind: 99, By: "x"}); d.sound() {
		t.Error("a kind that there is not can stand")
	}
}

// onHost names the machine of a hello.
func onHost(name string) func(*Hello) { return func(h *Hello) { h.HostName = name } }

// TestNameOfAHost stands for all nodes there, also those that come later.
func TestNameOfAHost(t *testing.T) {
	p := policy(2, 5)
	begin := func() (*rig, []*rigNode) {
		r := newRig(t, -1)
		var n []*rigNode
		for id, host := range map[string]string{"a": "", "b": "gpu1", "c": "gpu1", "d": "gpu2", "e": "gpu3"} {
			n = append(n, r.hello(id, p, onHost(host)))
		}
		slices.SortFunc(n, func(a, b *rigNode) int { return strings.Compare(a.id, b.id) })
		for _, node := range n {
			r.join(node)
		}
		r.wantRound(n...)
		return r, n
	}
	r, n := begin()
	answer := r.answerTo(drainOf("d1", 0, 0, "gpu1", "d"))
	if answer.Err != nil || !strings.Contains(answer.Text, "node b, rank 1 of round 1; node c, rank 2 of round 1; node d, rank 3 of round 1, leave now") {
		t.Errorf("%+v", answer)
	}
	if n[0].dropped != nil || n[1].dropped == nil || n[2].dropped == nil || n[3].dropped == nil || n[4].dropped != nil {
		t.Error("others were dropped than were named")
	}
	if back := r.hello("f", p, onHost("gpu1")); back.welcomed || !strings.Contains(back.refused.Text, "without node f: it was drained by ") {
		t.Errorf("another node of the host was told %+v", back.refused)
	}
	if back := r.hello("f", p, onHost("gpu2")); !back.welcomed {
		t.Errorf("another node of a host of which one is drained was told %+v", back.refused)
	}
	if a := r.answerTo(Undrain{Node: "gpu1", By: "admin", Reason: "mended"}); a.Err != nil || !r.hello("b", p, onHost("gpu1")).welcomed {
		t.Errorf("%+v", a)
	}

	r, n = begin()
	r.apply(drainOf("d1", time.Minute, 0, "gpu1"))
	if !n[2].notice.Directive.Named || n[3].notice.Directive.Named {
		t.Error("the nodes of the host do not know that they are named, or another one does")
	}
	if a := r.answerTo(Evict{Node: "gpu1", By: "admin", Reason: "why"}); a.Err != nil || !strings.HasSuffix(a.Text, "were evicted from run \"job\"") || n[1].dropped == nil || n[2].dropped == nil || n[3].dropped != nil {
		t.Errorf("%+v", a)
	}
	if a := r.answerTo(Evict{Node: "gpu9", By: "admin", Reason: "why"}); a.Err == nil {
		t.Error("a host without a node was evicted")
	}
	for name, c := range map[string]struct {
		node int
		key  string
	}{"its host's": {3, "gpu2"}, "its own, with another node on the host": {1, "b"}, "its own, where the host is not known": {0, "a"}} {
		r, n = begin()
		if err := r.unfit(n[c.node], "failed"); err != nil {
			t.Fatal(err)
		}
		if s := r.m.Status(); len(s.Drained) != 1 || s.Drained[0].Node != c.key {
			t.Errorf("%s: kept out: %+v", name, s.Drained)
		}
	}
}

// TestCordon keeps a node out that is not here, or a spare; a node whose workers run stays until
// its round ends, also over a new connection.
func TestCordon(t *testing.T) {
	p := policy(2, 2)
	r := newRig(t, -1)
	n := r.group(p, "a", "b")
	spare := r.hello("c", p)
	r.join(spare)
	cordon := func(node, want string) {
		t.Helper()
		if a := r.answerTo(Cordon{Node: node, For: time.Hour, By: "admin carol", Reason: "its disk"}); a.Err != nil || !strings.Contains(a.Text, want) {
			t.Errorf("%+v", a)
		}
	}
	cordon("late", "node late is kept out of run \"job\" for 1h0m0s")
	if late := r.hello("late", p); late.welcomed || late.refused.Code != CodeGraceful || !strings.Contains(late.refused.Text, "it was cordoned by admin carol: its disk") {
		t.Errorf("it came and was told %+v", late.refused)
	}
	cordon("c", "is kept out")
	if spare.dropped == nil {
		t.Error("a spare stays")
	}
	cordon("b", "1 node of it runs workers and stays until the round ends")
	if n[1].dropped != nil || n[0].notice.Waiting > 0 {
		t.Error("the round ends")
	}
	r.apply(Disconnect{Session: n[1].session})
	r.again(n[1], p)
	if !n[1].welcomed {
		t.Error("it is lost with its connection")
	}
	r.announce(n[0], false, "failed")
	join := Join{Request: n[1].request(), NodeRank: -1, RankHint: -1}
	r.apply(join)
	if err := n[1].replies[join.Number].Err; err == nil || err.Code != CodeGraceful {
		t.Errorf("it joins again: %v", err)
	}
	r.apply(drainOf("d1", 0, 0, "b"))
	if r.hello("b", p, func(h *Hello) { h.LastRound = n[1].reports() }).welcomed {
		t.Error("drained by then, it comes back to its round")
	}
	for _, ev := range []Cordon{{Node: ""}, {Node: "x\n"}, {Node: "x", For: -1}, {Node: "x", For: MaxWithin + 1}} {
		if a := r.answerTo(ev); a.Err == nil {
			t.Errorf("%+v was done: %s", ev, a.Text)
		}
	}
}
