package conformance

import (
	"slices"
	"strings"
	"testing"

	r "rallypoint/core/rendezvous"
	"rallypoint/core/trace"
)

// twoJobs is a run to which nodes of another job come: beside a whole round, as what a regroup
// leaves, and after the end.
func twoJobs(t *testing.T) []trace.Record {
	p := policy(2, 2)
	s := newScript(t, p)
	hello := func(node, digest string) {
		s.do(r.Hello{Session: r.SessionID("s" + node), Node: node, Policy: p, SeenAddr: "10.0.0.1", LastRound: r.LastRound{HostRank: -1},
			Command: r.Command{Digest: digest, Text: "job " + digest}})
	}
	hello("1", "aa")
	hello("2", "aa")
	s.joins("1", "2") // 3, 4: round 1
	hello("3", "bb")
	s.joins("3") // 6: refused
	hello("4", "aa")
	s.joins("4") // 8: a spare
	s.do(r.Disconnect{Session: "s2"})
	s.fire(r.TimerGrace) // 10
	hello("5", "bb")
	s.joins("5", "1") // 12, 13: round 2 of 1 and 4, and 5 is refused
	s.do(r.Leave{Request: s.request("1"), Ending: r.EndSuccess})
	hello("6", "bb")
	hello("7", "aa")
	s.joins("6", "7") // 17, 18: refused, and not needed
	return s.records
}

// TestTwoJobs holds a history against what docs/decisions/0146 says of spares of another job, and
// finds what breaks that.
func TestTwoJobs(t *testing.T) {
	if a := checkedHistory(t, twoJobs(t)); !a.Kept() {
		t.Error(a)
	}
	refused := func(session r.SessionID, number uint64) r.Effect {
		return r.Reply{Session: session, Number: number, Err: r.Errorf(r.CodeMismatch, "run \"job\": node %s", strings.TrimPrefix(string(session), "s"))}
	}
	for name, m := range map[string]struct {
		change func([]trace.Record) []trace.Record
		says   string
	}{
		"another job's spare waits":       {effects(6, nothing), "the join of 3 was answered with code 0, want 12"},
		"a spare of the job is refused":   {effects(8, with(refused("s4", 1))), "the join of 4 was answered with code 12, want 0"},
		"a node is refused after a loss":  {effects(12, with(refused("s5", 1))), "the join of 5 was answered with code 12, want 0"},
		"a round leaves a stranger":       {effects(13, without[r.Reply]("s5")), "node 5 runs another command than the members of round 2, and waits as their spare"},
		"another job was not needed":      {effects(17, each(func(e r.Reply) r.Effect { e.Err = &r.Error{Code: r.CodeGraceful, Text: e.Err.Text}; return e })), "with code 22, want 12"},
		"a late node of the job is wrong": {effects(18, each(func(e r.Reply) r.Effect { e.Err = &r.Error{Code: r.CodeMismatch, Text: e.Err.Text}; return e })), "with code 12, want 22"},
	} {
		t.Run(name, func(t *testing.T) {
			c := New("job")
			for _, rec := range m.change(twoJobs(t))[1:] {
				c.Apply(rec.Event, rec.Effects)
			}
			if !slices.ContainsFunc(c.Violations(), func(v Violation) bool { return strings.Contains(v.Text, m.says) }) {
				t.Errorf("it finds %v", c.Violations())
			}
		})
	}
}
