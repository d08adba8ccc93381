package rendezvous

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// segments is a policy of rounds of whole segments.
func segments(min, max, segment int) Policy {
	p := policy(min, max)
	p.Segment = segment
	return p
}

// in makes a hello name a domain.
func in(domain string) func(*Hello) { return func(h *Hello) { h.Topology = domain } }

// rack has so many nodes of a domain come and ask for a place.
func (r *rig) rack(p Policy, domain string, from, to int) (nodes []*rigNode) {
	r.t.Helper()
	for i := from; i < to; i++ {
		n := r.hello(fmt.Sprintf("%s-%d", domain, i), p, in(domain))
		if n.refused != nil {
			r.t.Fatalf("node %s: %v", n.id, n.refused)
		}
		r.join(n)
		nodes = append(nodes, n)
	}
	return nodes
}

// rejoin has nodes ask for a place in the next round.
func (r *rig) rejoin(nodes ...*rigNode) {
	r.t.Helper()
	for _, n := range nodes {
		r.join(n)
	}
}

func wantRanks(t *testing.T, nodes []*rigNode, want ...int) {
	t.Helper()
	var got []int
	for _, n := range nodes {
		got = append(got, n.claim.Rank)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s and others have ranks %v, want %v", nodes[0].id, got, want)
	}
}

// TestNoWholeSegment has seven of eight nodes in each of four racks: each lacks one.
func TestNoWholeSegment(t *testing.T) {
	r := newRig(t, time.Hour)
	p := segments(8, 32, 8)
	for i := range 4 {
		r.rack(p, fmt.Sprint("rack", i), 0, 7-i%2)
	}
	s := r.m.Status()
	if want := "0 of at least 8 nodes are here in whole segments of 8, 1 more needed: rack0 has 7 of 8, rack2 has 7 of 8, rack1 has 6 of 8, rack3 has 6 of 8"; s.NotStarted != want {
		t.Errorf("not started: %q, want %q", s.NotStarted, want)
	}
	if s.Missing != (Missing{1, 1 + 1 + 2 + 2, "6"}) {
		t.Errorf("missing %+v", s.Missing)
	}
	forming, _ := r.m.Progress()
	if want := "26 of 32 nodes here (at least 8 needed); rack0 has 7 of 8, rack2 has 7 of 8, rack1 has 6 of 8, rack3 has 6 of 8"; forming.Headline != want {
		t.Errorf("progress %q, want %q", forming.Headline, want)
	}
	r.rack(p, "rack0", 7, 8)
	if s := r.m.Status(); s.Missing.Min != 0 || !strings.HasPrefix(s.NotStarted, "enough nodes are here (8)") {
		t.Errorf("%d are lacking: %s", s.Missing.Min, s.NotStarted)
	}
	r.fire(TimerLastCall)
	if o := r.m.Status(); len(o.Members) != 8 || len(o.Waiting) != 19 {
		t.Errorf("%d members, %d wait", len(o.Members), len(o.Waiting))
	}
	if _, waiting := r.m.Progress(); !strings.HasPrefix(waiting.Detail, "spare until a segment is whole: rack2 has 7 of 8") {
		t.Errorf("%+v", waiting)
	}
}

// TestRoundWithoutABrokenSegment continues with the others if they are enough, and takes the segment
// in again when it is whole.
func TestRoundWithoutABrokenSegment(t *testing.T) {
	r := newRig(t, time.Hour)
	p := segments(2, 4, 2)
	a, b := r.rack(p, "a", 0, 2), r.rack(p, "b", 0, 2)
	r.lost(a[0])
	r.rejoin(a[1], b[0], b[1])
	r.wantRound(b...)
	r.wantPending(a[1])
	if s := r.m.Census(); s.Spare != 1 {
		t.Errorf("%+v", s)
	}
	back := r.rack(p, "a", 0, 1)
	r.fire(TimerAdmit)
	r.wantRegroup("the job grows to 4 nodes; waiting for a place: a-1, a-0", b...)
	r.rejoin(b...)
	r.wantRound(b[0], b[1], a[1], back[0])
	wantRanks(t, b, 0, 1)
}

// TestDomainsOutliveTheHost: a successor knows the domain of a segment all of whose nodes died with
// the control plane's host.
func TestDomainsOutliveTheHost(t *testing.T) {
	p := segments(6, 6, 2)
	r := newRig(t, -1)
	r.m.succession.Term = 1
	r.checker.TookOver("a0", Succession{Term: 1})
	var host []*rigNode
	for _, domain := range []string{"a", "a", "b", "b", "c", "c"} {
		host = append(host, r.hello(fmt.Sprint(domain, len(host)), p, in(domain), func(h *Hello) { h.InHost = len(host) == 0 }))
	}
	r.rejoin(host...)
	r.wantRound(host...)
	if text := host[3].facts.Domains; text != "2 a\n2 b\n2 c\n" {
		t.Fatalf("a node was told %q", text)
	}
	next := r.dies(host[0], host[2], p)
	next.follows(p, host[3], host[4], host[5])
	next.fire(TimerHold)
	next.rejoin(host[2:]...)
	spares := slices.Concat(next.rack(p, "d", 0, 1), next.rack(p, "a", 0, 2))
	next.wantRound(slices.Concat(host[2:], spares[1:])...)
	wantRanks(t, spares[1:], 0, 1)
	wantRanks(t, host[2:], 2, 3, 4, 5)
	if text := host[3].facts.Domains; text != "2 a\n2 b\n2 c\n" {
		t.Errorf("a node was told %q", text)
	}
}

