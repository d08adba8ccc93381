package rendezvous

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// segmentRound is one assignment: what it was made of, and the ranks.
type segmentRound struct {
	candidates    []candidate
	domains       []string // of the last round's segments
	segment, most int
	ranks         []int
}

func (r *segmentRound) assign() {
	r.ranks = assignSegments(r.candidates, r.domains, r.segment, r.most)
}

// world is the number of ranks that were given.
func (r *segmentRound) world() (world int) {
	for _, rank := range r.ranks {
		if rank >= 0 {
			world++
		}
	}
	return world
}

// owners are the domains of the segments. It fails unless each rank is given once and each
// segment has one domain.
func (r *segmentRound) owners(t *rapid.T) []string {
	world := r.world()
	nodes := make([]int, world)
	for i := range nodes {
		nodes[i] = -1
	}
	for i, rank := range r.ranks {
		switch {
		case rank < 0:
		case rank >= world:
			t.Fatalf("rank %d of %d: %v", rank, world, r.ranks)
		case nodes[rank] >= 0:
			t.Fatalf("rank %d is given twice: %v", rank, r.ranks)
		default:
			nodes[rank] = i
		}
	}
	if world%r.segment != 0 {
		t.Fatalf("%d ranks in segments of %d", world, r.segment)
	}
	owners := make([]string, world/r.segment)
	for rank, i := range nodes {
		domain := r.candidates[i].domain
		if rank%r.segment == 0 {
			owners[rank/r.segment] = domain
		} else if owner := owners[rank/r.segment]; owner != domain {
			t.Fatalf("segment %d is split: rank %d is in %q, others in %q", rank/r.segment, rank, domain, owner)
		}
	}
	return owners
}

// check holds the assignment against the rule, by counting alone.
func (r *segmentRound) check(t *rapid.T) []string {
	owners := r.owners(t)
	whole, segments := map[string]int{}, 0
	members := make([]int, len(r.domains))
	for _, c := range r.candidates {
		if whole[c.domain]++; whole[c.domain]%r.segment == 0 {
			segments++
		}
		if b := c.old / r.segment; c.member && c.old >= 0 && b < len(r.domains) && r.domains[b] == c.domain {
			members[b]++
		}
	}
	if want := min(segments, r.most/r.segment); len(owners) != want {
		t.Fatalf("%d segments, %d are possible: %+v", len(owners), want, r)
	}
	for i, c := range r.candidates {
		b := c.old / r.segment
		if c.prefer < 0 && c.member && c.old >= 0 && b < len(owners) && b < len(members) && members[b] == r.segment && r.ranks[i] != c.old && !r.preferred(c.old) {
			t.Fatalf("segment %d is whole, but its node of rank %d has rank %d now: %+v", b, c.old, r.ranks[i], r)
		}
	}
	if len(owners) >= len(r.domains) { // every segment may stay
		had, stay := map[string]int{}, map[string]int{}
		for b, domain := range r.domains {
			had[domain]++
			if owners[b] == domain {
				stay[domain]++
			}
		}
		for domain, n := range had {
			if want := min(n, whole[domain]/r.segment); r.segment > 1 && stay[domain] < want {
				t.Fatalf("domain %q has nodes for %d of its %d segments, and keeps %d: %+v", domain, want, n, stay[domain], r)
			}
		}
	}
	return owners
}

// preferred reports whether a node asks for the rank.
func (r *segmentRound) preferred(rank int) bool {
	return slices.ContainsFunc(r.candidates, func(c candidate) bool { return c.prefer == rank })
}

