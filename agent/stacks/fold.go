package stacks

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// The sources of what is known of a worker.
const (
	SourceFaulthandler = "faulthandler"
	SourcePySpy        = "py-spy"
	SourceKernel       = "kernel"
)

const (
	maxGroups    = 64
	maxNodeBytes = 16 << 10 // of a node's fold, as JSON
	maxJobBytes  = 1 << 20  // of a job's
)

// Group is ranks of which the same is known, or one rank alone.
type Group struct {
	Ranks   []int    `json:"ranks"` // growing
	Source  string   `json:"source"`
	Threads []Thread `json:"threads"` // that matter, the main one first; none: State tells what is known
	State   string   `json:"state"`   // the kernel's, in words, where there are no threads
	Why     string   `json:"why"`     // there are no threads
}

// Fold is the stacks of a node or of a job: equal ones are one group.
type Fold struct {
	Groups    []Group `json:"groups"` // the smallest first
	GroupsCut int     `json:"groups_cut"`
	RanksCut  []int   `json:"ranks_cut"` // of the groups that were left out
	FramesCut bool    `json:"frames_cut"`
}

// NewFold folds what is known of each worker of a node.
func NewFold(workers []Group) Fold {
	workers = slices.Clone(workers)
	for i := range workers {
		workers[i].Threads = sorted(workers[i].Threads)
	}
	f := Fold{Groups: merge(workers)}
	f.shrink(maxNodeBytes)
	return f
}

// Join folds the folds of nodes.
func Join(nodes []Fold) Fold {
	var f Fold
	for _, n := range nodes {
		f.Groups = append(f.Groups, n.Groups...)
		f.GroupsCut += n.GroupsCut
		f.RanksCut = append(f.RanksCut, n.RanksCut...)
		f.FramesCut = f.FramesCut || n.FramesCut
	}
	f.Groups = merge(f.Groups)
	f.shrink(maxJobBytes)
	return f
}

// sorted brings the threads after the main one into one order, each stack once.
func sorted(threads []Thread) []Thread {
	list := slices.Clone(threads)
	slices.SortStableFunc(list, func(a, b Thread) int {
		if a.Main != b.Main {
			if a.Main {
				return -1
			}
			return 1
		}
		return strings.Compare(key(a.Frames), key(b.Frames))
	})
	return slices.CompactFunc(list, func(a, b Thread) bool { return a.Main == b.Main && slices.Equal(a.Frames, b.Frames) })
}

// key is equal for equal stacks.
func key(frames []Frame) string {
	var b strings.Builder
	for _, f := range frames {
		b.WriteString(f.File)
		b.WriteByte(0)
		b.WriteString(strconv.Itoa(f.Line))
		b.WriteByte(0)
		b.WriteString(f.Function)
		b.WriteByte(0)
	}
	return b.String()
}

// key is equal for groups of which the same is known.
func (g Group) key() string {
	parts := []string{g.Source, g.State, g.Why}
	for _, t := range g.Threads {
		parts = append(parts, strconv.FormatBool(t.Main)+key(t.Frames))
	}
	return strings.Join(parts, "\x01")
}

// merge makes one group of equal ones, and puts the smallest first; of equally large ones that
// of the lowest rank.
func merge(groups []Group) []Group {
	list := []Group{}
	at := make(map[string]int)
	for _, g := range groups {
		k := g.key()
		if i, ok := at[k]; ok {
			list[i].Ranks = append(list[i].Ranks, g.Ranks...)
			continue
		}
		at[k] = len(list)
		g.Ranks = slices.Clone(g.Ranks)
		list = append(list, g)
	}
	for i := range list {
		slices.Sort(list[i].Ranks)
		list[i].Ranks = slices.Compact(list[i].Ranks)
	}
	slices.SortStableFunc(list, func(a, b Group) int {
		return cmp.Or(cmp.Compare(len(a.Ranks), len(b.Ranks)), slices.Compare(a.Ranks, b.Ranks))
	})
	return list
}

// shrink drops what exceeds the limits: outer frames first, then groups. It keeps the largest
// group, which shows where all others wait, and the smallest ones.
func (f *Fold) shrink(limit int) {
	f.drop(maxGroups)
	for frames := maxFrames / 2; f.size() > limit && frames >= 4; frames /= 2 {
		f.cutFrames(frames)
		f.Groups = merge(f.Groups)
	}
	for f.size() > limit && len(f.Groups) > 1 {
		f.drop(len(f.Groups) / 2)
	}
	if f.size() > limit {
		f.RanksCut = nil
	}
	if f.RanksCut == nil {
		f.RanksCut = []int{}
	}
	slices.Sort(f.RanksCut)
}

// drop leaves this many groups, at least one.
func (f *Fold) drop(most int) {
	n := len(f.Groups)
	if n <= most {
		return
	}
	last := f.Groups[n-1]
	for _, g := range f.Groups[max(most-1, 0) : n-1] {
		f.GroupsCut++
		f.RanksCut = append(f.RanksCut, g.Ranks...)
	}
	f.Groups = append(f.Groups[:max(most-1, 0)], last)
}

// cutFrames leaves this many frames of each thread, the innermost ones.
func (f *Fold) cutFrames(most int) {
	for i := range f.Groups {
		threads := slices.Clone(f.Groups[i].Threads)
		for j, t := range threads {
			if len(t.Frames) > most {
				threads[j] = Thread{Main: t.Main, Frames: t.Frames[:most], Cut: true}
				f.FramesCut = true
			}
		}
		f.Groups[i].Threads = threads
	}
}

func (f *Fold) size() int {
	b, err := json.Marshal(f)
	if err != nil {
		return 0
	}
	return len(b)
}

// Ranks counts the ranks of which something is known.
func (f *Fold) Ranks() int {
	n := 0
	for _, g := range f.Groups {
		n += len(g.Ranks)
	}
	return n
}

// Suspects are the ranks in groups of at most a quarter of the ranks, if most ranks are in one
// group. There are none if no rank stands out.
func (f *Fold) Suspects() []int {
	suspects := []int{}
	all := f.Ranks() + len(f.RanksCut)
	if len(f.Groups) < 2 || 2*len(f.Groups[len(f.Groups)-1].Ranks) <= all {
		return suspects
	}
	for _, g := range f.Groups {
		if f.suspect(g, all) {
			suspects = append(suspects, g.Ranks...)
		}
	}
	slices.Sort(suspects)
	return suspects
}

func (f *Fold) suspect(g Group, all int) bool {
	return 4*len(g.Ranks) <= all && (g.tells() || g.unbroken() && f.Groups[len(f.Groups)-1].unbroken())
}

// unbroken reports whether a group has no stack, and is known to have done one thing for a while.
// That distinguishes it from others of which the same is known.
func (g Group) unbroken() bool { return len(g.Threads) == 0 && strings.HasSuffix(g.State, unbroken) }

// tells reports whether a group's state distinguishes it from others. Whether a worker without a
// stack runs or sleeps at one moment does not.
func (g Group) tells() bool {
	return len(g.Threads) > 0 || g.Why == whyLate || strings.HasPrefix(g.State, stateStopped) || strings.HasPrefix(g.State, stateDebugger)
}
