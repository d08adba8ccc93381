package conformance

import (
	"slices"
	"strings"
	"testing"
	"time"

	r "rallypoint/core/rendezvous"
	"rallypoint/core/trace"
)

// unfit is a run of which a node leaves by its own word, which keeps the next one in; a check then
// finds another one unfit, which stays for the same reason.
func unfit(t *testing.T) []trace.Record {
	p := policy(2, 3)
	s := newScript(t, p)
	s.hello(p, "1", "2", "3", "4")
	s.joins("1", "2", "3", "4") // 5 to 8: a round at 7, and a spare
	fails := func(node string, round uint64) {
		s.do(r.AnnounceStop{Request: s.request(node), Generation: "g", Round: round, Reason: "rank 1 exited with code 7", Away: time.Hour})
	}
	checked := func(node, id string, within time.Duration) {
		s.do(r.GiveDirective{Request: s.request(node), Unfit: true, Directive: r.Direct{ID: id, Kind: r.DirectiveDrain, Within: within, For: time.Hour, Reason: "gpu_xid"}})
	}
	fails("3", 1)                                                                                                     // 9
	s.joins("3", "1", "2")                                                                                            // 10: refused; 11, 12: round 2
	fails("1", 2)                                                                                                     // 13: refused
	checked("2", "c1", time.Minute)                                                                                   // 14: refused
	s.do(r.Leave{Request: s.request("3"), Reason: "unfit"})                                                           // 15
	s.do(r.Hello{Session: "again", Node: "3", Policy: p, SeenAddr: "10.0.0.1", LastRound: r.LastRound{HostRank: -1}}) // 16: refused
	s.do(r.Undrain{Node: "3", By: "admin", Reason: "why"})                                                            // 17
	s.joins("1")                                                                                                      // 18
	checked("1", "c2", 0)                                                                                             // 19
	return s.records
}

// least is a run that needs all of its nodes.
func least(t *testing.T) []trace.Record {
	p := policy(2, 2)
	s := newScript(t, p)
	s.hello(p, "1", "2")
	s.joins("1", "2")
	s.do(r.AnnounceStop{Request: s.request("2"), Generation: "g", Round: 1, Reason: "failed", Away: time.Hour}) // 5: refused
	return s.records
}

// TestUnfitNodes holds histories against what docs/decisions/0121 and 0131 say of nodes that leave by
// their own word, and finds what breaks that.
func TestUnfitNodes(t *testing.T) {
	for _, history := range []func(*testing.T) []trace.Record{unfit, least} {
		if a := checkedHistory(t, history(t)); !a.Kept() {
			t.Error(a)
		}
	}
	accepted := each(func(e r.Reply) r.Effect { e.Err = nil; return e })
	for name, m := range map[string]struct {
		of     func(*testing.T) []trace.Record
		change func([]trace.Record) []trace.Record
		says   string
	}{
		"more than the share leave":       {unfit, effects(13, accepted), "left as unfit, the 2th of a run of 3 nodes"},
		"more than the share by a check":  {unfit, effects(14, accepted), "left as unfit, the 2th of a run of 3 nodes"},
		"fewer than min are left":         {least, effects(5, accepted), "left as unfit, with 1 others of at least 2"},
		"it joins all the same":           {unfit, effects(10, nothing), "was answered with code 0"},
		"it waits all the same":           {unfit, effects(19, each(func(e r.Reply) r.Effect { return map[bool]r.Effect{false: e}[e.Err != nil] })), "still joins"},
		"it comes back and is let in":     {unfit, effects(16, func([]r.Effect) []r.Effect { return []r.Effect{r.Welcome{Session: "again"}} }), "was drained, and not refused"},
		"it comes back and is not needed": {unfit, effects(16, each(func(e r.Refuse) r.Effect { e.Err = &r.Error{Code: r.CodeGraceful, Text: e.Err.Text}; return e })), "was drained, and not refused"},
	} {
		c := New("job")
		for _, rec := range m.change(m.of(t))[1:] {
			c.Apply(rec.Event, rec.Effects)
		}
		if !slices.ContainsFunc(c.Violations(), func(v Violation) bool { return v.Guarantee == 4 && strings.Contains(v.String(), m.says) }) {
			t.Errorf("%s: found %v", name, c.Violations())
		}
	}
}

// TestRankForANodeThatIsOut has the control plane forget that a node is kept out.
func TestRankForANodeThatIsOut(t *testing.T) {
	c := New("job")
	for i, rec := range unfit(t)[1:13] {
		if i == 9 {
			c.drained["4"] = drain{by: "admin", reason: "why"}
		}
		c.Apply(rec.Event, rec.Effects)
	}
	if !slices.ContainsFunc(c.Violations(), func(v Violation) bool {
		return strings.Contains(v.String(), "round 2 has a rank for node 4, which is kept out")
	}) {
		t.Errorf("found %v", c.Violations())
	}
}
