package rendezvous

import (
	"testing"
	"time"
)

// TestConnectionBreaksInEachPhase: a member whose connection breaks is waited for, and what
// it has said before stands; when it is back it learns what it has missed. Its drain is
// carried out while it is away, too.
func TestConnectionBreaksInEachPhase(t *testing.T) {
	p := policy(1, 2)
	begin := func(t *testing.T) (*rig, *rigNode, *rigNode) {
		r := newRig(t, -1)
		n := r.group(p, "a", "b")
		return r, n[0], n[1]
	}
	drain := drainOf("d1", time.Hour, time.Hour, "b")
	said := func(n *rigNode, list ...DirectiveReport) { n.claim.Reports = list }
	held, saved := DirectiveReport{"d1", 8, false}, DirectiveReport{"d1", -1, true}
	finish := func(t *testing.T, r *rig, a, b *rigNode) {
		t.Helper()
		r.saved(a, "d1")
		r.wantAgreed("d1", 1, 8, a, b)
		r.saved(b, "d1")
		if b.dropped == nil || a.notice.Waiting == 0 {
			t.Errorf("it was not carried out: %v, %+v", b.dropped, a.notice)
		}
	}
	t.Run("before it is asked", func(t *testing.T) {
		r, a, b := begin(t)
		r.apply(Disconnect{Session: b.session})
		r.apply(drain)
		r.held(a, "d1", 7)
		r.wantAsked("d1", 1, a)
		r.again(b, p)
		r.wantAsked("d1", 1, a, b)
		r.held(b, "d1", 8)
		finish(t, r, a, b)
	})
	t.Run("asked", func(t *testing.T) {
		r, a, b := begin(t)
		r.apply(drain)
		r.apply(Disconnect{Session: b.session})
		r.held(a, "d1", 7)
		r.wantAsked("d1", 1, a)
		said(b, held) // its workers are held meanwhile
		r.again(b, p)
		finish(t, r, a, b)
	})
	t.Run("has answered", func(t *testing.T) {
		r, a, b := begin(t)
		r.apply(drain)
		r.held(b, "d1", 8)
		r.apply(Disconnect{Session: b.session})
		r.held(a, "d1", 7)
		r.wantAgreed("d1", 1, 8, a)
		said(b, held)
		r.again(b, p)
		finish(t, r, a, b)
	})
	t.Run("agreed", func(t *testing.T) {
		r, a, b := begin(t)
		r.apply(drain)
		r.held(b, "d1", 8)
		r.held(a, "d1", 7)
		r.apply(Disconnect{Session: b.session})
		r.saved(a, "d1")
		if b.dropped != nil {
			t.Error("it was carried out, and it is not known whether its workers have saved")
		}
		said(b, held, saved)
		r.again(b, p)
		if b.dropped == nil || a.notice.Waiting == 0 {
			t.Errorf("it was not carried out: %v, %+v", b.dropped, a.notice)
		}
	})
	t.Run("has saved", func(t *testing.T) {
		r, a, b := begin(t)
		r.apply(drain)
		r.held(b, "d1", 8)
		r.held(a, "d1", 7)
		r.saved(b, "d1")
		r.apply(Disconnect{Session: b.session})
		r.saved(a, "d1")
		r.join(a)
		r.wantRound(a)
		r.again(b, p)
		if b.welcomed || b.refused == nil || b.refused.Code != CodeGraceful {
			t.Errorf("the drained node is back and was told %+v", b.refused)
		}
	})
	t.Run("and stays away", func(t *testing.T) {
		r, a, b := begin(t)
		r.apply(drain)
		r.held(b, "d1", 8)
		r.apply(Disconnect{Session: b.session})
		r.held(a, "d1", 7)
		r.saved(a, "d1")
		r.fire(TimerGrace)
		r.join(a)
		r.wantRound(a)
		r.wantNoDirective(a)
	})
}
