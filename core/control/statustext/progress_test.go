package statustext

import (
	"math"
	"testing"

	"rallypoint/core/control"
)

func TestProgressText(t *testing.T) {
	behind := func(node string, steps int64, for_ float64) *control.BehindStatus {
		return &control.BehindStatus{Rank: 3, Node: node, Steps: steps, ForS: for_}
	}
	for want, p := range map[string]*control.ProgressStatus{
		"":       nil,
		"step 0": {},
		"step 41 200 · 3.1 s a step · node gpu17 two steps behind for 40 s": {Step: 41200, SecondsPerStep: 3.1, ChangeAgeS: 40, Behind: behind("gpu17", 2, 40)},
		"step 999 · 50 ms a step":                                                       {Step: 999, SecondsPerStep: 0.05, ChangeAgeS: 5},
		"step 1 000 · 120 µs a step · no step for 5.1 s":                                {Step: 1000, SecondsPerStep: 0.00012, ChangeAgeS: 5.1},
		"step 1 000 000 · 1.5 ms a step · node x one step behind for 2 m 05 s":          {Step: 1e6, SecondsPerStep: 0.0015, Behind: behind("x", 1, 125)},
		"step 7 · 3 m 20 s a step":                                                      {Step: 7, SecondsPerStep: 200, ChangeAgeS: 599},
		"step 7 · no step for 10 m 00 s":                                                {Step: 7, ChangeAgeS: 600},
		"step 59 · no step for 24 s; all nodes are at step 59":                          {Step: 59, SmallestStep: 59, ChangeAgeS: 24, Nodes: 3},
		"step 59 · no step for 25 s":                                                    {Step: 59, SmallestStep: 58, ChangeAgeS: 25, Nodes: 3},
		"step 9 223 372 036 854 775 807 · node of rank 3 12 345 steps behind for 6.0 s": {Step: math.MaxInt64, Behind: behind("", 12345, 6)},
		"step 8 · 12 s a step · node �[0mred nine steps behind for 9.0 s":               {Step: 8, SecondsPerStep: 12.3, Behind: behind("\x1b[0mred", 9, 9)},
	} {
		if got := progressText(p, nil); got != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
}
