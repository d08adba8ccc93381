package rendezvous

import (
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// answerTo applies an administrator's request and returns its answer.
func (r *rig) answerTo(ev Event) Answer {
	r.t.Helper()
	for _, e := range r.apply(ev) {
		if a, ok := e.(Answer); ok {
			return a
		}
	}
	r.t.Fatalf("%+v was not answered", ev)
	return Answer{}
}

// TestSecondDirective holds guarantee 12's rule for a directive that is given while another one
// stands, of each pair of kinds.
func TestSecondDirective(t *testing.T) {
	given := func(id, what string) Direct {
		d := Direct{ID: id, Within: time.Hour, By: "admin carol", Reason: "why"}
		switch kind, of, _ := strings.Cut(what, " "); kind {
		case "save":
			d.Kind = DirectiveSave
		case "drain":
			d.Kind, d.Nodes = DirectiveDrain, strings.Split(of, ",")
		case "scale":
			d.Kind = DirectiveScale
			_, _ = fmt.Sscan(of, &d.Target)
		case "stop":
			d.Kind = DirectiveStop
		}
		return d
	}
	for _, c := range []struct{ first, second, want string }{
		{"save", "save", "first"},
		{"save", "scale 2", "second"},
		{"save", "drain b", "second"},
		{"save", "stop", "second"},
		{"scale 2", "save", "refused"},
		{"scale 2", "scale 2", "first"},
		{"scale 2", "scale 1", "refused"},
		{"scale 2", "drain b", "second"},
		{"scale 2", "stop", "second"},
		{"drain b", "save", "refused"},
		{"drain b", "scale 2", "refused"},
		{"drain b", "drain b", "first"},
		{"drain b", "drain c,b", "first b c"},
		{"drain b", "drain d", "first"}, // which has no workers, and leaves at once
		{"drain b", "stop", "second"},
		{"stop", "save", "refused"},
		{"stop", "scale 2", "refused"},
		{"stop", "drain b", "refused"},
		{"stop", "drain d", "first"},
		{"stop", "stop", "first"},
	} {
		t.Run(c.second+" after "+c.first, func(t *testing.T) {
			r := newRig(t, -1)
			n := r.group(policy(1, 3), "a", "b", "c")
			spare := r.hello("d", policy(1, 3))
			r.join(spare)
			first := given("first", c.first)
			first.At = time.Date(2026, 11, 23, 10, 0, 0, 0, time.UTC)
			r.apply(first)
			for _, x := range n {
				r.held(x, "first", 7)
			}
			answer := r.answerTo(given("second", c.second))
			id, nodes, _ := strings.Cut(c.want, " ")
			switch id {
			case "refused":
				id = "first"
				text := "directive first stands until 2026-11-23 11:00:00 UTC: "
				if answer.Err == nil || answer.Err.Code != CodeInvalid || !strings.Contains(answer.Err.Text, text) || !strings.HasSuffix(answer.Err.Text, "cancel it first") {
					t.Errorf("it was answered %+v", answer)
				}
			case "second":
				r.wantAsked("second", 1, n...)
				if !strings.HasSuffix(answer.Text, "; it takes the place of directive first, a "+strings.Fields(c.first)[0]) {
					t.Errorf("it was answered %+v", answer)
				}
			}
			if id == "first" {
				r.wantAgreed("first", 1, 7, n...)
			}
			d := r.m.directives.standing
			if d.ID != id || nodes != "" && nodes != strings.Join(d.Nodes, " ") {
				t.Errorf("%s of %v stands", d.ID, d.Nodes)
			}
			if gone := spare.dropped != nil; gone != (c.second == "drain d") {
				t.Errorf("the spare is gone: %v", gone)
			}
			if again := r.answerTo(given("second", c.second)); c.want != "refused" && again.Changed {
				t.Errorf("given again: %+v", again)
			}
		})
	}
}

// TestJoinedDrains: nodes that are taken away one after the other leave together, at the nearest
// of their deadlines, and the workers save once.
func TestJoinedDrains(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(1, 4), "a", "b", "c", "d")
	for i, x := range n[1:] {
		id := fmt.Sprint("d", i)
		d := Direct{ID: id, Kind: DirectiveDrain, Within: time.Duration(3-i) * time.Minute, For: time.Duration(i) * time.Hour, Reason: "SIGTERM"}
		r.apply(GiveDirective{Request: x.request(), Directive: d})
		if i == 0 {
			for _, x := range n {
				r.held(x, "d0", 7)
			}
		}
	}
	r.wantAgreed("d0", 1, 7, n...)
	got := n[3].notice.Directive
	if want := "drain b, c, d within 1m0s, asked for by node b, node c, node d: SIGTERM"; !got.Named || got.Within != time.Minute || got.Text != want {
		t.Errorf("node d was told %+v", got)
	}
	if list := r.m.out.timersOf(TimerDirective); len(list) != 3 {
		t.Errorf("deadlines: %+v", list)
	}
	first := directiveTimer("d0") // which the machine cannot tell to be later than that of the last one
	first.Seq = r.m.out.running[first].seq
	delete(r.timers, first)
	r.apply(TimerFired{first})
	if n[0].dropped != nil || n[1].dropped == nil || n[2].dropped == nil || n[3].dropped == nil || r.runs(TimerDirective) || r.runs(TimerDrained) {
		t.Errorf("dropped: %v, %v, %v, %v; timers: %+v", n[0].dropped, n[1].dropped, n[2].dropped, n[3].dropped, r.timers)
	}
}

