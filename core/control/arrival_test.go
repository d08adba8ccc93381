package control

import (
	"fmt"
	"testing"

	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

// TestArrivalsAreInTheHistory has nodes come, and one of them reconnect, which is
// no arrival.
func TestArrivalsAreInTheHistory(t *testing.T) {
	s := newFakeServer(t, Config{})
	p := controltest.Params("", 3)
	for i, want := range []string{"a joined", "2 nodes joined (a, b)", "3 nodes joined (a, b, c)", "3 nodes joined (a, b, c)"} {
		name := string(rune('a' + min(i, 2)))
		h := testHello(name, "s"+name, p)
		h.Label = name + "'s host"
		dialNode(t, s.addr).enter(h)
		st, _ := s.RunStatus("run")
		wantTexts(t, st.Runs[0].Changes, want)
		if n := st.Runs[0].ChangesTotal; n != 1 {
			t.Errorf("%d changes after %d arrivals", n, i+1)
		}
	}
}

func TestArrivalsBetweenOtherChanges(t *testing.T) {
	var h changelog
	now := testkit.NewClock().Now()
	for i := range 3 * maxChanges {
		h.arrive(now, 1, fmt.Sprint(i))
		h.add(now, 1, "something else")
		h.arrive(now, 1, "x")
		h.arrive(now, 1, "y")
		list := h.list()
		wantTexts(t, list, "something else", "2 nodes joined (x, y)")
	}
	if len(h.ring) != maxChanges {
		t.Errorf("%d changes are kept", len(h.ring))
	}
}

// TestManyArrivals: the first nodes are named, the others counted.
func TestManyArrivals(t *testing.T) {
	var h changelog
	for i := range 40 {
		h.arrive(testkit.NewClock().Now(), 1, fmt.Sprint("n", i))
	}
	wantTexts(t, h.list(), "40 nodes joined (n0, n1, n2, n3, n4, n5, n6, n7 and 32 more)")
}

// TestLateMembersAreCounted completes a round without a live member that does not
// rejoin.
func TestLateMembersAreCounted(t *testing.T) {
	s := newFakeServer(t, Config{})
	p := controltest.Params("", 3)
	p.Min = 2
	nodes := make([]*wireNode, 3)
	for i := range nodes {
		nodes[i] = dialNode(t, s.addr)
		nodes[i].enter(testHello(fmt.Sprint("n", i), fmt.Sprint("s", i), p))
		nodes[i].ask(1, controltest.Join())
	}
	s.awaitRound(t, 1)
	nodes[0].ask(2, controltest.Join())
	nodes[1].ask(2, controltest.Join())
	s.rec.await(t, "rejoins", 5, isEvent[rendezvous.Join])
	for range 2 * int(p.RegroupTimeout/(p.LeaseTimeout/4)) {
		s.clock.Advance(p.LeaseTimeout / 4)
		for _, n := range nodes { // the reply shows that the beat before it was read
			n.send(wire.Beat{})
			n.send(wire.Request{Number: 3, Op: 99})
			for {
				if r, ok := n.next().(wire.Reply); ok && r.Number == 3 {
					break
				}
			}
		}
		if s.metrics.lost[lostLate].Load() > 0 {
			break
		}
	}
	s.awaitRound(t, 2)
	if n := s.metrics.lost[lostLate].Load(); n != 1 {
		t.Errorf("%d nodes are counted as late, want 1", n)
	}
}
