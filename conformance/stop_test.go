package conformance

import (
	"slices"
	"testing"

	r "rallypoint/core/rendezvous"
	"rallypoint/core/trace"
)

// stopping is a round that a node announces to stop, and that another one leaves; then the
// next round, of which an announcement for the first comes too late.
func stopping(t *testing.T) []trace.Record {
	p := policy(2, 3)
	s := newScript(t, p)
	s.hello(p, "1", "2", "3")
	s.joins("1", "2", "3") // 1 to 6
	stop := r.AnnounceStop{Generation: "g", Round: 1, Reason: "rank 1 exited with code 7"}
	announce := func(node string, leaving bool) {
		stop.Request, stop.Leaving = s.request(node), leaving
		s.do(stop)
	}
	announce("2", false) // 7
	announce("3", false) // 8: the second one
	announce("3", true)  // 9
	s.joins("1", "2")    // 10, 11: round 2
	announce("1", false) // 12: of round 1
	return s.records
}

// TestAnnouncedStops holds a history against what docs/design.md says of announced stops,
// and finds what breaks that.
func TestAnnouncedStops(t *testing.T) {
	if a := checkedHistory(t, stopping(t)); !a.Kept() {
		t.Error(a)
	}
	late := r.MembershipUpdate{Waiting: 1, Reason: "why", Stop: r.RoundStop{Round: 1, Rank: 1}}
	for name, change := range map[string]func([]trace.Record) []trace.Record{
		"not announced to all":       effects(7, without[r.Notify]("s1")),
		"announced as another's":     effects(7, each(func(e r.Notify) r.Effect { e.Update.Stop.Rank = 0; return e })),
		"a second one counts":        effects(8, with(r.Notify{Session: "s1", Update: r.MembershipUpdate{Waiting: 1, Reason: "why", Stop: r.RoundStop{Round: 1, Rank: 2}}})),
		"a loss is not told":         effects(9, each(func(e r.Notify) r.Effect { e.Update.Stop.Lost = false; return e })),
		"a later round is stopped":   effects(12, with(r.Notify{Session: "s2", Update: late})),
		"it outlives its round":      effects(11, with(r.Notify{Session: "s2", Update: late})),
		"announced and no regroup":   effects(7, each(func(e r.Notify) r.Effect { e.Update.Waiting = 0; return e })),
		"a node that left is waited": effects(11, nothing),
	} {
		j := New("job")
		for _, rec := range change(stopping(t))[1:] {
			j.Apply(rec.Event, rec.Effects)
			if len(j.Violations()) > 0 {
				break
			}
		}
		if !slices.ContainsFunc(j.Violations(), func(v Violation) bool { return v.Guarantee == 7 || v.Guarantee == 6 }) {
			t.Errorf("%s: found %v", name, j.Violations())
		}
	}
}