// TestDomainsThatCannotBe are a report's that is worth nothing.
func TestDomainsThatCannotBe(t *testing.T) {
	for _, text := range []string{"2 a", "3 a\n", "1 a\n", "2 a\nb\n", "-1 a\n3 b\n", "2 a\n0 b\n", "1 a\n1 b\x1b\n", "99999999999 a\n", " \n", "1 a\n1 " + strings.Repeat("x", MaxNameLen+1)} {
		f := Facts{Generation: "g", Origin: "g", Round: 1, World: 2, HostRank: -1, Domains: text}
		possible := f.possible(LastRound{}, 4)
		if want := text == "2 a"; possible != want {
			t.Errorf("%q is possible: %v", text, possible)
		}
	}
}

// TestManyDomains has 10 000 nodes, each in a domain of its own: they make no segment of two.
func TestManyDomains(t *testing.T) {
	const nodes = 10000
	p := segments(2, nodes, 2)
	m := New(Config{RunID: "job", Generation: "g", Uptime: -1})
	come := func(i int, domain string) {
		session := SessionID(fmt.Sprint(i))
		m.Apply(Hello{Session: session, Node: fmt.Sprint("n", i), Policy: p, Topology: domain})
		m.Apply(Join{Request: Request{Session: session, Number: 1}, NodeRank: -1, RankHint: -1})
	}
	for i := range nodes {
		come(i, fmt.Sprint("d", i))
	}
	c := m.Census()
	if m.Round() != 0 || c.Lack != 1 || c.LackFull != nodes/2 {
		t.Fatalf("round %d: %+v", m.Round(), c)
	}
	if s := m.Status(); !strings.Contains(s.NotStarted, "d0 has 1 of 2, d1 has 1 of 2") || !strings.HasSuffix(s.NotStarted, ", and 9992 more") {
		t.Errorf("%q", s.NotStarted)
	}
	come(nodes, "d7")
	if c := m.Census(); c.Lack != 0 {
		t.Errorf("%+v", c)
	}
}

// TestSegmentsAreChecked: numbers that do not fit them are refused by a text that names them.
func TestSegmentsAreChecked(t *testing.T) {
	for _, c := range []struct {
		change func(*Policy)
		says   string
	}{
		{func(p *Policy) { p.Segment = -1 }, "segment is -1"},
		{func(p *Policy) { p.Min = 6 }, "the minimum (6) and maximum (16) number of nodes must be multiples of segment (4)"},
		{func(p *Policy) { p.Max = 18 }, "the minimum (8) and maximum (18) number of nodes must be multiples of segment (4)"},
		{func(p *Policy) { p.Target = 10 }, "target (10) must be a multiple of segment (4)"},
		{func(p *Policy) { p.NodeUnit = 2 }, "node_unit (2) must be a multiple of segment (4)"},
		{func(p *Policy) { p.NodeUnit = 8 }, ""},
		{func(p *Policy) { p.NodeUnit, p.Target = 1, 12 }, ""},
	} {
		p := segments(8, 16, 4)
		c.change(&p)
		if err := p.Validate(); c.says == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v, want %q", p, err, c.says)
		}
	}
	r := newRig(t, time.Hour)
	p := segments(4, 8, 4)
	a := r.rack(p, "a", 0, 3)
	if n := r.hello("nowhere", p); n.refused == nil || n.refused.Code != CodeInvalid || !strings.Contains(n.refused.Text, "--topology") {
		t.Errorf("%+v", n.refused)
	}
	if n := r.hello("alone", policy(4, 8), in("a")); n.refused == nil || n.refused.Code != CodeMismatch || !strings.Contains(n.refused.Text, "--nnodes=4:8 --segment=4") {
		t.Errorf("%+v", n.refused)
	}
	a = append(a, r.rack(p, "a", 3, 4)...)
	r.fire(TimerLastCall)
	r.wantRound(a...)
	if answer := r.answerTo(Direct{ID: "d", Kind: DirectiveScale, Target: 6, By: "admin", Reason: "why"}); answer.Err == nil || !strings.Contains(answer.Err.Text, "multiple of segment (4)") {
		t.Errorf("%+v", answer)
	}
	b := r.rack(p, "b", 0, 3)
	if err := r.unfit(a[0], "fails"); err == nil || !strings.Contains(err.Text, "0 would be left, at least 4 are needed") {
		t.Errorf("%v", err)
	}
	if answer := r.answerTo(drainOf("e", 0, 0, "a-1")); !strings.Contains(answer.Text, "too few then (0 of at least 4)") {
		t.Errorf("%+v", answer)
	}
	r.wantPending(b...)
}

// TestDomainsOfManyRanks are told by their runs, up to a limit.
func TestDomainsOfManyRanks(t *testing.T) {
	of := func(nodes int, domain func(i int) string) (list []*participant) {
		for i := range nodes {
			list = append(list, &participant{rank: i, domain: domain(i)})
		}
		return list
	}
	racks := domainsOf(of(9216, func(i int) string { return fmt.Sprint("rack", i/72) }))
	if n := len(racks); n > 2000 || ranksOf(racks) != 9216 {
		t.Errorf("%d bytes tell the domains of %d ranks", n, ranksOf(racks))
	}
	if text := domainsOf(of(9216, func(i int) string { return strings.Repeat("x", i%100) })); text != "" {
		t.Errorf("%d bytes", len(text))
	}
}
