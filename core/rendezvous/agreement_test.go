package rendezvous

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func saveOf(id string, within time.Duration) Direct {
	return Direct{ID: id, Kind: DirectiveSave, Within: within, By: "admin carol", Reason: "it is time"}
}

// held and saved report of a directive in the node's last round.
func (r *rig) held(n *rigNode, id string, step int64) {
	r.t.Helper()
	r.apply(ReportDirective{Request: n.request(), ID: id, Generation: n.claim.Generation, Round: n.claim.Round, Step: step})
}

func (r *rig) saved(n *rigNode, id string) {
	r.t.Helper()
	r.apply(ReportDirective{Request: n.request(), ID: id, Generation: n.claim.Generation, Round: n.claim.Round, Step: -1, Saved: true})
}

// wantAsked and wantAgreed assert what all nodes were told.
func (r *rig) wantAsked(id string, round uint64, nodes ...*rigNode) {
	r.t.Helper()
	for _, n := range nodes {
		if d := n.notice.Directive; d.ID != id || d.Round != round || d.Agreed {
			r.t.Fatalf("node %s should be asked of %s in round %d, it was told %+v", n.id, id, round, d)
		}
	}
}

func (r *rig) wantAgreed(id string, round uint64, step int64, nodes ...*rigNode) {
	r.t.Helper()
	for _, n := range nodes {
		if d := n.notice.Directive; d.ID != id || d.Round != round || !d.Agreed || d.Step != step {
			r.t.Fatalf("node %s should know that %s has step %d in round %d, it was told %+v", n.id, id, step, round, d)
		}
	}
}

func (r *rig) wantNoDirective(nodes ...*rigNode) {
	r.t.Helper()
	for _, n := range nodes {
		if n.notice.Directive != (DirectiveNotice{}) {
			r.t.Fatalf("node %s was told of %+v", n.id, n.notice.Directive)
		}
	}
}

// TestAgreement: the largest of the reported steps is agreed once all have reported, the
// first report of each counts, and the save is over when all have saved.
func TestAgreement(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(3, 3), "a", "b", "c")
	spare := r.hello("d", policy(3, 3))
	r.join(spare)
	r.apply(saveOf("s1", time.Hour))
	r.wantAsked("s1", 1, n...)
	r.wantAsked("s1", 0, spare)
	r.saved(n[0], "s1") // too early: nothing is agreed
	r.held(n[0], "s1", 44)
	r.held(n[0], "s1", 99)
	r.held(n[2], "other", 98)
	r.apply(ReportDirective{Request: n[2].request(), ID: "s1", Generation: n[2].claim.Generation, Round: 2, Step: 97})
	r.apply(ReportDirective{Request: n[2].request(), ID: "s1", Generation: "x", Round: 1, Step: 96})
	r.held(n[1], "s1", 41)
	r.wantAsked("s1", 1, n...)
	if s := r.m.Status().Directives[0]; s.Phase != DirectiveAgreeing || s.Members != 3 || fmt.Sprint(s.Missing) != "[c]" {
		t.Errorf("the status is %+v", s)
	}
	r.held(n[2], "s1", -1)
	r.wantAgreed("s1", 1, 44, n...)
	r.held(n[1], "s1", 50)
	r.wantAgreed("s1", 1, 44, n...)
	r.saved(n[0], "s1")
	r.saved(n[0], "s1")
	r.saved(n[1], "s1")
	if s := r.m.Status().Directives[0]; s.Phase != DirectiveAgreed || *s.Step != 44 || s.Saved != 2 || fmt.Sprint(s.Missing) != "[c]" {
		t.Errorf("the status is %+v", s)
	}
	r.saved(n[2], "s1")
	r.wantNoDirective(append(n, spare)...)
	for _, x := range n {
		if x.notice.Waiting > 0 || x.notice.Closed {
			t.Errorf("a save has ended the round: %+v", x.notice)
		}
	}
	if len(r.timers) > 0 {
		t.Errorf("timers run: %v", r.timers)
	}
}

