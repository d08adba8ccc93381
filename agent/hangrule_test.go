package agent

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"rallypoint/agent/progress"
	"rallypoint/agent/stacks"
	"rallypoint/core/training"
	"rallypoint/internal/testkit"
)

// ruleJob is a job of two nodes with two ranks each, as the rule of hangs sees it: each node looks at
// its own steps by its own clock, and the first that suspects a hang asks all. Nothing waits.
type ruleJob struct {
	now      time.Duration
	nodes    [2]ruleNode
	inquiry  stacks.Inquiry
	asksAt   time.Duration
	looks    int
	judge    int // the node that judges; -1: none does yet
	told     []stacks.Hang
	limit    time.Duration // of the judge, when it told
	toldAt   time.Duration
	silenced bool // since the last step of the job it was told to hang
}

// ruleNode is one of its nodes.
type ruleNode struct {
	training.HangDetector
	clock   time.Time // its own, which may stand still
	looksAt time.Duration
	excused bool // its silence until now does not count
	made    int64
	cpu     [2]time.Duration
	bytes   int64
}

// phase is what the job does for some time.
type phase struct {
	lasts time.Duration
	step  time.Duration // of the job; 0: it makes none

	announced int // a rank that has said that it is busy, or -1
	where     func(rank int, at time.Duration) stacks.Group
	agents    [2]bool       // are stopped
	workers   [2]bool       // are stopped
	asleep    [2]bool       // are suspended, and CLOCK_MONOTONIC with them
	cut       bool          // nobody can ask another node: the store of the round is out of reach
	rounds    bool          // a new round begins, with new workers
	wall      time.Duration // by which the wall clocks are set at its start
	cpu       [4]float64    // the share of a core that each rank uses
	bytes     int64         // that each worker of node 0 reads or writes a second
}

func worker(rank int, calls ...string) stacks.Group {
	w := stacks.Group{Ranks: []int{rank}, Source: stacks.SourceFaulthandler, Threads: []stacks.Thread{{Main: true}}}
	for _, call := range calls {
		file, function, _ := strings.Cut(call, ":")
		if strings.Contains(file, "/") {
			file = "/opt/lib/python3.11/site-packages/" + file
		} else {
			file = "/home/a/" + file
		}
		w.Threads[0].Frames = append(w.Threads[0].Frames, stacks.Frame{File: file, Line: 7, Function: function})
	}
	return w
}

func reduces(rank int) stacks.Group {
	return worker(rank, "torch/distributed/distributed_c10d.py:all_reduce", "train.py:step")
}

// one is a place of one rank while all others wait for it.
func one(rank int, place func(at time.Duration) stacks.Group) func(int, time.Duration) stacks.Group {
	return func(r int, at time.Duration) stacks.Group {
		if r != rank {
			return reduces(r)
		}
		w := place(at)
		w.Ranks = []int{r}
		return w
	}
}

// at is a place that does not change.
func at(calls ...string) func(time.Duration) stacks.Group {
	return func(time.Duration) stacks.Group { return worker(0, calls...) }
}

// moves is another line every so often.
func moves(every time.Duration) func(time.Duration) stacks.Group {
	return func(now time.Duration) stacks.Group {
		w := worker(0, "torch/nn/linear.py:forward", "train.py:evaluate")
		w.Threads[0].Frames[0].Line = int(now / every)
		return w
	}
}

func stopped(rank int, _ time.Duration) stacks.Group {
	return stacks.Group{Ranks: []int{rank}, Source: stacks.SourceKernel, State: "stopped in do_signal_stop", Why: "it is stopped"}
}

const ruleTick = 100 * time.Millisecond

