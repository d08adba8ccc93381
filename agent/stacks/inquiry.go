package stacks

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// Inquiry decides by the answers of all nodes whether a job that is suspected hangs
// (docs/decisions/0111). It belongs to the node that judges, and to one goroutine. The times that
// it is given are those of a training.HangDetector.
type Inquiry struct {
	// Auto says that the time between steps tells when the job hangs, since no timeout is given. From
	// half of the limit on, the workers are then watched: as long as one of them works nothing hangs.
	Auto bool
	// Idle says that the job has never reported a step, and that some of its workers have ended: it
	// hangs if the others are known to do nothing. Auto is set, too.
	Idle bool
	// Hosts name the nodes, also those that do not answer; "" of one that is not known.
	Hosts []string
	// Unasked says that the last question did not come through in time, not even to the agent of the
	// node that judges: others without an answer prove nothing by that.
	Unasked bool

	last     []*Node
	work     Activity
	silent   time.Duration // of the job, at the last look
	worked   time.Duration // how long it had been when they were last seen to work; 0: they were not
	debugged bool          // a worker was in a debugger at the last verdict
}

// Verdict is the result of an inquiry.
type Verdict int

// The verdicts.
const (
	noHang  Verdict = iota
	Excused         // no hang, and the silence until now does not count
	Hangs
)

// How an inquiry looks where the workers are, and when again.
const (
	looks       = 3               // in a row
	pauseEarly  = 4 * time.Second // before the limit
	pauseAuto   = 10 * time.Second
	pauseGiven  = time.Second      // where a timeout is given
	hangCertain = 30 * time.Minute // of standstill, after which no sign of work counts
)

// BetweenLooks is the pause between two looks in a row.
const BetweenLooks = 300 * time.Millisecond

// Due reports whether it is time to ask the nodes after that silence; see Inquiry.Auto.
func Due(auto bool, silent, limit time.Duration) bool {
	return limit > 0 && (silent >= limit || auto && silent >= limit/2)
}

// Looks is how often they are asked in a row.
func (i *Inquiry) Looks() int {
	if i.Auto {
		return looks
	}
	return 1
}

// Pause is how long a suspicion rests that was not confirmed.
func (i *Inquiry) Pause(silent, limit time.Duration) time.Duration {
	silent = i.ofAll(silent)
	switch {
	case silent < limit:
		return min(pauseEarly, limit-silent)
	case i.Auto:
		return pauseAuto
	}
	return pauseGiven
}

// ofAll is for how long no node has seen a sign of life, given the time of the one that judges.
func (i *Inquiry) ofAll(silent time.Duration) time.Duration {
	for _, n := range i.last {
		if n != nil && n.Silent != nil {
			silent = min(silent, *n.Silent)
		}
	}
	return silent
}

// Look takes the nodes' answers, nil for a node without one, when the job has made no step for
// that long.
func (i *Inquiry) Look(silent time.Duration, nodes []*Node) {
	if silent < i.silent { // it has stepped since
		i.last, i.work, i.worked = nil, nil, 0
	}
	works := i.works(nodes) // also where the stacks have told it, for the next look
	if works || mayWork(i.last, nodes) {
		i.worked = silent
	}
	i.last, i.silent = nodes, silent
}

// works reports whether a worker's process does something, wherever its stack is.
func (i *Inquiry) works(nodes []*Node) (works bool) {
	if i.work == nil {
		i.work = make(Activity)
	}
	for _, n := range nodes {
		if n != nil {
			works = i.work.Worked(n.Work) || works
		}
	}
	return works
}

// Mute reports whether a node has not answered at the last look, and not ended either.
func (i *Inquiry) Mute() bool { return slices.Contains(i.last, nil) }

// Verdict judges by the last look, after that silence; the hang is one if the job hangs.
func (i *Inquiry) Verdict(silent, limit time.Duration) (Verdict, Hang) {
	if silent = i.ofAll(silent); limit == 0 || silent < limit {
		return noHang, Hang{}
	}
	stands := i.worked == 0 || i.silent-i.worked >= limit
	if i.Auto && silent < max(limit, hangCertain) && !stands {
		return noHang, Hang{}
	}
	h := newHang(silent, i.last, i.Hosts, i.Unasked, i.Idle)
	if i.Idle && (i.Mute() || slices.ContainsFunc(h.Groups, func(g Group) bool { return !g.placed() })) {
		return noHang, Hang{}
	}
	before := i.debugged
	if i.debugged = h.debugged(); i.debugged || before { // until the debugger has let it go
		return Excused, Hang{}
	}
	return Hangs, h
}

// mayWork reports whether workers may be busy with something that takes long, judging by stacks
// of two moments: one of them has moved in between, compiles, or writes a checkpoint, or nothing
// is known of any.
func mayWork(first, second []*Node) bool {
	before := make(map[int]string)
	for _, n := range first {
		maps.Copy(before, n.places())
	}
	var folds []Fold
	for _, n := range second {
		for rank, at := range n.places() {
			if was, known := before[rank]; known && was != at {
				return true
			}
		}
		if n != nil {
			folds = append(folds, n.Fold)
		}
	}
	all := Join(folds)
	return !slices.ContainsFunc(all.Groups, Group.placed) || all.calls("/torch/distributed/checkpoint/", "/torch/_dynamo/", "/torch/_inductor/", "/triton/compiler/")
}

// places are the stacks of a node's ranks, as far as there are any.
func (n *Node) places() map[int]string {
	places := make(map[int]string)
	if n == nil {
		return places
	}
	for _, g := range n.Groups {
		for _, rank := range g.Ranks {
			if len(g.Threads) > 0 {
				places[rank] = g.key()
			}
		}
	}
	return places
}

// placed reports whether a group is known to stay where it is: it has a stack, is stopped, or sleeps.
func (g Group) placed() bool {
	return len(g.Threads) > 0 || strings.HasPrefix(g.State, stateStopped) || g.unbroken() && !strings.HasPrefix(g.State, stateRunning)
}

// calls reports whether a call of some worker is in a file of which one of these is a part.
func (f *Fold) calls(files ...string) bool {
	for _, g := range f.Groups {
		for _, t := range g.Threads {
			for _, frame := range t.Frames {
				if slices.ContainsFunc(files, func(file string) bool { return strings.Contains(frame.File, file) }) {
					return true
				}
			}
		}
	}
	return false
}

func (f *Fold) debugged() bool {
	return f.calls("/pdb.py", "/bdb.py", "/pydevd") || slices.ContainsFunc(f.Groups, func(g Group) bool { return strings.HasPrefix(g.State, stateDebugger) })
}
