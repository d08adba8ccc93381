package training

import (
	"testing"
)

// TestSlowRank: the rank that waits notably less than each other one is named, and no rank where
// several do, where the shares are near each other, or where one is not known.
func TestSlowRank(t *testing.T) {
	of := func(base int, shares ...float64) NodeReport {
		return NodeReport{Report: Report{Waits: NewWaits(base, shares)}}
	}
	none := SlowRank{Index: -1}
	for name, c := range map[string]struct {
		nodes []NodeReport
		want  SlowRank
	}{
		"no node":                          {nil, none},
		"no worker":                        {[]NodeReport{of(0)}, none},
		"a rank alone":                     {[]NodeReport{of(0, 0)}, none},
		"equal ranks":                      {[]NodeReport{of(0, 0.3, 0.3), of(2, 0.3, 0.3)}, none},
		"nobody waits":                     {[]NodeReport{of(0, 0, 0), of(2, 0, 0)}, none},
		"noise":                            {[]NodeReport{of(0, 0.3, 0.27), of(2, 0.36, 0.33)}, none},
		"the first":                        {[]NodeReport{of(0, 0.1, 0.3, 0.4)}, SlowRank{0, 0, 0.1, 0.3}},
		"the last":                         {[]NodeReport{of(0, 0.5, 0.4, 0.1)}, SlowRank{0, 2, 0.1, 0.4}},
		"on another node":                  {[]NodeReport{of(0, 0.5, 0.4), of(2, 0.35, 0), of(4, 0.6)}, SlowRank{1, 3, 0, 0.35}},
		"the others' least on a later one": {[]NodeReport{of(0, 0.1, 0.5), of(2, 0.3, 0.6)}, SlowRank{0, 0, 0.1, 0.3}},
		"two nodes of one rank":            {[]NodeReport{of(0, 0.5), of(1, 0.2)}, SlowRank{1, 1, 0.2, 0.5}},
		"two slow ranks":                   {[]NodeReport{of(0, 0.5, 0.1), of(2, 0.12, 0.6)}, none},
		"... on one node":                  {[]NodeReport{of(0, 0.1, 0.12, 0.5), of(3, 0.5)}, none},
		"a node that does not know":        {[]NodeReport{of(0, 0.5, 0.1), of(2), of(2, 0.5)}, none},
	} {
		t.Run(name, func(t *testing.T) {
			if got := slowRank(c.nodes); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			if s, ok := Summarize(c.nodes); ok && s.Slow != c.want {
				t.Errorf("the summary has %+v", s.Slow)
			}
		})
	}
	if got, want := (SlowRank{1, 3, 0.034, 0.309}).Text("gpu-b"), "rank 3 (gpu-b) slows the job down: it waits for others 3 % of the time, each other rank at least 31 %"; got != want {
		t.Error(got)
	}
}
