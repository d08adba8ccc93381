package stacks

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"rallypoint/internal/testkit"
)

// TestMayWork: a worker whose stacks move, compile or write a checkpoint may work; one that stands does not.
func TestMayWork(t *testing.T) {
	stand := []*Node{on("a", 7, waiting(0), frames(1, "train.py:load")), nil}
	dark := []*Node{on("a", 7, Group{Ranks: []int{0}, State: "running", Why: "x"})}
	stopped := []*Node{on("a", 7, Group{Ranks: []int{0}, State: "stopped in do_signal_stop", Why: "it is stopped"})}
	for name, c := range map[string]struct {
		first, second []*Node
		want          bool
	}{
		"all stand":         {stand, stand, false},
		"one moves":         {stand, []*Node{on("a", 7, waiting(0), frames(1, "train.py:evaluate")), nil}, true},
		"one has no stack":  {stand, []*Node{on("a", 7, waiting(0), Group{Ranks: []int{1}, State: "running", Why: "x"})}, false},
		"none has a stack":  {dark, dark, true},
		"all are stopped":   {stopped, stopped, false},
		"nobody answers":    {[]*Node{nil}, []*Node{nil}, true},
		"DCP saves":         {stand, []*Node{on("a", 7, waiting(0)), on("b", 7, frames(5, "torch/distributed/c10d.py:gather", "torch/distributed/checkpoint/utils.py:reduce", "train.py:save"))}, true},
		"it compiles":       {stand, []*Node{on("a", 7, frames(5, "torch/_inductor/codecache.py:wait", "train.py:step"))}, true},
		"of the user's own": {stand, []*Node{on("a", 7, waiting(0), frames(1, "train.py:load"))}, false},
	} {
		if got := mayWork(c.first, c.second); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestDebugged: whoever is in pdb has all the time there is.
func TestDebugged(t *testing.T) {
	for name, c := range map[string]struct {
		fold Fold
		want bool
	}{
		"nobody": {NewFold([]Group{waiting(0)}), false},
		"pdb":    {NewFold([]Group{waiting(0), {Ranks: []int{1}, Threads: []Thread{{Main: true, Frames: []Frame{{"/usr/lib/python3.11/pdb.py", 1, "interaction"}}}}}}), true},
		"gdb":    {NewFold([]Group{waiting(0), {Ranks: []int{1}, State: "in a debugger, stopped", Why: "x"}}), true},
	} {
		if got := c.fold.debugged(); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestStillness: whoever was seen to work has as much time again, until the job steps.
func TestStillness(t *testing.T) {
	at := func(function string) []*Node { return []*Node{on("a", 7, waiting(0), frames(1, "train.py:"+function))} }
	const s = time.Second
	q := Inquiry{Auto: true}
	for i, c := range []struct {
		silent time.Duration
		where  string
		hangs  bool
	}{
		{30 * s, "load", false}, {31 * s, "load", false}, {34 * s, "load", false}, {60 * s, "load", true},
		{35 * s, "forward", false}, {36 * s, "backward", false}, {60 * s, "backward", false}, {95 * s, "backward", false}, {96 * s, "backward", true},
		{97 * s, "forward", false}, {156 * s, "forward", false}, {157 * s, "forward", true},
		{1 * s, "load", false},
	} {
		q.Look(c.silent, at(c.where))
		if verdict, _ := q.Verdict(c.silent, 60*s); (verdict == Hangs) != c.hangs {
			t.Errorf("%d: after %v at %s: %v", i, c.silent, c.where, verdict)
		}
	}
}

// TestWorkSince: which process has worked between two readings.
func TestWorkSince(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	before := Work{At: time.Hour, CPU: time.Minute, Bytes: 1 << 40}
	for name, c := range map[string]struct {
		span, cpu    time.Duration
		bytes        int64
		worked, told bool
	}{
		"at rest":                        {4 * s, 20 * ms, 4 << 10, false, true}, // the most that a hang has shown
		"a little of a core":             {4 * s, 120 * ms, 0, true, true},
		"it writes":                      {4 * s, 20 * ms, 256 << 10, true, true},
		"too short a time":               {300 * ms, 300 * ms, 1 << 30, false, false},
		"another process of that number": {4 * s, -time.Minute, -1 << 40, false, true},
	} {
		worked, told := Work{before.At + c.span, before.CPU + c.cpu, before.Bytes + c.bytes}.since(before)
		if worked != c.worked || told != c.told {
			t.Errorf("%s: %v, %v", name, worked, told)
		}
	}
}

// TestWorks reads this process's CPU time; of a process that is gone nothing is known.
func TestWorks(t *testing.T) {
	own := Target{Rank: 3, Pid: os.Getpid()}
	before := Works([]Target{own})
	testkit.Check(t, os.WriteFile(filepath.Join(t.TempDir(), "x"), make([]byte, 1<<20), 0o600))
	testkit.Eventually(t, "CPU time is counted", func() bool {
		return slices.Equal(slices.Collect(maps.Keys(before)), []int{3}) && readCPU(own.Pid) > readCPU(1<<30)
	})
	after := Works([]Target{own})[3]
	if wrote := after.Bytes - before[3].Bytes; wrote < 1<<20 || after.At <= before[3].At {
		t.Errorf("%d bytes, from %v to %v", wrote, before[3].At, after.At)
	}
	if gone := Works([]Target{{Rank: 1, Pid: 1 << 30}})[1]; gone.CPU != 0 || gone.Bytes != 0 {
		t.Errorf("%+v", gone)
	}
}

// TestIdle: a job without steps, of which a rank has ended, hangs if each of the others is known to
// stand; else nobody knows.
func TestIdle(t *testing.T) {
	kernel := func(state string) Group { return Group{Ranks: []int{0}, Source: SourceKernel, State: state, Why: "x"} }
	over := &Node{Host: "b", Ended: []int{1}}
	for name, c := range map[string]struct {
		nodes []*Node
		want  string
	}{
		"it sleeps":         {[]*Node{on("a", -1, kernel("sleeping in pipe_read"+unbroken)), over}, "no sign of work for 60 s: rank 1 has ended; rank 0 is still running; rank 0 (a) is sleeping in pipe_read without a break"},
		"it has a stack":    {[]*Node{on("a", -1, frames(0, "train.py:load")), over}, "no sign of work for 60 s: rank 1 has ended; rank 0 is still running; rank 0 (a) is at train.py:40 load"},
		"it computes":       {[]*Node{on("a", -1, kernel("running"+unbroken)), over}, ""},
		"it may do a thing": {[]*Node{on("a", -1, kernel("sleeping in pipe_read")), over}, ""},
		"a node is silent":  {[]*Node{on("a", -1, kernel("sleeping in pipe_read"+unbroken)), nil}, ""},
	} {
		q := Inquiry{Auto: true, Idle: true}
		for range q.Looks() {
			q.Look(time.Minute, c.nodes)
		}
		verdict, h := q.Verdict(time.Minute, time.Minute)
		if h.Text != c.want || (verdict == Hangs) != (c.want != "") {
			t.Errorf("%s: %v, %q", name, verdict, h.Text)
		}
	}
}
