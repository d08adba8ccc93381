package stacks

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func at(rank int, lines ...string) Worker {
	w := Worker{Rank: rank, Source: SourceFaulthandler, Threads: []Thread{{Main: true}}}
	for i, name := range lines {
		w.Threads[0].Frames = append(w.Threads[0].Frames, Frame{"/home/a/" + name + ".py", i + 1, name})
	}
	return w
}

// TestFold: seven ranks wait for the eighth; folded per node, then over two nodes.
func TestFold(t *testing.T) {
	var nodes []Fold
	for node := range 2 {
		var workers []Worker
		for rank := 4 * node; rank < 4*node+4; rank++ {
			if rank == 3 {
				workers = append(workers, at(rank, "data_wait", "main"))
			} else {
				workers = append(workers, at(rank, "all_reduce", "main"))
			}
		}
		nodes = append(nodes, NewFold(workers))
	}
	f := Join(nodes)
	if len(f.Groups) != 2 || RankList(f.Groups[0].Ranks) != "3" || RankList(f.Groups[1].Ranks) != "0-2, 4-7" {
		t.Fatalf("%+v", f)
	}
	if got := f.Suspects(); !slices.Equal(got, []int{3}) {
		t.Errorf("suspects: %v", got)
	}
	want := "rank 3 (suspect)\n  > data_wait  /home/a/data_wait.py:1\n  > main  /home/a/main.py:2\n\n" +
		"ranks 0-2, 4-7\n  > all_reduce  /home/a/all_reduce.py:1\n  > main  /home/a/main.py:2\n"
	if got := f.Text(); got != want {
		t.Errorf("%s", got)
	}
}

func TestNoOutlier(t *testing.T) {
	for name, workers := range map[string][]Worker{
		"all equal":     {at(0, "a"), at(1, "a"), at(2, "a"), at(3, "a")},
		"half and half": {at(0, "a"), at(1, "a"), at(2, "b"), at(3, "b")},
		"one of three":  {at(0, "a"), at(1, "a"), at(2, "b")},
		"no majority":   {at(0, "a"), at(1, "b"), at(2, "c"), at(3, "d"), at(4, "e")},
		"one alone":     {at(0, "a")},
		"of no workers": nil,
		"of a moment": {
			{Rank: 0, State: "running", Why: "x"}, {Rank: 1, State: "sleeping"}, {Rank: 2, State: "sleeping"}, {Rank: 3, State: "sleeping"},
		},
		"of equal states": {{Rank: 0, State: "stopped"}, {Rank: 1, State: "stopped"}},
	} {
		f := NewFold(workers)
		if got := f.Suspects(); len(got) != 0 {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestStoppedRankIsASuspect(t *testing.T) {
	for _, odd := range []Worker{{Rank: 0, State: "stopped in x"}, {Rank: 0, State: "in a debugger, sleeping"}, {Rank: 0, State: "in uninterruptible sleep (D) in nfs", Why: whyLate}} {
		f := NewFold([]Worker{odd, at(1, "a"), at(2, "a"), at(3, "a")})
		if got := f.Suspects(); !slices.Equal(got, []int{0}) {
			t.Errorf("%+v: %v", odd, got)
		}
	}
}

// TestThreadsInAnyOrder: threads that a library starts in another order are the same.
func TestThreadsInAnyOrder(t *testing.T) {
	a, b := at(0, "main"), at(1, "main")
	x, y := at(0, "x").Threads[0], at(0, "y").Threads[0]
	x.Main, y.Main = false, false
	a.Threads = append(a.Threads, x, y, y)
	b.Threads = append(b.Threads, y, x)
	if f := NewFold([]Worker{a, b}); len(f.Groups) != 1 || len(f.Groups[0].Threads) != 3 {
		t.Errorf("%+v", f)
	}
}

// TestFoldIsBounded: the fold says how much it cuts, and keeps the largest group and the smallest ones.
func TestFoldIsBounded(t *testing.T) {
	var workers []Worker
	for rank := range 200 {
		w := at(rank, "common")
		if rank%2 == 0 {
			w = at(rank, fmt.Sprintf("own%d", rank))
		}
		for i := range MaxFrames - 1 {
			w.Threads[0].Frames = append(w.Threads[0].Frames, Frame{strings.Repeat("p", maxFile), i, strings.Repeat("f", maxFunction)})
		}
		workers = append(workers, w)
	}
	f := NewFold(workers)
	b, err := json.Marshal(f)
	if err != nil || len(b) > MaxNodeBytes {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	if n := len(f.Groups); n > MaxGroups || len(f.Groups[n-1].Ranks) != 100 || f.Ranks()+len(f.RanksCut) != 200 || f.GroupsCut != 101-n || !f.FramesCut {
		t.Errorf("%d groups, %d cut, %d ranks and %d", n, f.GroupsCut, f.Ranks(), len(f.RanksCut))
	}
	if text := f.Text(); !strings.Contains(text, "left out, of ranks ") || !strings.Contains(text, "outer calls were left out") {
		t.Errorf("%s", text[max(0, len(text)-300):])
	}
	nodes := make([]Fold, 100)
	for i := range nodes {
		nodes[i] = f
	}
	joined := Join(nodes)
	if b, err := json.Marshal(joined); err != nil || len(b) > MaxJobBytes || len(joined.Groups) > MaxGroups {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}