// TestNoStepInTime: a member that does not answer in time is left out, and no step is
// promised for that round, whatever is said later.
func TestNoStepInTime(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(2, 2), "a", "b")
	r.apply(saveOf("s1", time.Hour))
	if after := r.timers[r.timer(TimerAgree)]; after != agreeTime {
		t.Errorf("members have %v to answer", after)
	}
	r.held(n[0], "s1", 44)
	r.fire(TimerAgree)
	r.wantAgreed("s1", 1, -1, n...)
	r.held(n[1], "s1", 45)
	r.wantAgreed("s1", 1, -1, n...)

	// Half of the time to the deadline at most.
	r.apply(CancelDirective{ID: "s1", By: "x", Reason: "y"})
	r.apply(saveOf("s2", time.Second))
	if after := r.timers[r.timer(TimerAgree)]; after != time.Second/2 {
		t.Errorf("members have %v to answer", after)
	}
}

func (r *rig) timer(kind TimerKind) Timer {
	for timer := range r.timers {
		if timer.Kind == kind {
			return timer
		}
	}
	return Timer{}
}

// TestFailureAfterAgreement: a round that ends before all have saved is followed by one that
// agrees again; reports of the round before do nothing.
func TestFailureAfterAgreement(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(2, 3), "a", "b", "c")
	r.apply(saveOf("s1", time.Hour))
	for _, x := range n {
		r.held(x, "s1", 7)
	}
	r.saved(n[0], "s1")
	r.saved(n[1], "s1")
	r.lost(n[2]) // with it goes what its workers would have saved
	r.wantAgreed("s1", 1, 7, n[:2]...)
	r.join(n[0])
	old := n[1].claim
	r.join(n[1])
	r.wantAsked("s1", 2, n[:2]...)
	r.apply(ReportDirective{Request: n[1].request(), ID: "s1", Generation: old.Generation, Round: old.Round, Step: 90})
	r.held(n[1], "s1", 2)
	r.held(n[0], "s1", 1)
	r.wantAgreed("s1", 2, 2, n[:2]...)
}

// TestDeadlineWithoutARound: a directive whose workers never learn of it says so at its end.
func TestDeadlineWithoutARound(t *testing.T) {
	r := newRig(t, -1)
	r.hello("a", policy(2, 2))
	r.apply(saveOf("s1", time.Minute))
	r.fire(TimerDirective)
	r.wantChange("directive s1 is over, at its deadline (no workers were told in this round)")
}

// TestDeadlineDuringSave carries a directive out, also if some have not saved.
func TestDeadlineDuringSave(t *testing.T) {
	r := newRig(t, -1)
	p := policy(1, 2)
	n := r.group(p, "a", "b")
	r.apply(drainOf("d1", time.Minute, time.Hour, "b"))
	r.held(n[0], "d1", 7)
	r.held(n[1], "d1", 7)
	r.saved(n[0], "d1")
	r.fire(TimerDirective)
	r.wantChange("directive d1 is carried out, at its deadline (no word of a save came from b)")
	if n[1].dropped == nil || n[0].notice.Directive.ID != "" || n[0].notice.Waiting == 0 {
		t.Errorf("%v, %+v", n[1].dropped, n[0].notice)
	}
}

// TestDrainOfAll ends the run, to be queued again; the nodes that come then find it open.
func TestDrainOfAll(t *testing.T) {
	p := policy(2, 2)
	r := newRig(t, -1)
	n := r.group(p, "a", "b")
	r.apply(drainOf("d1", time.Minute, time.Hour, "a", "b"))
	for _, x := range n {
		r.held(x, "d1", 7)
	}
	for _, x := range n {
		r.saved(x, "d1")
	}
	for _, x := range n {
		if x.dropped != nil || !x.notice.Closed || !x.notice.Requeue || x.notice.Waiting == 0 {
			t.Errorf("node %s was told %+v, %v", x.id, x.notice, x.dropped)
		}
		r.apply(Leave{Request: x.request(), Ending: EndFailed, Reason: "its workers were stopped"})
	}
	if c := r.m.closed; c.Kind != ClosedRequeue || c.text() != "stopped to be queued again by admin carol: its disk" {
		t.Errorf("closed: %+v", c)
	}
	for _, x := range n {
		r.apply(Disconnect{Session: x.session})
	}
	r.group(p, "a", "b")
}