// next is the round after this one, without a share of its nodes and with newcomers.
func (r *segmentRound) next(t *rapid.T, owners []string) segmentRound {
	seated := make([]candidate, r.world())
	var others []candidate
	for i, c := range r.candidates {
		c.old, c.member = r.ranks[i], true
		if c.old < 0 {
			c.member = false
			others = append(others, c)
		} else {
			seated[c.old] = c
		}
	}
	n := segmentRound{domains: owners, segment: r.segment, most: r.most}
	loss := rapid.IntRange(0, 4).Draw(t, "loss")
	for _, c := range seated {
		switch rapid.IntRange(0, 9+20*(4-loss)).Draw(t, "fate") {
		case 0:
			continue // lost
		case 1: // lost, and back
			c.member = false
			others = append(others, c)
			continue
		case 2: // lost, and back in another domain
			c.member, c.domain = false, drawDomain(t)
			others = append(others, c)
			continue
		}
		n.candidates = append(n.candidates, c)
	}
	others = slices.DeleteFunc(others, func(candidate) bool { return rapid.IntRange(0, 9).Draw(t, "spare lost") == 0 })
	n.candidates = append(append(n.candidates, others...), drawNewcomers(t, 6)...)
	if rapid.IntRange(0, 3).Draw(t, "resize") == 0 {
		n.most = r.segment * rapid.IntRange(0, 8).Draw(t, "most")
	}
	return n
}

func drawDomain(t *rapid.T) string {
	return rapid.SampledFrom([]string{"r1", "r2", "r3", "r4"}).Draw(t, "domain")
}

func drawNewcomers(t *rapid.T, most int) []candidate {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) candidate {
		hint := rapid.IntRange(-1, 12).Draw(t, "hint")
		return candidate{rankRequest{prefer: -1, old: -1, hint: hint}, drawDomain(t), false}
	}), 0, most).Draw(t, "newcomers")
}

// TestSegments follows random rounds, in which nodes are lost, come back, come as another
// domain's and are scaled.
func TestSegments(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		segment := rapid.IntRange(1, 4).Draw(t, "segment")
		r := segmentRound{segment: segment, most: segment * rapid.IntRange(0, 8).Draw(t, "most"), candidates: drawNewcomers(t, 40)}
		for range rapid.IntRange(1, 5).Draw(t, "rounds") {
			r.assign()
			r = r.next(t, r.check(t))
		}
		r.assign()
		r.check(t)
	})
}

// TestSegmentsOfAnything assigns what no round leads to: old ranks beyond the last round,
// preferences, domains of which no node is left.
func TestSegmentsOfAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := segmentRound{
			segment: rapid.IntRange(1, 4).Draw(t, "segment"),
			most:    rapid.IntRange(0, 20).Draw(t, "most"),
			domains: rapid.SliceOfN(rapid.SampledFrom([]string{"", "r1", "r2", "r9"}), 0, 6).Draw(t, "domains"),
		}
		old := rapid.Permutation([]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19}).Draw(t, "old")
		rank := rapid.IntRange(-1, 20)
		for i := range rapid.IntRange(0, 20).Draw(t, "nodes") {
			c := candidate{rankRequest{rank.Draw(t, "prefer"), -1, rank.Draw(t, "hint")}, drawDomain(t), rapid.Bool().Draw(t, "member")}
			if c.member || rapid.Bool().Draw(t, "has an old rank") {
				c.old = old[i]
			}
			r.candidates = append(r.candidates, c)
		}
		r.assign()
		if r.segment == 1 {
			checkPermutation(t, r.ranks)
			return
		}
		r.check(t)
	})
}

// checkPermutation fails unless each rank is given once.
func checkPermutation(t *rapid.T, ranks []int) {
	given := slices.Sorted(slices.Values(ranks))
	given = slices.DeleteFunc(given, func(rank int) bool { return rank < 0 })
	for i, rank := range given {
		if i != rank {
			t.Fatalf("%v gives not each rank once", ranks)
		}
	}
}

