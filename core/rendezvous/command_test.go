package rendezvous

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
)

// runs makes a hello say what its node runs.
func runs(digest, text string) func(*Hello) {
	return func(h *Hello) { h.Command, h.HostName = Command{digest, text}, "gpu-"+h.Node }
}

// runners starts a round of nodes that run the same.
func (r *rig) runners(p Policy, digest string, ids ...string) (nodes []*rigNode) {
	r.t.Helper()
	for _, id := range ids {
		nodes = append(nodes, r.hello(id, p, runs(digest, "a.py")))
	}
	for _, n := range nodes {
		r.join(n)
	}
	r.wantRound(nodes...)
	return nodes
}

// TestSpareOfAnotherJob: a node that comes to a complete round with another command than its members
// have is refused at once, by an error that names both commands, the holder's node and what to do;
// one with the same command waits, as does one that says none, or that may be a spare of any.
func TestSpareOfAnotherJob(t *testing.T) {
	for _, c := range []struct{ min, max int }{{1, 1}, {2, 2}, {1, 2}} {
		t.Run(fmt.Sprint(c.min, ":", c.max), func(t *testing.T) {
			r, p := newRig(t, -1), policy(c.min, c.max)
			r.runners(p, "aa", []string{"a", "b"}[:c.max]...)
			other := r.hello("c", p, runs("bb", "b.py --lr 1"))
			r.join(other)
			err := r.wantError(other, CodeMismatch)
			for _, word := range []string{`run "job"`, "node c", "`b.py --lr 1`", "round 1 on node a", "`a.py`", "--rdzv-id", "any_command=1"} {
				if !strings.Contains(err.Text, word) {
					t.Errorf("the refusal does not say %q: %s", word, err.Text)
				}
			}
			same, old := r.hello("d", p, runs("aa", "a.py")), r.hello("e", p)
			r.join(same)
			r.join(old)
			r.join(other) // it may ask as often as it likes
			r.wantPending(same, old)
			r.wantError(other, CodeMismatch)
		})
	}
}

// TestRefusalOfACommandThatReadsTheSame: where the short texts are equal the refusal says what may differ.
func TestRefusalOfACommandThatReadsTheSame(t *testing.T) {
	r, p := newRig(t, -1), policy(1, 1)
	r.runners(p, "aa", "a")
	other := r.hello("b", p, runs("bb", "a.py"))
	r.join(other)
	if err := r.wantError(other, CodeMismatch); !strings.Contains(err.Text, "contents") {
		t.Error(err.Text)
	}
}

// TestCommandsOfAFormingRound: while a round forms nodes with other commands are told of in one
// line, and not refused; nor are they where a running round has places for them.
func TestCommandsOfAFormingRound(t *testing.T) {
	r, p := newRig(t, -1), policy(2, 2)
	a, b := r.hello("a", p, runs("aa", "a.py 0")), r.hello("b", p, runs("bb", "a.py 1"))
	r.join(a)
	if alone, _ := r.m.Progress(); strings.Contains(alone.Detail, "commands") {
		t.Error(alone.Detail)
	}
	r.join(b)
	const differ = "the nodes run different commands: `a.py 0` on node a, `a.py 1` on node b"
	if o := r.wantRound(a, b); o.Commands != differ {
		t.Errorf("they were told %q", o.Commands)
	}
	r.wantChange(differ)

	wide := newRig(t, -1)
	p = policy(1, 3)
	p.Target = 1
	c := wide.runners(p, "aa", "c")[0]
	d := wide.hello("d", p, runs("dd", "d.py"))
	wide.join(d)
	wide.wantPending(d)
	wide.fire(TimerAdmit)
	wide.join(c)
	if o := wide.wantRound(c, d); !strings.Contains(o.Commands, "`d.py` on node d") {
		t.Errorf("they were told %q", o.Commands)
	}
}

// TestProgressTellsOfCommands: nodes that wait for a third learn meanwhile that they differ.
func TestProgressTellsOfCommands(t *testing.T) {
	r, p := newRig(t, -1), policy(3, 3)
	for i, id := range []string{"a", "b"} {
		r.join(r.hello(id, p, runs(fmt.Sprintf("%02x", i), "x.py")))
	}
	if forming, _ := r.m.Progress(); !strings.Contains(forming.Detail, "the nodes run different commands: `x.py` on node a, `x.py` on node b") {
		t.Error(forming.Detail)
	}
}