// play plays one phase.
func (j *ruleJob) play(p phase) {
	if p.rounds {
		for i := range j.nodes {
			n := &j.nodes[i]
			n.Begin(n.clock)
		}
		j.inquiry, j.judge, j.looks = stacks.Inquiry{Auto: j.inquiry.Auto}, -1, 0
	}
	for i := range j.nodes {
		j.nodes[i].clock = testkit.ShiftWall(j.nodes[i].clock, p.wall)
	}
	var stepped time.Duration
	for passed := time.Duration(0); passed < p.lasts; passed += ruleTick {
		j.now += ruleTick
		stepped += ruleTick
		steps := p.step > 0 && stepped >= p.step && p.asleep == [2]bool{} && p.workers == [2]bool{}
		if steps {
			stepped = 0
		}
		for i := range j.nodes {
			n := &j.nodes[i]
			if steps {
				n.made++
			}
			if p.asleep[i] {
				continue
			}
			n.clock = n.clock.Add(ruleTick)
			for r := range 2 {
				n.cpu[r] += time.Duration(p.cpu[2*i+r] * float64(ruleTick))
			}
			if i == 0 {
				n.bytes += p.bytes * int64(ruleTick) / int64(time.Second)
			}
			if p.agents[i] || j.now < n.looksAt {
				continue
			}
			n.Look(n.clock, n.made, p.announced/2 == i && p.announced >= 0 || n.excused)
			if n.made > 0 {
				j.silenced = false
			}
			n.made, n.excused, n.looksAt = 0, false, j.now+min(cmp.Or(n.LookAgain(), progress.SampleInterval), progress.SampleInterval)
		}
		j.inquire(p)
	}
}

// inquire is what the judge does at this moment.
func (j *ruleJob) inquire(p phase) {
	if j.judge < 0 || p.cut {
		for i := range j.nodes {
			if !p.agents[i] && !p.asleep[i] && stacks.Due(j.inquiry.Auto, j.nodes[i].Silent(), j.nodes[i].Limit()) {
				j.judge = i
				break
			}
		}
	}
	if j.judge < 0 || j.silenced || j.now < j.asksAt || p.agents[j.judge] || p.asleep[j.judge] {
		return
	}
	n := &j.nodes[j.judge]
	if j.looks == 0 && !stacks.Due(j.inquiry.Auto, n.Silent(), n.Limit()) {
		return
	}
	j.inquiry.Hosts, j.inquiry.Unasked = []string{"a", "b"}, p.cut
	j.inquiry.Look(n.Silent(), j.answers(p))
	if j.looks++; j.looks < j.inquiry.Looks() {
		j.asksAt = j.now + stacks.BetweenLooks
		return
	}
	j.looks, j.asksAt = 0, j.now+j.inquiry.Pause(n.Silent(), n.Limit())
	switch verdict, hang := j.inquiry.Verdict(n.Silent(), n.Limit()); verdict {
	case stacks.Excused:
		n.excused = true
	case stacks.Hangs:
		j.told, j.toldAt, j.limit, j.silenced = append(j.told, hang), j.now, n.Limit(), true
	}
}

// answers are what the nodes answer at this moment.
func (j *ruleJob) answers(p phase) []*stacks.Node {
	answers := make([]*stacks.Node, len(j.nodes))
	for i := range j.nodes {
		if p.agents[i] || p.asleep[i] || p.cut && i != j.judge {
			continue
		}
		n, silent := &j.nodes[i], j.nodes[i].Silent()
		var workers []stacks.Group
		work := make(map[int]stacks.Work)
		for r := range 2 {
			rank := 2*i + r
			where := p.where
			if p.workers[i] {
				where = stopped
			}
			w := reduces(rank)
			if where != nil {
				w = where(rank, j.now)
			}
			workers = append(workers, w)
			work[rank] = stacks.Work{At: j.now, CPU: n.cpu[r], Bytes: n.bytes}
		}
		answers[i] = &stacks.Node{Fold: stacks.NewFold(workers), Host: string(rune('a' + i)), Silent: &silent, Work: work}
	}
	return answers
}

// newRuleJob is such a job, at its start. The nodes do not look at the same moments.
func newRuleJob(timeout time.Duration) *ruleJob {
	j := &ruleJob{judge: -1, inquiry: stacks.Inquiry{Auto: timeout == 0}}
	for i := range j.nodes {
		n := &j.nodes[i]
		n.Timeout, n.clock = timeout, testkit.NewClock().Now()
		n.Begin(n.clock)
		n.looksAt = time.Duration(i) * 300 * time.Millisecond
	}
	return j
}

const (
	minute = time.Minute
	second = time.Second
)

// Phases that cases share. trains makes steps of half a second, in which the ranks work.
var (
	trains = phase{lasts: minute, step: 500 * time.Millisecond, announced: -1, cpu: [4]float64{1, 1, 1, 1}}
	waits  = phase{lasts: 10 * minute, announced: -1} // all in one collective
)

