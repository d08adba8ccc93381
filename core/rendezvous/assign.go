package rendezvous

import "slices"

// rankRequest is what decides one node's rank. The requests of a round are given in
// order of arrival.
type rankRequest struct {
	prefer int // explicit preference; -1: none
	old    int // rank in the last round; -1: none
	hint   int // scheduler's hint; -1: none
}

// rankRequests turns the chosen nodes into rank requests; it keeps their order.
func (r *round) rankRequests(chosen []*node) []rankRequest {
	claims := make([]rankRequest, len(chosen))
	for i, n := range chosen {
		c := rankRequest{prefer: n.join.NodeRank, old: -1, hint: n.join.RankHint}
		if s := r.byNode[n.id]; s != nil {
			c.old = s.rank
		}
		claims[i] = c
	}
	return claims
}

// assignRanks gives the ranks 0..n-1, each once (guarantee 10): a unique explicit
// preference; then the old rank if it is free; then a unique hint if it is free;
// the rest fill the holes by old rank, then by arrival. The result is aligned with
// the requests and depends on nothing else.
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