// TestSpareLeftByARound: of two newcomers one gets the place; the other is refused if no member runs
// what it runs. A former member never is, whatever its arguments.
func TestSpareLeftByARound(t *testing.T) {
	r, p := newRig(t, -1), policy(2, 2)
	n := r.runners(p, "aa", "a", "b")
	r.lost(n[1])
	first, second := r.hello("c", p, runs("aa", "a.py")), r.hello("d", p, runs("dd", "d.py"))
	r.join(first)
	r.join(second)
	r.wantPending(first, second)
	r.join(n[0])
	r.wantRound(n[0], first)
	r.wantError(second, CodeMismatch)

	scaled := newRig(t, -1)
	p = policy(1, 2)
	a, b := scaled.hello("a", p, runs("a0", "a.py 0")), scaled.hello("b", p, runs("a1", "a.py 1"))
	scaled.join(a)
	scaled.join(b)
	scaled.wantRound(a, b)
	scaled.apply(Direct{ID: "s", Kind: DirectiveScale, Within: 1, Target: 1, By: "admin"})
	scaled.fire(TimerDirective)
	scaled.join(a)
	scaled.join(b)
	scaled.wantPending(b)
	if o, _, ok := a.outcome(); !ok || o.World != 1 {
		t.Fatalf("%+v", o)
	}
}

// TestEndedRunOfAnotherJob: after a success a node of that job was not needed, and one of another is
// refused, also by a control plane that knows no more than how the run had ended.
func TestEndedRunOfAnotherJob(t *testing.T) {
	r, p := newRig(t, -1), policy(1, 1)
	n := r.runners(p, "aa", "a")
	r.apply(Leave{Request: n[0].request(), Ending: EndSuccess})
	check := func(r *rig) {
		t.Helper()
		other, same := r.hello("c", p, runs("cc", "c.py")), r.hello("d", p, runs("aa", "a.py"))
		r.join(other)
		if err := r.wantError(other, CodeMismatch); !strings.Contains(err.Text, "`c.py`") || !strings.Contains(err.Text, "begin_again=1") {
			t.Error(err.Text)
		}
		r.join(same)
		r.wantError(same, CodeGraceful)
	}
	check(r)
	kept, ok := r.m.Kept()
	if !ok {
		t.Fatal("the run is not kept")
	}
	later := newRig(t, -1)
	later.apply(roundTrip(t, kept))
	check(later)
}

// roundTrip is an event as it comes out of a log.
func roundTrip(t *testing.T, ev Event) Event {
	t.Helper()
	b, err := EncodeEvent(ev)
	if err == nil {
		ev, err = DecodeEvent(b)
	}
	if err != nil {
		t.Fatal(err)
	}
	return ev
}

// TestCommandsFromOutside: what peers say is bounded and cannot draw on a terminal.
func TestCommandsFromOutside(t *testing.T) {
	for digest, want := range map[string]string{"0a": "0a", "no": "", strings.Repeat("a", 65): "", "a\nb": "", "A0": ""} {
		if c := (Command{digest, "x\x1b[2J"}).clean(); c.Digest != want || strings.Contains(c.Text, "\x1b") {
			t.Errorf("%q became %+v", digest, c)
		}
	}
}

// TestHelloWithoutACommand reads what a release before state version 9 wrote.
func TestHelloWithoutACommand(t *testing.T) {
	const old = "9308089da173a16e01c2a09d01020100cf00000006fc23ac0000cf00000014f46b0400ce3b9aca00cf00000002540be400ce3b9aca00cf0000008bb2c9700001c2" +
		"99a000000000c2c090a0c2a0a0c2a168a172"
	b, _ := hex.DecodeString(old)
	ev, err := DecodeEvent(b)
	if h, ok := ev.(Hello); err != nil || !ok || h.Topology != "r" || h.Command != (Command{}) {
		t.Errorf("%+v, %v", ev, err)
	}
}