// during is such a phase that lasts for another time.
func (p phase) during(lasts time.Duration) phase {
	p.lasts = lasts
	return p
}

// TestNeverAFalseAlarm: none of this is ever called a hang, by the limits that follow the job's steps
// and, where the timeout is longer than the phase as its documentation demands, by a timeout.
func TestNeverAFalseAlarm(t *testing.T) {
	t.Parallel()
	evaluates := func(rank int, every time.Duration) phase {
		return phase{lasts: 20 * minute, announced: -1, where: one(rank, moves(every)), cpu: [4]float64{}}
	}
	saves := at("torch/distributed/checkpoint/filesystem.py:write_data", "train.py:save")
	for name, c := range map[string]struct {
		timeout time.Duration
		story   []phase
	}{
		"the wall clock is set again and again":                 {story: slices.Concat([]phase{trains}, slices.Repeat([]phase{{lasts: second, wall: 2 * second, announced: -1}}, 50), []phase{trains})},
		"the first step":                                        {story: []phase{waits.during(25 * minute), trains}},
		"the first step, with a timeout":                        {timeout: 20 * second, story: []phase{waits.during(25 * minute), trains}},
		"the first step after a restart":                        {story: []phase{trains, {lasts: ruleTick, rounds: true, announced: -1}, waits.during(9 * minute), trains}},
		"the first step after a restart, with a timeout":        {timeout: 20 * second, story: []phase{trains, {lasts: ruleTick, rounds: true, announced: -1}, waits.during(9 * minute), trains}},
		"compile in the second step":                            {story: []phase{trains.during(500 * time.Millisecond), waits.during(25 * minute), trains}},
		"compile in the second, a timeout":                      {timeout: 20 * second, story: []phase{trains.during(500 * time.Millisecond), waits.during(9 * minute), trains}},
		"compile in a later step":                               {story: []phase{trains, {lasts: 25 * minute, announced: -1, where: one(1, at("torch/_inductor/codecache.py:wait", "train.py:step"))}, trains}},
		"evaluation on all ranks":                               {story: []phase{trains, {lasts: 20 * minute, announced: -1, where: func(rank int, now time.Duration) stacks.Group { return one(rank, moves(second))(rank, now) }}, trains}},
		"evaluation on one rank":                                {story: []phase{trains, evaluates(3, 2*second), trains}},
		"evaluation with slow batches":                          {story: []phase{trains, evaluates(3, 25*second), trains}},
		"evaluation in one call":                                {story: []phase{trains, {lasts: 20 * minute, announced: -1, where: one(2, at("train.py:evaluate")), cpu: [4]float64{2: 1}}, trains}},
		"evaluation in one call, on a machine with much to do":  {story: []phase{trains, {lasts: 20 * minute, announced: -1, where: one(2, at("train.py:evaluate")), cpu: [4]float64{2: 0.07}}, trains}},
		"evaluation in one call, on all ranks":                  {story: []phase{trains, {lasts: 20 * minute, announced: -1, where: func(rank int, _ time.Duration) stacks.Group { return worker(rank, "train.py:evaluate") }, cpu: [4]float64{1, 1, 1, 1}}, trains}},
		"evaluation of the length of before":                    {story: []phase{trains, evaluates(3, 2*second), trains, waits.during(20 * minute), trains}},
		"evaluation, with a timeout":                            {timeout: 21 * minute, story: []phase{trains, evaluates(3, 2*second), trains}},
		"an announced checkpoint":                               {story: []phase{trains, {lasts: 2 * minute, announced: 2}, trains}},
		"an announced checkpoint, a timeout":                    {timeout: 5 * second, story: []phase{trains, {lasts: 2 * minute, announced: 2}, trains}},
		"an announced checkpoint, a timeout, on the other node": {timeout: 5 * second, story: []phase{trains, {lasts: 2 * minute, announced: 0}, trains}},
		"DCP saves":                                            {story: []phase{trains, {lasts: 2 * minute, announced: -1, where: one(0, saves)}, trains}},
		"DCP saves for very long":                              {story: []phase{trains, {lasts: 25 * minute, announced: -1, where: one(0, saves)}, trains}},
		"a checkpoint is written":                              {story: []phase{trains, {lasts: 20 * minute, announced: -1, where: one(0, at("torch/serialization.py:_save", "train.py:save")), bytes: 1 << 20}, trains}},
		"a worker in pdb":                                      {story: []phase{trains, {lasts: time.Hour, announced: -1, where: one(3, at("python/pdb.py:interaction", "train.py:step"))}, trains}},
		"a worker in pdb, with a timeout":                      {timeout: 20 * second, story: []phase{trains, {lasts: time.Hour, announced: -1, where: one(3, at("python/pdb.py:interaction", "train.py:step"))}, trains}},
		"a suspended laptop":                                   {story: []phase{trains, waits.suspended(true, true), trains}},
		"a suspended laptop, within a long step":               {timeout: 20 * second, story: []phase{trains, waits.during(19 * second), waits.suspended(true, true), trains}},
		"a stopped job":                                        {story: []phase{trains, waits.stopped(true, true, true), trains}},
		"a stopped job, within a long step":                    {timeout: 20 * second, story: []phase{trains, waits.during(19 * second), waits.stopped(true, true, true), trains}},
		"a stopped job, several times":                         {timeout: 20 * second, story: slices.Repeat([]phase{trains.during(second), waits.during(15 * second), waits.during(minute).stopped(true, true, true)}, 20)},
		"stopped agents":                                       {story: []phase{trains, {lasts: 10 * minute, step: second, announced: -1, agents: [2]bool{true, true}}, trains}},
		"one stopped agent":                                    {story: []phase{trains, {lasts: 10 * minute, step: second, announced: -1, agents: [2]bool{true, false}}, trains}},
		"a stopped control plane":                              {story: []phase{trains, {lasts: 10 * minute, step: second, announced: -1, cut: true}, trains}},
		"a stopped control plane, and an announced checkpoint": {story: []phase{trains, {lasts: 50 * second, announced: 2, cut: true}, trains}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newRuleJob(c.timeout)
			for _, p := range c.story {
				j.play(p)
			}
			for _, hang := range j.told {
				t.Errorf("a limit of %v: %s", j.limit, hang.Text)
			}
		})
	}
}

