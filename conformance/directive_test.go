package conformance

import (
	"slices"
	"testing"
	"time"

	r "rallypoint/core/rendezvous"
	"rallypoint/core/trace"
)

// directing is a round that saves, and then continues without the node that is drained.
func directing(t *testing.T) []trace.Record {
	p := policy(2, 3)
	s := newScript(t, p)
	s.hello(p, "1", "2", "3")
	s.joins("1", "2", "3") // 1 to 6
	report := func(id, node string, step int64, saved bool) {
		s.do(r.ReportDirective{Request: s.request(node), ID: id, Generation: "g", Round: 1, Step: step, Saved: saved})
	}
	s.do(r.Direct{ID: "d1", Kind: r.DirectiveSave, Within: time.Hour, By: "admin", Reason: "why"}) // 7
	report("d1", "1", 5, false)                                                                    // 8
	report("d1", "2", 7, false)                                                                    // 9
	report("d1", "3", 6, false)                                                                    // 10: agreed
	for _, node := range []string{"1", "2", "3"} {
		report("d1", node, -1, true) // 11 to 13: over
	}
	s.do(r.Direct{ID: "d2", Kind: r.DirectiveDrain, Nodes: []string{"3"}, Within: time.Hour, By: "admin", Reason: "why"}) // 14
	for _, node := range []string{"1", "2", "3"} {
		report("d2", node, 9, false) // 15 to 17: agreed
	}
	for _, node := range []string{"1", "2", "3"} {
		report("d2", node, -1, true) // 18 to 20: node 3 is drained
	}
	s.joins("1", "2") // 21, 22
	return s.records
}

// TestDirectives holds a history against what docs/design.md says of directives, and finds
// what breaks that.
func TestDirectives(t *testing.T) {
	if a := checkedHistory(t, directing(t)); !a.Kept() {
		t.Error(a)
	}
	told := r.DirectiveNotice{ID: "d1", Kind: r.DirectiveSave, Text: "why", Within: time.Hour, Round: 1, Agreed: true, Step: 7}
	notice := func(change func(d *r.DirectiveNotice), only ...r.SessionID) func([]r.Effect) []r.Effect {
		return each(func(e r.Notify) r.Effect {
			if len(only) == 0 || slices.Contains(only, e.Session) {
				change(&e.Update.Directive)
			}
			return e
		})
	}
	for name, change := range map[string]func([]trace.Record) []trace.Record{
		"not told to all":         effects(7, without[r.Notify]("s1")),
		"told as another's":       effects(7, notice(func(d *r.DirectiveNotice) { d.Named = true })),
		"asked in another round":  effects(7, notice(func(d *r.DirectiveNotice) { d.Round = 2 })),
		"agreed before all spoke": effects(9, with(r.Notify{Session: "s1", Update: r.MembershipUpdate{Directive: told}})),
		"a lower step":            effects(10, notice(func(d *r.DirectiveNotice) { d.Step = 6 })),
		"a higher step":           effects(10, notice(func(d *r.DirectiveNotice) { d.Step = 8 })),
		"two steps":               effects(10, notice(func(d *r.DirectiveNotice) { d.Step = 8 }, "s2")),
		"one is not told of it":   effects(10, without[r.Notify]("s2")),
		"over too soon":           effects(12, with(r.Notify{Session: "s1"}, r.Notify{Session: "s2"}, r.Notify{Session: "s3"})),
		"not over":                effects(13, nothing),
		"drained too soon":        effects(19, with(r.Drop{Session: "s3", Err: r.Errorf(r.CodeEvicted, "run \"job\": node 3 was dropped")})),
		"not drained":             effects(20, nothing),
		"ended by no directive":   effects(6, outcome(func(_ r.SessionID, o *r.Outcome) { o.ByDirective = true })),
	} {
		j := New("job")
		for _, rec := range change(directing(t))[1:] {
			j.Apply(rec.Event, rec.Effects)
			if len(j.Violations()) > 0 {
				break
			}
		}
		if !slices.ContainsFunc(j.Violations(), func(v Violation) bool { return v.Guarantee == 12 || v.Guarantee == 6 }) {
			t.Errorf("%s: found %v", name, j.Violations())
		}
	}
}
