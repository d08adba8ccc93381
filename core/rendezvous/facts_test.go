package rendezvous

import (
	"strings"
	"testing"
)

// TestFactsOfARunThatWasBegunAgain: a successor knows no more of its last round than the number, and
// what it tells the next one can be believed, though a directive had ended that round.
func TestFactsOfARunThatWasBegunAgain(t *testing.T) {
	p := policy(1, 3)
	was := Facts{Generation: "g", Origin: "g", Round: 3, HostRank: -1, Directives: DirectiveFacts{Seq: 1, EndedRound: 3}}
	m := New(Config{RunID: "job", Generation: "g2", Uptime: -1, Succession: Succession{Term: 2, From: "a", Facts: was}})
	m.Apply(Hello{Session: "s", Node: "b", Policy: p, LastRound: LastRound{HostRank: -1}, InHost: true})
	m.Apply(CloseRun{By: "admin", Reason: "why", Stop: true})
	f := m.Facts()
	if f.Closed.Kind != ClosedFailed || !f.possible(LastRound{}, p.Max) {
		t.Errorf("it tells what no successor believes: %+v", f)
	}
}

// TestKeptOutNodeHasJoinedAlready: a node that is kept out gets no place at a next host either, which
// learns of that after the node has asked for one.
func TestKeptOutNodeHasJoinedAlready(t *testing.T) {
	p := policy(2, 4)
	r, n := hostedRig(t, p, "a", "b", "c", "d")
	told := n[2].facts
	r.apply(Cordon{Node: "b", By: "admin", Reason: "its disk"})
	n[2].facts = told // c was not told of it
	r = r.dies(n[0], n[2], p)
	r.join(n[2])
	b := r.hello("b", p)
	r.join(b)
	r.follows(p, n[3])
	if err := r.wantError(b, CodeGraceful); !strings.Contains(err.Text, "cordoned by admin: its disk") {
		t.Errorf("it was told %q", err.Text)
	}
	r.join(n[3])
	r.fire(TimerLastCall)
	r.wantRound(n[2], n[3])
}

// TestClosedWhileOneRegroups: a node that waits for a place in the next round has none to rejoin for
// when another one reports both a later round and that the run was closed.
func TestClosedWhileOneRegroups(t *testing.T) {
	p := policy(1, 3)
	r := newRig(t, -1)
	r.m = New(Config{RunID: "job", Generation: "g+", Succession: Succession{Term: 2, From: "a"}})
	r.checker.TookOver("c", Succession{Term: 2, From: "a"})
	b := r.hello("b", p, func(h *Hello) { h.LastRound = LastRound{Generation: "g", Round: 2, Rank: 1, World: 2, HostRank: -1} })
	r.join(b)
	r.hello("c", p, func(h *Hello) {
		h.LastRound = LastRound{Generation: "g", Round: 4, World: 1, HostRank: -1, Facts: Facts{Generation: "g", Origin: "g", Round: 4, World: 1, HostRank: -1, Closed: Closing{Kind: ClosedAdmission, By: "admin", Reason: "why"}}}
	})
	r.wantError(b, CodeClosed)
	if b.notice.Waiting != 0 {
		t.Errorf("it was told %+v", b.notice)
	}
}