// TestSparesOfTheDomain loses nodes of a whole round whose domains have enough spares.
func TestSparesOfTheDomain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		segment := rapid.IntRange(1, 4).Draw(t, "segment")
		r := segmentRound{segment: segment, most: segment * rapid.IntRange(1, 8).Draw(t, "most"), candidates: drawNewcomers(t, 40)}
		r.assign()
		n := segmentRound{domains: r.owners(t), segment: segment, most: r.most}
		lost := map[int]string{} // by rank: its domain
		seated := make([]candidate, r.world())
		var spares []candidate
		for i, c := range r.candidates {
			if c.old = r.ranks[i]; c.old >= 0 {
				c.member = true
				seated[c.old] = c
			}
		}
		for _, c := range seated {
			if rapid.IntRange(0, 3).Draw(t, "lost") > 0 {
				n.candidates = append(n.candidates, c)
				continue
			}
			lost[c.old] = c.domain
			spares = append(spares, candidate{rankRequest{-1, -1, rapid.IntRange(-1, 12).Draw(t, "hint")}, c.domain, false})
		}
		n.most = r.world()
		n.candidates = append(n.candidates, rapid.Permutation(spares).Draw(t, "spares")...)
		n.candidates = append(n.candidates, drawNewcomers(t, 6)...)
		n.assign()
		if n.world() != r.world() {
			t.Fatalf("%d of %d ranks", n.world(), r.world())
		}
		for i, c := range n.candidates {
			switch domain, free := lost[n.ranks[i]]; {
			case c.member && n.ranks[i] != c.old:
				t.Fatalf("the node of rank %d has rank %d now: %+v", c.old, n.ranks[i], n)
			case !c.member && n.ranks[i] >= 0 && (!free || domain != c.domain):
				t.Fatalf("a spare of %q has rank %d, which %q has lost: %+v", c.domain, n.ranks[i], domain, n)
			}
		}
	})
}

// assignRanks is the rule of guarantee 10 alone, for nodes that all get a rank, 0..n-1, each
// once. A unique explicit preference comes first, then the old rank if it is free, then a unique
// hint if it is free. The rest fill the holes by old rank, then by arrival. The result is aligned
// with the requests and depends on nothing else.
func assignRanks(claims []rankRequest) []int {
	n := len(claims)
	ranks := make([]int, n)
	taken := make([]bool, n)
	for i := range ranks {
		ranks[i] = -1
	}
	give := func(pick func(rankRequest) int) {
		count := make([]int, n)
		for i, c := range claims {
			if r := pick(c); ranks[i] < 0 && r >= 0 && r < n {
				count[r]++
			}
		}
		for i, c := range claims {
			if r := pick(c); ranks[i] < 0 && r >= 0 && r < n && count[r] == 1 && !taken[r] {
				ranks[i], taken[r] = r, true
			}
		}
	}
	give(func(c rankRequest) int { return c.prefer })
	give(func(c rankRequest) int { return c.old })
	give(func(c rankRequest) int { return c.hint })

	rest := make([]int, 0, n)
	for i := range claims {
		if ranks[i] < 0 {
			rest = append(rest, i)
		}
	}
	slices.SortStableFunc(rest, func(a, b int) int { return fillOrder(claims[a]) - fillOrder(claims[b]) })
	next := 0
	for _, i := range rest {
		for taken[next] {
			next++
		}
		ranks[i], taken[next] = next, true
	}
	return ranks
}

// fillOrder puts nodes with an old rank first, in its order.
func fillOrder(c rankRequest) int {
	if c.old < 0 {
		return MaxNodes
	}
	return c.old
}

// TestSegmentsOfOneNode compares segments of one node, in one domain, with the rule for ranks
// alone.
func TestSegmentsOfOneNode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		domain := rapid.SampledFrom([]string{"", "r1"}).Draw(t, "domain")
		world := rapid.IntRange(0, 12).Draw(t, "world")
		domains := slices.Repeat([]string{domain}, world)
		rank := rapid.IntRange(-1, 14)
		draw := func(old int, member bool) candidate {
			return candidate{rankRequest{rank.Draw(t, "prefer"), old, rank.Draw(t, "hint")}, domain, member}
		}
		var candidates, others []candidate
		for old := range world {
			switch rapid.IntRange(0, 3).Draw(t, "fate") {
			case 0: // lost
			case 1: // lost, and back
				others = append(others, draw(old, false))
			default:
				candidates = append(candidates, draw(old, true))
			}
		}
		for range rapid.IntRange(0, 6).Draw(t, "newcomers") {
			others = append(others, draw(-1, false))
		}
		if len(others) > 0 {
			candidates = append(candidates, rapid.Permutation(others).Draw(t, "others")...)
		}
		most := rapid.IntRange(0, 20).Draw(t, "most")
		got := assignSegments(candidates, domains, 1, most)
		var claims []rankRequest
		for _, c := range candidates[:min(most, len(candidates))] {
			claims = append(claims, c.rankRequest)
		}
		want := slices.Concat(assignRanks(claims), slices.Repeat([]int{-1}, len(candidates)-len(claims)))
		if !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v of %+v", got, want, candidates)
		}
	})
}

