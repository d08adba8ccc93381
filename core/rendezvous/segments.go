package rendezvous

import (
	"cmp"
	"slices"
)

type rankRequest struct {
	prefer int // explicit preference; -1: none
	old    int // rank in the last round; -1: none
	hint   int // scheduler's hint; -1: none
}

// candidate is a node that joins, as far as its rank depends on it.
type candidate struct {
	rankRequest
	domain string
	member bool // of the last round, and not lost to it
}

type seating struct {
	segment    int
	candidates []candidate
	of         []*group // by candidate: its domain
	was        []int    // by candidate: its segment of the last round; -1: it has none
	groups     []*group // all domains, by their first candidates
	owner      []*group // by number of a segment: the domain that it is given to
	number     []int    // by number of a segment of the last round: its number in this one; -1: it has none
}

type group struct {
	nodes int   // how many there are
	whole int   // segments that they make and that have no number yet
	taken int   // segments of the last round that have one
	seen  int   // nodes up to the one that is looked at
	added int   // segments that the domain gets beside those of the last round
	open  int   // ranks of its segments that no member keeps
	holes []int // of these, which are not given
	hint  int   // smallest of its nodes
}

// assign gives the ranks of the next round; spares have -1.
func (f *forming) assign(nodes []*node) []int {
	candidates := make([]candidate, len(nodes))
	for i, n := range nodes {
		c := candidate{rankRequest{prefer: n.join.NodeRank, old: -1, hint: n.join.RankHint}, n.domain, f.round.participantOf(n) != nil}
		if s := f.round.byNode[n.id]; s != nil {
			c.old = s.rank
		}
		candidates[i] = c
	}
	segment := f.policy.segment()
	return assignSegments(candidates, f.round.domainsOfSegments(segment), segment, f.seats(f.joined.usable))
}

// domainsOfSegments are the domains of the round's segments of so many nodes. A member of an
// earlier control plane that has not returned may have none.
func (r *round) domainsOfSegments(segment int) []string {
	domains := make([]string, len(r.participants)/segment)
	for i := range domains {
		for _, s := range r.participants[i*segment : (i+1)*segment] {
			domains[i] = cmp.Or(domains[i], s.domain)
		}
	}
	return domains
}

// assignSegments gives the ranks of a round of at most so many nodes; spares have -1. The
// result is aligned with the candidates, which come in the order of their priority: members
// of the last round by rank, then the others by arrival. domains are those of the segments of
// the last round.
//
// The round has as many segments as the candidates make. A segment stays in its domain, and
// keeps its number if the round has that, as long as its domain has nodes for it; where a
// domain has too few for all its segments, those with most members stay. The numbers that are
// free then go to segments of the last round with higher numbers, and last to domains that
// have nodes left over. The members of a segment that stays keep their ranks; guarantee 10
// decides the order of the others in the segments of their domain.
func assignSegments(candidates []candidate, domains []string, segment, most int) []int {
	s := seating{segment: max(1, segment), candidates: candidates, of: make([]*group, len(candidates)), was: make([]int, len(candidates))}
	byDomain := map[string]*group{}
	segments := 0
	for i, c := range candidates {
		g := byDomain[c.domain]
		if g == nil {
			g = &group{hint: MaxNodes}
			byDomain[c.domain] = g
			s.groups = append(s.groups, g)
		}
		s.of[i] = g
		g.nodes++
		if g.nodes%s.segment == 0 {
			g.whole++
			segments++
		}
		g.hint = min(g.hint, orLast(c.hint))
		s.was[i] = -1
		if b := c.old / s.segment; c.old >= 0 && b < len(domains) && domains[b] == c.domain {
			s.was[i] = b
		}
	}
	last := make([]*group, len(domains))
	for b, domain := range domains {
		last[b] = byDomain[domain]
	}
	s.owner = make([]*group, min(segments, most/s.segment))
	s.keep(last)
	s.add()
	return s.ranks(s.choose())
}

// keep gives numbers to the segments of the last round that remain; last are their domains.
func (s *seating) keep(last []*group) {
	members := make([]int, len(last))
	for i, b := range s.was {
		if b >= 0 && s.candidates[i].member {
			members[b]++
		}
	}
	s.number = make([]int, len(last))
	order := make([]int, len(last))
	for b := range order {
		order[b], s.number[b] = b, -1
	}
	class := func(b int) (class int) { // members come before newcomers, then segments that need not move
		if members[b] == 0 {
			class = 2
		}
		if b >= len(s.owner) {
			class++
		}
		return class
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(class(a), class(b)), cmp.Compare(members[b], members[a]), cmp.Compare(a, b))
	})
	var moved []int
	kept := 0
	for _, b := range order {
		g := last[b]
		if g == nil || g.whole == 0 || kept == len(s.owner) {
			continue
		}
		kept++
		g.whole--
		g.taken++
		g.open += s.segment - members[b]
		if b < len(s.owner) {
			s.owner[b], s.number[b] = g, b
		} else {
			moved = append(moved, b)
		}
	}
	slices.Sort(moved)
	free := s.free()
	for i, b := range moved {
		s.owner[free[i]], s.number[b] = last[b], free[i]
	}
}

