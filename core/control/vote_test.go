package control

import (
	"slices"
	"testing"

	"rallypoint/core/control/standby"
	"rallypoint/internal/testkit"
)

// TestHostIsElected: where nodes vote, the host's death is followed by an election. The next host
// has the majority's facts, says nothing before a majority has accepted its own, and the
// others come to it.
func TestHostIsElected(t *testing.T) {
	p := elastic(t, 3)
	p.Quorum = true
	nodes := form(t, p, 3)
	voted := func(s *Server, voters int) bool {
		r := s.cfg.Group.VoteReport()
		return r.Majority && len(r.Voters) == voters && !slices.ContainsFunc(r.Voters, func(v standby.VoterReport) bool { return !v.Reachable })
	}
	host := nodes[0].server()
	testkit.Eventually(t, "the host hears both voters", func() bool { return voted(host, 2) })
	st := host.Status()
	if s := st.Server.Succession; len(s.Voters) != 2 || s.Majority == nil || !*s.Majority || s.Missing != "" || s.Elections != 0 {
		t.Errorf("succession: %+v", s)
	}
	before := host.cfg.Group.Current().Term
	nodes[0].kill()
	left := nodes[1:]
	for _, n := range left {
		n.mustRegroup()
	}
	regroup(t, left)
	if got := hosts(left); len(got) != 1 {
		t.Fatalf("hosts: %v", got)
	}
	next := left[slices.IndexFunc(left, (*plane).Hosting)].server()
	if r := next.cfg.Group.VoteReport(); r.Elections != 1 || r.Silent {
		t.Errorf("the next host: %+v", r)
	}
	if term := next.cfg.Group.Current().Term; term <= before {
		t.Errorf("term %d after term %d", term, before)
	}
	testkit.Eventually(t, "of two nodes only the host votes", func() bool { return voted(next, 0) })
}