// TestDrainGoesOnWithSpares: nodes that are not named take the places.
func TestDrainGoesOnWithSpares(t *testing.T) {
	p := policy(2, 2)
	r := newRig(t, -1)
	n := r.group(p, "a", "b")
	var spares []*rigNode
	for _, id := range []string{"c", "d"} {
		spares = append(spares, r.hello(id, p))
		r.join(spares[len(spares)-1])
	}
	r.apply(drainOf("d1", time.Minute, 0, "a", "b"))
	r.held(n[0], "d1", -1)
	r.held(n[1], "d1", -1)
	r.wantAgreed("d1", 1, -1, n...)
	r.saved(n[0], "d1")
	r.saved(n[1], "d1")
	if r.m.closed != nil || n[0].dropped == nil || n[1].dropped == nil {
		t.Fatalf("closed: %v", r.m.closed)
	}
	r.wantRound(spares...)
}

// TestDirectivesOfEndingJob: with the first finish no node can be replaced. What stands is
// told, but a drain is not carried out, which would fail the job; a stop is.
func TestDirectivesOfEndingJob(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(1, 3), "a", "b", "c")
	r.apply(Finish{n[0].request()})
	r.apply(drainOf("d1", time.Minute, 0, "b"))
	r.wantAsked("d1", 1, n[1:]...)
	r.wantAsked("d1", 0, n[0])
	r.fire(TimerDirective)
	if n[1].dropped != nil || n[2].notice.Waiting > 0 || r.m.directives.drained["b"] != nil {
		t.Errorf("it was carried out: %v, %+v", n[1].dropped, n[2].notice)
	}
	r.apply(Direct{ID: "s1", Kind: DirectiveStop, Within: time.Minute, By: "admin", Reason: "why"})
	r.fire(TimerDirective)
	if n[1].notice.Directive.ID != "" || !n[1].notice.Requeue {
		t.Errorf("it was told %+v", n[1].notice)
	}
}

// TestStopOfFinishedJob: a stop whose time comes when all have finished, and none has said
// goodbye yet, finds nothing to queue again.
func TestStopOfFinishedJob(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(1, 2), "a", "b")
	r.apply(Direct{ID: "s1", Kind: DirectiveStop, Within: time.Minute, By: "admin", Reason: "why"})
	r.apply(Finish{n[0].request()})
	r.apply(Finish{n[1].request()})
	r.fire(TimerDirective)
	r.apply(Leave{Request: n[0].request(), Ending: EndSuccess})
	if n[1].notice.Requeue || r.m.closed == nil || r.m.closed.Kind != ClosedSuccess {
		t.Errorf("it was told %+v, the run %+v", n[1].notice, r.m.closed)
	}
}