// suspended is the phase on machines of which some are suspended.
func (p phase) suspended(first, second bool) phase {
	p.asleep = [2]bool{first, second}
	return p
}

// stopped is the phase with the workers and perhaps the agents of some nodes stopped.
func (p phase) stopped(first, second, agents bool) phase {
	p.workers = [2]bool{first, second}
	if agents {
		p.agents = p.workers
	}
	return p
}

// TestHangsAreNamed: a hang is reported as one, after the limit and with those that the others
// wait for.
func TestHangsAreNamed(t *testing.T) {
	t.Parallel()
	loads := at("train.py:load")
	for name, c := range map[string]struct {
		timeout     time.Duration
		story       []phase
		least, most time.Duration // of silence, as it is told
		want        string
	}{
		"one rank waits for its data":       {0, []phase{trains, {lasts: 2 * minute, announced: -1, where: one(3, loads)}}, minute, 61 * second, "rank 3 (b) is at train.py:7 load; 3 others wait in all_reduce"},
		"with a timeout":                    {20 * second, []phase{trains, {lasts: minute, announced: -1, where: one(3, loads)}}, 20 * second, 21 * second, "rank 3 (b) is at train.py:7 load; 3 others wait in all_reduce"},
		"with a short timeout":              {2 * second, []phase{trains, {lasts: minute, announced: -1, where: one(3, loads)}}, 2 * second, 2200 * time.Millisecond, "rank 3 (b) is at train.py:7 load; 3 others wait in all_reduce"},
		"after an evaluation":               {0, []phase{trains, {lasts: 20 * minute, announced: -1, where: one(3, moves(second))}, {lasts: 2 * minute, announced: -1, where: one(3, loads)}}, 21 * minute, 21*minute + 11*second, "rank 3 (b) is at train.py:7 load; 3 others wait in all_reduce"},
		"one that never ends":               {0, []phase{trains, {lasts: 31 * minute, announced: -1, where: one(3, moves(second))}}, 30 * minute, 30*minute + 11*second, "rank 3 (b) waits in forward, called in train.py:7 evaluate; 3 others wait in all_reduce"},
		"a busy loop":                       {0, []phase{trains, {lasts: 31 * minute, announced: -1, where: one(3, loads), cpu: [4]float64{3: 1}}}, 30 * minute, 30*minute + 11*second, "rank 3 (b) is at train.py:7 load; 3 others wait in all_reduce"},
		"within an announced stretch":       {0, []phase{trains, {lasts: 10 * minute, announced: 3, where: one(3, loads)}, {lasts: 2 * minute, announced: -1, where: one(3, loads)}}, minute, 61 * second, "rank 3 (b) is at train.py:7 load; 3 others wait in all_reduce"},
		"no first step after a restart":     {0, []phase{trains, {lasts: ruleTick, rounds: true, announced: -1}, waits.during(11 * minute)}, 10 * minute, 10*minute + 11*second, "all 4 ranks wait in all_reduce, called in train.py:7 step"},
		"stopped workers of one node":       {0, []phase{trains, waits.during(2*minute).stopped(false, true, false)}, minute, 61 * second, "ranks 0, 1 (a) wait in all_reduce, called in train.py:7 step; ranks 2, 3 (b) are stopped in do_signal_stop"},
		"stopped workers":                   {0, []phase{trains, waits.during(2*minute).stopped(true, true, false)}, minute, 61 * second, "all 4 ranks are stopped in do_signal_stop"},
		"stopped workers, with a timeout":   {20 * second, []phase{trains, waits.during(minute).stopped(true, true, false)}, 20 * second, 21 * second, "all 4 ranks are stopped in do_signal_stop"},
		"one of two machines suspended":     {0, []phase{trains, waits.during(2*minute).suspended(false, true)}, minute, 61 * second, "node 1 (b) does not answer; ranks 0, 1 (a) wait in all_reduce, called in train.py:7 step"},
		"one of two nodes stopped":          {20 * second, []phase{trains, waits.during(minute).stopped(true, false, true)}, 20 * second, 21 * second, "node 0 (a) does not answer; ranks 2, 3 (b) wait in all_reduce, called in train.py:7 step"},
		"a stopped control plane beside":    {0, []phase{trains, {lasts: 2 * minute, announced: -1, cut: true, where: one(0, loads)}}, minute, 61 * second, "node 1 (b) was not asked in time; rank 0 (a) is at train.py:7 load; rank 1 (a) waits in all_reduce, called in train.py:7 step"},
		"after a suspended machine":         {0, []phase{trains, waits.during(30 * second), waits.suspended(true, true), waits.during(minute)}, minute, 61 * second, "all 4 ranks wait in all_reduce, called in train.py:7 step"},
		"just before a debugger has let go": {20 * second, []phase{trains, {lasts: time.Hour + 13*second, announced: -1, where: one(3, at("python/pdb.py:interaction", "train.py:step"))}, {lasts: minute, announced: -1, where: one(3, loads)}}, 20 * second, 21 * second, "rank 3 (b) is at train.py:7 load; 3 others wait in all_reduce"},
		"once a debugger has let go":        {20 * second, []phase{trains, {lasts: time.Hour, announced: -1, where: one(3, at("python/pdb.py:interaction", "train.py:step"))}, {lasts: minute, announced: -1, where: one(3, loads)}}, 20 * second, 21 * second, "rank 3 (b) is at train.py:7 load; 3 others wait in all_reduce"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newRuleJob(c.timeout)
			for _, p := range c.story {
				j.play(p)
			}
			last := j.now - c.story[len(c.story)-1].lasts
			if len(j.told) != 1 {
				t.Fatalf("told %d times: %v", len(j.told), j.told)
			}
			hang := j.told[0]
			if _, text, _ := strings.Cut(hang.Text, ": "); text != c.want {
				t.Errorf("have %s\nwant %s", text, c.want)
			}
			if hang.Silent < c.least || hang.Silent > c.most {
				t.Errorf("told after %v, want %v to %v", hang.Silent, c.least, c.most)
			}
			if passed := j.toldAt - last; strings.Contains(name, "let go") && passed < c.least {
				t.Errorf("told %v after that", passed)
			}
			j.play(trains)
			if len(j.told) != 1 {
				t.Error("told again when it stepped")
			}
		})
	}
}