// TestMembersComeFirst has members and newcomers of several domains ask for few ranks, each a
// segment.
func TestMembersComeFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := segmentRound{segment: 1, most: rapid.IntRange(1, 12).Draw(t, "most"), candidates: drawNewcomers(t, 20)}
		r.assign()
		r = r.next(t, r.owners(t))
		r.assign()
		members, seated := 0, 0
		for i, c := range r.candidates {
			if c.member {
				members++
				if r.ranks[i] >= 0 {
					seated++
				}
			}
		}
		if want := min(members, r.world()); seated < want {
			t.Fatalf("%d of %d members have a rank, %d could: %+v", seated, members, want, r)
		}
	})
}

func TestSegmentCases(t *testing.T) {
	of := func(domain string, olds ...int) (list []candidate) {
		for _, old := range olds {
			list = append(list, candidate{rankRequest{-1, old, -1}, domain, old >= 0})
		}
		return list
	}
	hinted := func(domain string, hints ...int) (list []candidate) {
		for _, hint := range hints {
			list = append(list, candidate{rankRequest{-1, -1, hint}, domain, false})
		}
		return list
	}
	join := slices.Concat[[]candidate]
	for name, c := range map[string]struct {
		candidates    []candidate
		domains       []string
		segment, most int
		want          []int
	}{
		"domains in the order of arrival": {join(of("b", -1, -1), of("a", -1, -1)), nil, 2, 4, []int{0, 1, 2, 3}},
		"domains that arrive in turn":     {join(of("b", -1), of("a", -1), of("b", -1), of("a", -1)), nil, 2, 4, []int{0, 2, 1, 3}},
		"domains by their smallest hint":  {join(hinted("b", 3, 2), hinted("a", 1, 0)), nil, 2, 4, []int{3, 2, 1, 0}},
		"the domain that is whole first":  {join(of("a", -1), of("b", -1, -1), of("a", -1)), nil, 2, 2, []int{-1, 0, 1, -1}},
		"a domain that is too small":      {join(of("a", -1), of("b", -1, -1)), nil, 2, 4, []int{-1, 0, 1}},
		"a spare of the domain":           {join(of("a", 0), of("b", 2, 3), of("b", -1), of("a", -1)), []string{"a", "b"}, 2, 4, []int{0, 2, 3, -1, 1}},
		"a spare of another domain":       {join(of("a", 0), of("b", 2, 3), of("b", -1)), []string{"a", "b"}, 2, 4, []int{-1, 0, 1, -1}},
		"another domain's whole segment":  {join(of("a", 0), of("b", 2, 3), of("c", -1, -1)), []string{"a", "b"}, 2, 4, []int{-1, 2, 3, 0, 1}},
		"the segment with most members": {
			join(of("a", 0), of("a", 2, 3), of("b", 4, 5)), []string{"a", "a", "b"}, 2, 6, []int{-1, 2, 3, 0, 1},
		},
		"two segments of a domain that has nodes for both": {
			join(of("a", 0), of("a", 2, 3), of("a", -1)), []string{"a", "a"}, 2, 4, []int{0, 2, 3, 1},
		},
		"a segment all of whose nodes are lost": {
			join(of("b", 2, 3), of("c", -1, -1), of("a", -1, -1)), []string{"a", "b"}, 2, 4, []int{2, 3, -1, -1, 0, 1},
		},
		"two racks that come back at once": {
			join(of("c", 4, 5), of("b", -1), of("a", -1), of("b", -1), of("a", -1)), []string{"a", "b", "c"}, 2, 6, []int{4, 5, 2, 0, 3, 1},
		},
		"a node that has moved": {join(of("b", 0), of("a", 1), of("a", -1)), []string{"a"}, 2, 2, []int{-1, 1, 0}},
		"a segment that moves keeps its order, whatever hints there are": {
			join(of("b", 2, 3), of("a", 4, 5), hinted("a", 0), hinted("b", 0)), []string{"c", "b", "a"}, 2, 4, []int{2, 3, 0, 1, -1, -1},
		},
		"a preference for a rank of another domain": {
			[]candidate{{rankRequest{-1, 0, -1}, "a", true}, {rankRequest{0, 1, -1}, "b", true}}, []string{"a", "b"}, 1, 2, []int{1, 0},
		},
		"no places": {of("a", -1, -1), nil, 2, 0, []int{-1, -1}},
		"nobody":    {nil, []string{"a"}, 2, 4, []int{}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := assignSegments(c.candidates, c.domains, c.segment, c.most); !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// TestHeadcount compares the counts, which are kept up to date, with those of all nodes.
func TestHeadcount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := headcount{segment: rapid.IntRange(1, 4).Draw(t, "segment")}
		var nodes []string
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				nodes = append(nodes, drawDomain(t))
				h.add(nodes[len(nodes)-1], 1)
			},
			"remove": func(t *rapid.T) {
				if len(nodes) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(nodes)-1).Draw(t, "node")
				h.add(nodes[i], -1)
				nodes = slices.Delete(nodes, i, i+1)
			},
			"": func(t *rapid.T) {
				all := segmentRound{segment: h.segment, most: len(nodes)}
				for _, domain := range nodes {
					all.candidates = append(all.candidates, candidate{rankRequest{-1, -1, -1}, domain, false})
				}
				all.assign()
				if h.nodes != len(nodes) || h.usable != all.world() {
					t.Fatalf("%+v of %v", h, nodes)
				}
			},
		})
		size := h.segment * rapid.IntRange(0, 8).Draw(t, "size")
		lack := h.lack(size)
		if lack == 0 != (h.usable >= size) {
			t.Fatalf("%d are lacking for %d of %+v", lack, size, h)
		}
		for range lack {
			if h.usable >= size {
				t.Fatalf("%d are lacking for %d, but fewer will do: %+v", lack, size, h)
			}
			nearest, _, _ := strings.Cut(cmp.Or(h.partial(), "another"), " ")
			h.add(nearest, 1)
		}
		if h.usable < size {
			t.Fatalf("%d were said to be lacking for %d: %+v", lack, size, h)
		}
	})
}