// TestAgreementAcrossTakeover: the next host continues where the dead one was, in each phase:
// what members say again in their hello counts, and the step of a round stays.
func TestAgreementAcrossTakeover(t *testing.T) {
	p := policy(1, 3)
	reports := func(n *rigNode, list ...DirectiveReport) { n.claim.Reports = list }
	t.Run("agreeing", func(t *testing.T) {
		r, n := hostedRound(t, p, "a", "b", "c")
		r.apply(saveOf("s1", time.Hour))
		r.held(n[1], "s1", 7)
		reports(n[1], DirectiveReport{"s1", 7, false})
		r = r.dies(n[0], n[1], p)
		r.follows(p, n[2])
		r.wantAsked("s1", 1, n[1:]...)
		r.held(n[2], "s1", 6)
		r.wantAgreed("s1", 1, 7, n[1:]...)
	})
	t.Run("agreed", func(t *testing.T) {
		r, n := hostedRound(t, p, "a", "b", "c")
		r.apply(saveOf("s1", time.Hour))
		for _, x := range n {
			r.held(x, "s1", 7)
		}
		r.saved(n[1], "s1")
		reports(n[1], DirectiveReport{"s1", 7, false}, DirectiveReport{"s1", -1, true})
		r = r.dies(n[0], n[1], p)
		r.follows(p, n[2])
		r.wantAgreed("s1", 1, 7, n[1:]...)
		if s := r.m.Status().Directives[0]; s.Saved != 1 {
			t.Errorf("%d have saved", s.Saved)
		}
	})
	t.Run("ended", func(t *testing.T) {
		r, n := hostedRound(t, p, "a", "b", "c")
		r.apply(saveOf("s1", time.Hour))
		r.apply(CancelDirective{ID: "s1", By: "x", Reason: "y"})
		r = r.dies(n[0], n[1], p)
		r.follows(p, n[2])
		r.apply(saveOf("s1", time.Hour))
		r.wantNoDirective(n[1:]...)
	})
	t.Run("told to one of the others only", func(t *testing.T) {
		r, n := hostedRound(t, p, "a", "b", "c")
		before := n[1].facts
		r.apply(drainOf("d1", time.Hour, 0, "c"))
		n[1].facts = before
		r = r.dies(n[0], n[1], p)
		r.wantNoDirective(n[1])
		r.follows(p, n[2])
		r.wantAsked("d1", 1, n[1:]...)
	})
	t.Run("by which the round ends", func(t *testing.T) {
		r, n := hostedRound(t, p, "a", "b", "c")
		r.apply(drainOf("d1", 0, 0, "a"))
		r = r.dies(n[0], n[1], p)
		r.follows(p, n[2])
		r.join(n[1])
		r.join(n[2])
		if o := r.wantRound(n[1:]...); !o.ByDirective {
			t.Errorf("it was told %+v", o)
		}
	})
	t.Run("closed to be queued again", func(t *testing.T) {
		r, n := hostedRound(t, p, "a", "b", "c")
		r.apply(Direct{ID: "s1", Kind: DirectiveStop, By: "admin", Reason: "why"})
		r = r.dies(n[0], n[1], p)
		r.follows(p, n[2])
		if !n[2].notice.Requeue {
			t.Errorf("it was told %+v", n[2].notice)
		}
	})
}

// TestNodesDirective: a node gives a directive, by default about itself; what cannot stand is
// refused by a text that says why, and nothing stays of it.
func TestNodesDirective(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(2, 4), "a", "b", "c")
	give := func(d Direct) *Error {
		ev := GiveDirective{Request: n[1].request(), Directive: d}
		r.apply(ev)
		return n[1].replies[ev.Number].Err
	}
	for text, d := range map[string]Direct{
		"no live node \"z\"":       {ID: "x", Kind: DirectiveDrain, Nodes: []string{"b", "z"}, Within: 1},
		"it must be between 0 and": {ID: "x", Kind: DirectiveSave, Within: -1},
		"a save needs time":        {ID: "x", Kind: DirectiveSave},
		"at least 2 nodes (min)":   {ID: "x", Kind: DirectiveScale, Target: 1, Within: 1},
		"at most 4 nodes (max)":    {ID: "x", Kind: DirectiveScale, Target: 5, Within: 1},
		"a target above 0":         {ID: "x", Kind: DirectiveScale, Within: 1},
		"a stop has no target":     {ID: "x", Kind: DirectiveStop, Target: 2},
		"directive 9, cannot be":   {ID: "x", Kind: 9},
		"without an id":            {Kind: DirectiveStop},
	} {
		if err := give(d); err == nil || err.Code != CodeInvalid || !strings.Contains(err.Text, text) {
			t.Errorf("%+v: %v, want %q", d, err, text)
		}
	}
	empty := New(Config{RunID: "job", Generation: "g", Uptime: -1})
	if err := empty.directives.misfit(Direct{Kind: DirectiveScale}); err == nil || err.Code != CodeInvalid {
		t.Errorf("a scale of a run without nodes: %v", err)
	}
	if r.m.directives.standing != nil || len(r.m.directives.past) > 0 {
		t.Error("a directive stays that was refused")
	}
	d := Direct{ID: "d1", Kind: DirectiveDrain, Within: time.Minute, By: "another one", Reason: "SIGTERM"}
	for range 2 {
		if err := give(d); err != nil {
			t.Error(err)
		}
	}
	if got := n[0].notice.Directive; !strings.Contains(got.Text, "drain b within 1m0s, asked for by node b: SIGTERM") {
		t.Errorf("it was told %+v", got)
	}
	r.fire(TimerDirective)
	if n[1].dropped == nil {
		t.Error("it has not left")
	}
}

