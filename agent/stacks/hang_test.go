package stacks

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// frames makes a stack, the innermost call first, of FILE:FUNCTION; a file with a slash is of a
// library.
func frames(rank int, calls ...string) Group {
	w := Group{Ranks: []int{rank}, Source: SourceFaulthandler, Threads: []Thread{{Main: true}}}
	for i, call := range calls {
		file, function, _ := strings.Cut(call, ":")
		if strings.Contains(file, "/") {
			file = "/opt/lib/python3.11/site-packages/" + file
		} else {
			file = "/home/a/" + file
		}
		w.Threads[0].Frames = append(w.Threads[0].Frames, Frame{file, 40 + i, function})
	}
	return w
}

// waiting is a rank that waits for the others.
func waiting(rank int) Group {
	return frames(rank, "torch/distributed/c10d.py:all_reduce", "train.py:step")
}

// on makes the answer of a node whose ranks are all at that step.
func on(host string, step int64, workers ...Group) *Node {
	n := &Node{Fold: NewFold(workers), Host: host, Steps: make(map[int]int64)}
	for _, w := range workers {
		if step >= 0 {
			n.Steps[w.Ranks[0]] = step
		}
	}
	return n
}

// TestUnaskedNodes: where the question did not come through, a node without an answer is not blamed.
func TestUnaskedNodes(t *testing.T) {
	i := Inquiry{Hosts: []string{"a", "b", "c"}, Unasked: true}
	i.Look(time.Minute, []*Node{{Fold: NewFold([]Group{waiting(0)}), Host: "a"}, nil, nil})
	verdict, h := i.Verdict(time.Minute, time.Minute)
	if want := "no step for 60 s: nodes 1, 2 (b, c) were not asked in time; rank 0 (a) waits in all_reduce, called in train.py:41 step"; verdict != Hangs || h.Text != want || len(h.Suspects) > 0 {
		t.Errorf("%v, suspects %v: %s", verdict, h.Suspects, h.Text)
	}
}

// TestNewHang: the sentence, and who is suspected.
func TestNewHang(t *testing.T) {
	late := on("b", 7, waiting(2), frames(3, "train.py:load"))
	late.Steps[3] = 5
	ahead := on("a", 7, waiting(0), waiting(1), waiting(2), waiting(3))
	ahead.Steps[0] = 8
	ended := &Node{Host: "b", Ended: []int{2, 3}, Steps: map[int]int64{2: 5, 3: 5}}
	hosts := []string{"a", "b\x1b[2J", "", "d", "e"}
	for name, c := range map[string]struct {
		nodes    []*Node
		want     string
		suspects []int
	}{
		"one stands out": {
			[]*Node{on("a", 7, waiting(0), waiting(1), waiting(2), waiting(4)), on("b", 7, frames(3, "train.py:load"), waiting(5), waiting(6), waiting(7))},
			"rank 3 (b) is at train.py:40 load; 7 others wait in all_reduce", []int{3},
		},
		"it waits in a library": {
			[]*Node{on("a", -1, waiting(0), waiting(1), waiting(2), frames(3, "torch/data.py:get", "train.py:load"))},
			"rank 3 (a) waits in get, called in train.py:41 load; 3 others wait in all_reduce", []int{3},
		},
		"one is behind, of two equal groups": {
			[]*Node{on("a", 7, waiting(0), waiting(1)), late},
			"rank 3 (b) is 2 steps behind and is at train.py:40 load; 3 others wait in all_reduce", []int{3},
		},
		"one is ahead":           {[]*Node{ahead}, "all 4 ranks wait in all_reduce, called in train.py:41 step", nil},
		"of two ranks":           {[]*Node{on("a", 7, waiting(0)), on("b", 7, frames(1, "train.py:load"))}, "rank 0 (a) waits in all_reduce, called in train.py:41 step; rank 1 (b) is at train.py:40 load", nil},
		"one is stopped":         {[]*Node{on("a", 7, waiting(0), waiting(1), waiting(2), Group{Ranks: []int{3}, State: "stopped in do_signal_stop", Why: "x"})}, "rank 3 (a) is stopped in do_signal_stop; 3 others wait in all_reduce", []int{3}},
		"one rank":               {[]*Node{on("a", 7, frames(0, "train.py:load"))}, "rank 0 (a) is at train.py:40 load", nil},
		"in no code":             {[]*Node{on("a", 7, Group{Ranks: []int{0}, Threads: []Thread{{Main: true}}})}, "rank 0 (a) is in no Python code", nil},
		"only a library":         {[]*Node{on("a", 7, frames(0, "torch/run.py:main"))}, "rank 0 (a) waits in run.py:40 main", nil},
		"a node is silent":       {[]*Node{on("a", 7, waiting(0), waiting(1)), nil}, "node 1 (b\ufffd[2J) does not answer; ranks 0, 1 (a) wait in all_reduce, called in train.py:41 step", nil},
		"its name is not known":  {[]*Node{on("a", 7, waiting(0)), on("b", 7, waiting(1)), nil}, "node 2 does not answer; ranks 0, 1 wait in all_reduce, called in train.py:41 step", nil},
		"many are silent":        {[]*Node{nil, nil, nil, nil, nil, on("f", 7, waiting(0))}, "nodes 0-4 do not answer; rank 0 (f) waits in all_reduce, called in train.py:41 step", nil},
		"all are stopped":        {[]*Node{on("a", 7, Group{Ranks: []int{0}, State: "stopped", Why: "x"}, Group{Ranks: []int{1}, State: "stopped", Why: "x"})}, "both ranks are stopped", nil},
		"a name for users":       {[]*Node{on("a", 7, frames(0, "torch/autograd/graph.py:_engine_run_backward", "torch/_tensor.py:backward", "train.py:step"))}, "rank 0 (a) waits in backward, called in train.py:42 step", nil},
		"none for users":         {[]*Node{on("a", 7, frames(0, "torch/x.py:_run", "train.py:step"))}, "rank 0 (a) waits in _run, called in train.py:41 step", nil},
		"nobody answers":         {[]*Node{nil, nil}, "nodes 0, 1 (a, b\ufffd[2J) do not answer; it is not known where the workers are", nil},
		"two have ended, before": {[]*Node{on("a", 7, waiting(0), waiting(1)), ended}, "ranks 2, 3 have ended; ranks 0, 1 are still running; both ranks wait in all_reduce, called in train.py:41 step", nil},
		"four places":            {[]*Node{on("a", 7, frames(0, "a.py:f"), frames(1, "b.py:f"), frames(2, "c.py:f"), frames(3, "d.py:f"))}, "rank 0 (a) is at a.py:40 f; rank 1 (a) is at b.py:40 f; rank 2 (a) is at c.py:40 f; 1 more group of ranks elsewhere", nil},
		"a node of several":      {[]*Node{on("a", 7, waiting(0), waiting(1), waiting(2), waiting(3), waiting(4), waiting(5), frames(6, "x.py:f"), frames(7, "x.py:f"))}, "ranks 6, 7 (a) are at x.py:40 f; 6 others wait in all_reduce", []int{6, 7}},
	} {
		h := newHang(65*time.Second, c.nodes, hosts, false, false)
		if want := "no step for 65 s: " + c.want; h.Text != want {
			t.Errorf("%s:\nhave %s\nwant %s", name, h.Text, want)
		}
		if fmt.Sprint(h.Suspects) != fmt.Sprint(c.suspects) || h.Restart != -1 {
			t.Errorf("%s: suspects %v, restart %d", name, h.Suspects, h.Restart)
		}
	}
}