// BenchmarkAssignSegments is the ranks of 9 216 nodes in domains of 72, of a first round and of
// one that has lost a node of each domain, which has a spare.
func BenchmarkAssignSegments(b *testing.B) {
	const nodes, domain = 9216, 72
	for _, segment := range []int{1, 8, 18, 72} {
		var first, regroup []candidate
		for i := range nodes {
			first = append(first, candidate{rankRequest{-1, -1, -1}, fmt.Sprint("rack", i%(nodes/domain)), false})
		}
		ranks := assignSegments(first, nil, segment, nodes)
		domains := make([]string, nodes/segment)
		seated := make([]candidate, nodes)
		for i, c := range first {
			c.old, c.member = ranks[i], true
			domains[c.old/segment] = c.domain
			seated[c.old] = c
		}
		var spares []candidate
		for _, c := range seated {
			if c.old%domain == 5 {
				c.old, c.member = -1, false
				spares = append(spares, c)
			} else {
				regroup = append(regroup, c)
			}
		}
		regroup = append(regroup, spares...)
		b.Run(fmt.Sprintf("first/%d", segment), func(b *testing.B) {
			for b.Loop() {
				assignSegments(first, nil, segment, nodes)
			}
		})
		b.Run(fmt.Sprintf("regroup/%d", segment), func(b *testing.B) {
			for b.Loop() {
				assignSegments(regroup, domains, segment, nodes)
			}
		})
	}
}
