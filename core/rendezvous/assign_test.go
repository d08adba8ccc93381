package rendezvous

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestAssignRanks(t *testing.T) {
	free := rankRequest{-1, -1, -1}
	prefer := func(r int) rankRequest { return rankRequest{r, -1, -1} }
	old := func(r int) rankRequest { return rankRequest{-1, r, -1} }
	hint := func(r int) rankRequest { return rankRequest{-1, -1, r} }
	for name, c := range map[string]struct {
		claims []rankRequest
		want   []int
	}{
		"order of arrival":                    {[]rankRequest{free, free, free}, []int{0, 1, 2}},
		"a unique preference":                 {[]rankRequest{free, prefer(0)}, []int{1, 0}},
		"a preference wins over an old rank":  {[]rankRequest{old(1), prefer(1)}, []int{0, 1}},
		"a preference that is not unique":     {[]rankRequest{prefer(1), prefer(1), free}, []int{0, 1, 2}},
		"a preference beyond the world":       {[]rankRequest{prefer(7), free}, []int{0, 1}},
		"old ranks stay":                      {[]rankRequest{old(2), old(0), free}, []int{2, 0, 1}},
		"an old rank beyond the world":        {[]rankRequest{old(3), old(0), old(1)}, []int{2, 0, 1}},
		"holes are filled by old rank first":  {[]rankRequest{free, old(5), old(4)}, []int{2, 1, 0}},
		"a hint":                              {[]rankRequest{hint(1), hint(0)}, []int{1, 0}},
		"a hint for a taken rank":             {[]rankRequest{old(0), hint(0)}, []int{0, 1}},
		"a hint that is not unique":           {[]rankRequest{hint(1), hint(1)}, []int{0, 1}},
		"the preference of a member with one": {[]rankRequest{{2, 0, -1}, old(2), free}, []int{2, 0, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := assignRanks(c.claims); !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestAssignRanksIsAPermutation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rank := rapid.IntRange(-1, 9)
		claims := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) rankRequest {
			return rankRequest{rank.Draw(t, "prefer"), -1, rank.Draw(t, "hint")}
		}), 1, 8).Draw(t, "claims")
		perm := rapid.Permutation([]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}).Draw(t, "old")
		for i := range claims {
			if rapid.Bool().Draw(t, fmt.Sprint("member ", i)) {
				claims[i].old = perm[i]
			}
		}
		got := assignRanks(claims)
		for i, c := range claims {
			unique := true
			for j, d := range claims {
				unique = unique && (i == j || d.prefer != c.prefer)
			}
			if unique && c.prefer >= 0 && c.prefer < len(claims) && got[i] != c.prefer {
				t.Fatalf("the unique preference %d was not honoured: %v of %+v", c.prefer, got, claims)
			}
		}
		sorted := slices.Sorted(slices.Values(got))
		for i, r := range sorted {
			if r != i {
				t.Fatalf("%v is no permutation", got)
			}
		}
	})
}
