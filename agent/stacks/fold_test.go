package stacks

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func at(rank int, lines ...string) Group {
	w := Group{Ranks: []int{rank}, Source: SourceFaulthandler, Threads: []Thread{{Main: true}}}
	for i, name := range lines {
		w.Threads[0].Frames = append(w.Threads[0].Frames, Frame{"/home/a/" + name + ".py", i + 1, name})
	}
	return w
}

// TestFold: seven ranks wait for the eighth; folded per node, then over two nodes.
func TestFold(t *testing.T) {
	var nodes []Fold
	for node := range 2 {
		var workers []Group
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
	for name, workers := range map[string][]Group{
		"all equal":     {at(0, "a"), at(1, "a"), at(2, "a"), at(3, "a")},
		"half and half": {at(0, "a"), at(1, "a"), at(2, "b"), at(3, "b")},
		"one of three":  {at(0, "a"), at(1, "a"), at(2, "b")},
		"no majority":   {at(0, "a"), at(1, "b"), at(2, "c"), at(3, "d"), at(4, "e")},
		"one alone":     {at(0, "a")},
		"of no workers": nil,
		"of a moment": {
			{Ranks: []int{0}, State: "running", Why: "x"}, {Ranks: []int{1}, State: "sleeping"}, {Ranks: []int{2}, State: "sleeping"}, {Ranks: []int{3}, State: "sleeping"},
		},
		"of equal states": {{Ranks: []int{0}, State: "stopped"}, {Ranks: []int{1}, State: "stopped"}},
	} {
		f := NewFold(workers)
		if got := f.Suspects(); len(got) != 0 {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestStoppedRankIsASuspect(t *testing.T) {
	for _, odd := range []Group{{Ranks: []int{0}, State: "stopped in x"}, {Ranks: []int{0}, State: "in a debugger, sleeping"}, {Ranks: []int{0}, State: "in uninterruptible sleep (D) in nfs", Why: whyLate}} {
		f := NewFold([]Group{odd, at(1, "a"), at(2, "a"), at(3, "a")})
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
	if f := NewFold([]Group{a, b}); len(f.Groups) != 1 || len(f.Groups[0].Threads) != 3 {
		t.Errorf("%+v", f)
	}
}

// TestFoldIsBounded: the fold says how much it cuts, and keeps the largest group and the smallest ones.
func TestFoldIsBounded(t *testing.T) {
	var workers []Group
	for rank := range 200 {
		w := at(rank, "common")
		if rank%2 == 0 {
			w = at(rank, fmt.Sprintf("own%d", rank))
		}
		for i := range maxFrames - 1 {
			w.Threads[0].Frames = append(w.Threads[0].Frames, Frame{strings.Repeat("p", maxFile), i, strings.Repeat("f", maxFunction)})
		}
		workers = append(workers, w)
	}
	f := NewFold(workers)
	b, err := json.Marshal(f)
	if err != nil || len(b) > maxNodeBytes {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	if n := len(f.Groups); n > maxGroups || len(f.Groups[n-1].Ranks) != 100 || f.Ranks()+len(f.RanksCut) != 200 || f.GroupsCut != 101-n || !f.FramesCut {
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
	if b, err := json.Marshal(joined); err != nil || len(b) > maxJobBytes || len(joined.Groups) > maxGroups {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

// TestKernelOutlier: ranks without a stack are told apart by what their main threads did for a second,
// if that distinguishes a few ranks from most; else nothing is said.
func TestKernelOutlier(t *testing.T) {
	const futex, nap = "sleeping in futex_wait_queue", "sleeping in hrtimer_nanosleep"
	type ranks map[string]int
	for name, c := range map[string]struct {
		states ranks
		want   int // suspects
	}{
		"one sleeps elsewhere":          {ranks{futex + unbroken: 7, nap + unbroken: 1}, 1},
		"one computes":                  {ranks{futex + unbroken: 7, "running" + unbroken: 1}, 1},
		"one waits for a disk":          {ranks{futex + unbroken: 7, "in uninterruptible sleep (D) in nfs_wait" + unbroken: 1}, 1},
		"one sleeps while all compute":  {ranks{"running" + unbroken: 7, nap + unbroken: 1}, 1},
		"one of four":                   {ranks{futex + unbroken: 3, nap + unbroken: 1}, 1},
		"two of eight, each elsewhere":  {ranks{futex + unbroken: 6, nap + unbroken: 1, "running" + unbroken: 1}, 2},
		"one was seen at a moment":      {ranks{futex + unbroken: 7, nap: 1}, 0},
		"most were seen at a moment":    {ranks{futex: 7, nap + unbroken: 1}, 0},
		"all at a moment":               {ranks{futex: 7, nap: 1}, 0},
		"all alike":                     {ranks{futex + unbroken: 8}, 0},
		"half and half":                 {ranks{futex + unbroken: 4, nap + unbroken: 4}, 0},
		"one of three":                  {ranks{futex + unbroken: 2, nap + unbroken: 1}, 0},
		"three of eight":                {ranks{futex + unbroken: 5, nap + unbroken: 3}, 0},
		"no place has most":             {ranks{futex + unbroken: 4, nap + unbroken: 2, "running" + unbroken: 2}, 0},
		"the kernel does not say where": {ranks{"sleeping": 7, "running": 1}, 0},
	} {
		var workers []Group
		for state, n := range c.states {
			for range n {
				workers = append(workers, Group{Ranks: []int{len(workers)}, Source: SourceKernel, State: state, Why: "x"})
			}
		}
		f := NewFold(workers)
		if got := f.Suspects(); len(got) != c.want {
			t.Errorf("%s: suspects %v", name, got)
		}
	}
	f := NewFold([]Group{waiting(0), waiting(1), waiting(2), {Ranks: []int{3}, State: nap + unbroken, Why: "x"}})
	if got := f.Suspects(); len(got) != 0 {
		t.Errorf("a state is compared with stacks: suspects %v", got)
	}
}

// TestBetween: what two readings of a process say about the time between them.
func TestBetween(t *testing.T) {
	sleeps := kernelState{state: 'S', channel: "futex_wait_queue", switches: 7}
	with := func(change func(*kernelState)) kernelState { k := sleeps; change(&k); return k }
	for name, c := range map[string]struct {
		before, after kernelState
		share         float64
		want          string
	}{
		"it sleeps":               {sleeps, sleeps, 0, "sleeping in futex_wait_queue" + unbroken},
		"it woke up":              {sleeps, with(func(k *kernelState) { k.switches++ }), 0, "sleeping in futex_wait_queue"},
		"elsewhere":               {sleeps, with(func(k *kernelState) { k.channel = "pipe_read" }), 0, "sleeping in pipe_read"},
		"another thread computes": {sleeps, sleeps, 0.5, "sleeping in futex_wait_queue"},
		"the kernel does not say": {with(func(k *kernelState) { k.channel = "" }), with(func(k *kernelState) { k.channel = "" }), 0, "sleeping"},
		"no switches are counted": {with(func(k *kernelState) { k.switches = 0 }), with(func(k *kernelState) { k.switches = 0 }), 0, "sleeping in futex_wait_queue"},
		"it is stopped":           {sleeps, with(func(k *kernelState) { k.state = 'T' }), 0, "stopped in futex_wait_queue"},
		"it ended":                {sleeps, kernelState{}, 0, "ended"},
		"it computes":             {kernelState{state: 'R', switches: 1}, kernelState{state: 'R', switches: 90}, 1, "running" + unbroken},
		"it runs now and then":    {kernelState{state: 'R', switches: 1}, kernelState{state: 'R', switches: 90}, 0.4, "running"},
		"it waits for a disk":     {kernelState{state: 'D', channel: "nfs_wait", switches: 3}, kernelState{state: 'D', channel: "nfs_wait", switches: 3}, 0, "in uninterruptible sleep (D) in nfs_wait" + unbroken},
		"a debugger held it":      {with(func(k *kernelState) { k.tracer = 1 }), with(func(k *kernelState) { k.tracer = 1 }), 0, "in a debugger, sleeping in futex_wait_queue"},
	} {
		if got := between(c.before, c.after, c.share); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestStackHint stands below ranks that would show a stack if they were started otherwise.
func TestStackHint(t *testing.T) {
	for state, want := range map[string]bool{"sleeping in futex_wait_queue": true, "running" + unbroken: true, "stopped": false, "ended": false} {
		f := NewFold([]Group{{Ranks: []int{0}, Source: SourceKernel, State: state, Why: "x"}})
		if got := strings.Contains(f.Text(), "--warm") && strings.Contains(f.Text(), "py-spy"); got != want {
			t.Errorf("%s: %s", state, f.Text())
		}
	}
}