// TestTooManyToTell: what the next host could not be told is refused, where there is one.
func TestTooManyToTell(t *testing.T) {
	var nodes []string
	for i := range MaxDirectiveNodes {
		nodes = append(nodes, fmt.Sprintf("node-%04d.cluster.example", i))
	}
	d := drainOf("d1", time.Hour, 0, nodes...)
	r, _ := hostedRound(t, policy(1, 2), "a", "b")
	if err := r.m.directives.misfit(d); err == nil || err.Code != CodeTooLarge || !strings.Contains(err.Text, "name fewer nodes") {
		t.Errorf("%v", err)
	}
	if effects := r.m.Apply(d); !refused(effects) {
		t.Error("it stands")
	}
	r = newRig(t, -1)
	r.group(policy(1, 2), "a", "b")
	if err := r.m.directives.misfit(d); err != nil {
		t.Errorf("a control plane that is there for itself: %v", err)
	}
}

// TestFalseDirectiveFacts: impossible facts are refused.
func TestFalseDirectiveFacts(t *testing.T) {
	good := StandingFact{Direct: saveOf("s1", time.Hour), Round: 1, Step: 7}
	for name, change := range map[string]func(*DirectiveFacts){
		"a step of another round":  func(f *DirectiveFacts) { f.Standing[0].Round = 9 },
		"a step below all":         func(f *DirectiveFacts) { f.Standing[0].Step = -2 },
		"twice the same id":        func(f *DirectiveFacts) { f.Standing = append(f.Standing, good) },
		"no kind":                  func(f *DirectiveFacts) { f.Standing[0].Kind = 7 },
		"a deadline before":        func(f *DirectiveFacts) { f.Standing[0].Within = -1 },
		"a deadline without end":   func(f *DirectiveFacts) { f.Standing[0].Within = 1 << 62 },
		"a target above max":       func(f *DirectiveFacts) { f.Target = 9 },
		"a change without end":     func(f *DirectiveFacts) { f.Seq = 1<<64 - 1 },
		"the end of a later round": func(f *DirectiveFacts) { f.EndedRound = 2 },
		"drained until before now": func(f *DirectiveFacts) { f.Drained = []DrainedFact{{"x", "y", "z", -1, CauseAdmin, false}} },
	} {
		t.Run(name, func(t *testing.T) {
			p := policy(1, 3)
			r, n := hostedRound(t, p, "a", "b", "c")
			r = r.dies(n[0], n[1], p)
			f := DirectiveFacts{Seq: 5, Standing: []StandingFact{good}}
			change(&f)
			n[2].facts.Directives = f
			r.follows(p, n[2])
			if r.m.directives.standing != nil || len(r.m.directives.drained) > 0 || r.m.forming.target > 0 {
				t.Error("it is believed")
			}
		})
	}
}

// TestAgreementAcrossRestart: a control plane that has stored what it did continues in the
// agreement; a member whose answer it has lost says it again when it comes back.
func TestAgreementAcrossRestart(t *testing.T) {
	p := policy(2, 2)
	r := newRig(t, -1)
	n := r.group(p, "a", "b")
	r.apply(saveOf("s1", time.Hour))
	r.held(n[0], "s1", 7)
	old := r.m.Snapshot()
	r.held(n[1], "s1", 9)
	r.wantAgreed("s1", 1, 9, n...)
	n[1].claim.Reports = []DirectiveReport{{"s1", 9, false}}

	m, err := Restore(old) // it was told before it was on the disk: not so with a server that stores first
	if err != nil {
		t.Fatal(err)
	}
	again := &rig{t: t, m: m, nodes: r.nodes, timers: map[Timer]time.Duration{}, checker: NewChecker("job"), steps: r.steps}
	for _, set := range m.Timers() {
		again.timers[set.Timer] = set.After
	}
	events := []Event{Recovered{Generation: "later"}}
	for _, x := range n {
		events = append(events, Hello{Session: x.session, Node: x.id, Policy: p, LastRound: x.reports()})
	}
	for _, ev := range events { // the checker has not seen what was before
		for _, e := range m.Apply(ev) {
			again.deliver(e)
		}
	}
	again.wantAgreed("s1", 1, 9, n...)
}