func (s *seating) free() (numbers []int) {
	for number, g := range s.owner {
		if g == nil {
			numbers = append(numbers, number)
		}
	}
	return numbers
}

// add gives the numbers that are free to domains that have nodes left over: to those whose
// segments were whole first. Each gets its numbers side by side, in the order of the domains'
// smallest hints.
func (s *seating) add() {
	free := s.free()
	rest := len(free)
	for _, g := range s.of {
		g.seen++
		if g.seen%s.segment == 0 && g.seen/s.segment > g.taken && rest > 0 {
			g.added++
			rest--
		}
	}
	growing := slices.Clone(s.groups)
	slices.SortStableFunc(growing, func(a, b *group) int { return cmp.Compare(a.hint, b.hint) })
	for _, g := range growing {
		for _, number := range free[:g.added] {
			s.owner[number] = g
		}
		free = free[g.added:]
		g.open += g.added * s.segment
	}
}

// choose returns the candidates that get a rank, in their order: the members of segments that
// remain, and the first of each domain's others.
func (s *seating) choose() []int {
	chosen := make([]int, 0, len(s.owner)*s.segment)
	for i, g := range s.of {
		switch b := s.was[i]; {
		case s.candidates[i].member && b >= 0 && s.number[b] >= 0:
		case g.open > 0:
			g.open--
		default:
			continue
		}
		chosen = append(chosen, i)
	}
	return chosen
}

func (s *seating) ranks(chosen []int) []int {
	ranks := make([]int, len(s.candidates))
	for i := range ranks {
		ranks[i] = -1
	}
	taken := make([]bool, len(chosen))
	inDomain := func(i, rank int) bool { return s.owner[rank/s.segment] == s.of[i] }
	give := func(pick func(candidate) int, fits func(i, rank int) bool) {
		claimed := func(i int) int {
			if r := pick(s.candidates[i]); ranks[i] < 0 && r >= 0 && r < len(taken) && fits(i, r) {
				return r
			}
			return -1
		}
		count := make([]int, len(taken))
		for _, i := range chosen {
			if r := claimed(i); r >= 0 {
				count[r]++
			}
		}
		for _, i := range chosen {
			if r := claimed(i); r >= 0 && count[r] == 1 && !taken[r] {
				ranks[i], taken[r] = r, true
			}
		}
	}
	if s.segment == 1 {
		give(func(c candidate) int { return c.prefer }, func(int, int) bool { return true })
		give(func(c candidate) int { return c.old }, inDomain)
		give(func(c candidate) int { return c.hint }, inDomain)
	} else {
		give(s.oldRank, inDomain)
	}

	rest := slices.DeleteFunc(chosen, func(i int) bool { return ranks[i] >= 0 })
	slices.SortStableFunc(rest, func(i, j int) int {
		a, b := s.candidates[i], s.candidates[j]
		order := cmp.Compare(orLast(a.old), orLast(b.old))
		if s.segment > 1 { // a hint is no rank, but an order
			order = cmp.Or(order, cmp.Compare(orLast(a.hint), orLast(b.hint)))
		}
		return order
	})
	for rank, taken := range taken {
		if !taken {
			g := s.owner[rank/s.segment]
			g.holes = append(g.holes, rank)
		}
	}
	rest = slices.DeleteFunc(rest, func(i int) bool {
		g := s.of[i]
		if len(g.holes) == 0 {
			return false // a preference has taken a rank of its domain
		}
		ranks[i], g.holes = g.holes[0], g.holes[1:]
		taken[ranks[i]] = true
		return true
	})
	next := 0
	for _, i := range rest {
		for taken[next] {
			next++
		}
		ranks[i], taken[next] = next, true
	}
	return ranks
}

// oldRank is the rank of the last round at the number that its segment has now; -1 if it has
// none.
func (s *seating) oldRank(c candidate) int {
	if b := c.old / s.segment; c.old >= 0 && b < len(s.number) && s.number[b] >= 0 {
		return s.number[b]*s.segment + c.old%s.segment
	}
	return -1
}

// orLast puts an item without a number after all that have one.
func orLast(number int) int {
	if number < 0 {
		return MaxNodes
	}
	return number
}