// TestTooManyDeadlines: the deadline of what stands is brought nearer a limited number of times.
func TestTooManyDeadlines(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(1, 2), "a", "b")
	for i := range maxDeadlines {
		if a := r.answerTo(saveOf(fmt.Sprint("s", i), time.Hour-time.Duration(i)*time.Second)); a.Err != nil {
			t.Fatalf("%d: %v", i, a.Err)
		}
	}
	ev := GiveDirective{Request: n[0].request(), Directive: Direct{ID: "x", Kind: DirectiveSave, Within: time.Second, Reason: "why"}}
	r.apply(ev)
	if err := n[0].replies[ev.Number].Err; err == nil || err.Code != CodeInvalid || !strings.Contains(err.Text, "joined by 63 others already") {
		t.Errorf("%v", err)
	}
	if a := r.answerTo(saveOf("later", time.Hour)); a.Err != nil {
		t.Errorf("one that changes nothing: %v", a.Err)
	}
	if got := len(r.m.out.timersOf(TimerDirective)); got != maxDeadlines {
		t.Errorf("%d deadlines", got)
	}
}

// TestReplacedAcrossTakeover: the next host learns of the directive that took the place of
// another one, of what has joined it, and that the other one is over.
func TestReplacedAcrossTakeover(t *testing.T) {
	p := policy(1, 4)
	r, n := hostedRound(t, p, "a", "b", "c", "d")
	r.apply(saveOf("s1", time.Hour))
	old := n[2].facts
	r.apply(drainOf("d1", time.Hour, 0, "c"))
	r.apply(drainOf("d2", time.Minute, 0, "d"))
	n[2].facts = old // it was told of the save only
	r = r.dies(n[0], n[2], p)
	if d := r.m.directives.standing; d == nil || d.ID != "s1" {
		t.Fatalf("%+v stands", d)
	}
	r.follows(p, n[1])
	r.follows(p, n[3])
	if d := r.m.directives.standing; d.ID != "d1" || !slices.Equal(d.Nodes, []string{"c", "d"}) || d.Within != time.Minute {
		t.Errorf("%+v stands", d)
	}
	for _, id := range []string{"s1", "d2"} {
		if !slices.Contains(r.m.directives.past, id) {
			t.Errorf("%s is not known to be over: %q", id, r.m.directives.past)
		}
	}
	r.wantAsked("d1", 1, n[1:]...)
}

// TestStateWithSeveralDirectives reads what a release with state version 4 has stored: an agreed
// save, two drains, a scale and another save, which stood together.
func TestStateWithSeveralDirectives(t *testing.T) {
	text, err := os.ReadFile("testdata/state4.hex")
	if err != nil {
		t.Fatal(err)
	}
	state, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	m, err := Restore(state)
	if err != nil {
		t.Fatal(err)
	}
	d := m.directives.standing
	if d.ID != "d1" || !slices.Equal(d.Nodes, []string{"b", "a"}) || d.Within != time.Minute || m.round.agreement.phase != phaseWaiting || d.For != 0 {
		t.Errorf("%+v stands", d)
	}
	if want := []string{"d0", "s1", "x1", "d2", "s2"}; !slices.Equal(m.directives.past, want) {
		t.Errorf("over are %q, want %q", m.directives.past, want)
	}
	for _, set := range m.Timers() {
		name := set.Timer.Session
		if known := set.Timer.Kind == TimerDrained || set.Timer.Kind == TimerDirective && (name == "d1" || name == "d2"); !known {
			t.Errorf("timer %+v runs", set)
		}
	}
	again, err := Restore(m.Snapshot())
	if err != nil || string(again.Snapshot()) != string(m.Snapshot()) {
		t.Errorf("a restored machine is another one: %v", err)
	}
	m.Apply(Recovered{})
	m.checkDirectives(t)
}
