package stacks

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"rallypoint/internal/wording"
)

// RankList names ranks, runs of them by their ends: "0-2, 4".
func RankList(ranks []int) string {
	var parts []string
	for first, last := range wording.Runs(ranks) {
		switch last - first {
		case 0:
			parts = append(parts, strconv.Itoa(first))
		case 1:
			parts = append(parts, strconv.Itoa(first), strconv.Itoa(last))
		default:
			parts = append(parts, fmt.Sprintf("%d-%d", first, last))
		}
	}
	return strings.Join(parts, ", ")
}

// RanksText is "rank 3", or RankList of several.
func RanksText(ranks []int) string {
	if len(ranks) == 1 {
		return "rank " + strconv.Itoa(ranks[0])
	}
	return "ranks " + RankList(ranks)
}

// form is that of a word for so many.
func form(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// Text describes a group in lines that end in a line feed: each thread's innermost call first,
// with a mark before the calls of the user's own code.
func (g Group) Text() string {
	var b strings.Builder
	if len(g.Threads) == 0 {
		fmt.Fprintf(&b, "  %s (no stack: %s)\n", g.State, g.Why)
		return b.String()
	}
	for i, t := range g.Threads {
		if i > 0 {
			b.WriteString("  another thread\n")
		}
		for _, f := range t.Frames {
			mark := " "
			if f.user() {
				mark = ">"
			}
			fmt.Fprintf(&b, "  %s %s  %s:%d\n", mark, f.Function, f.File, f.Line)
		}
		switch {
		case t.Cut:
			b.WriteString("    ...\n")
		case len(t.Frames) == 0:
			b.WriteString("    no Python code\n")
		}
	}
	if g.Source != SourceFaulthandler {
		fmt.Fprintf(&b, "    (by %s)\n", g.Source)
	}
	return b.String()
}

// Where describes a group in one line: the user's code that runs and the call in which it waits.
func (g Group) Where() string {
	if len(g.Threads) == 0 {
		return g.State
	}
	frames := g.Threads[0].Frames
	where := func(f Frame) string { return fmt.Sprintf("%s (%s:%d)", f.Function, f.File, f.Line) }
	switch at := slices.IndexFunc(frames, Frame.user); {
	case len(frames) == 0:
		return "no Python code"
	case at > 0:
		return called(frames[:at]) + ", called by " + where(frames[at])
	}
	return where(frames[0])
}

// stackHint says how ranks get a stack that have none.
const stackHint = "to see the lines of ranks without a stack, have `rallypoint run` start the script itself, with Python 3.11 or newer (--warm or not), or install py-spy on their machines"

// needsStack reports whether a group's workers run, and would show a stack if they were started otherwise.
func (g Group) needsStack() bool {
	return len(g.Threads) == 0 && (strings.HasPrefix(g.State, stateRunning) || strings.HasPrefix(g.State, stateSleeping)) && g.Why != whyLate
}

// Text is the whole fold in lines.
func (f *Fold) Text() string {
	var b strings.Builder
	all := f.Ranks() + len(f.RanksCut)
	outlier := len(f.Suspects()) > 0
	for i, g := range f.Groups {
		if i > 0 {
			b.WriteByte('\n')
		}
		suspect := ""
		if outlier && f.suspect(g, all) {
			suspect = " (suspect)"
		}
		fmt.Fprintf(&b, "%s%s\n%s", RanksText(g.Ranks), suspect, g.Text())
	}
	if slices.ContainsFunc(f.Groups, Group.needsStack) {
		b.WriteString("\n" + stackHint + "\n")
	}
	if f.FramesCut {
		b.WriteString("\nouter calls were left out where stacks are deep\n")
	}
	if f.GroupsCut > 0 {
		fmt.Fprintf(&b, "\n%s left out, of ranks %s\n", wording.Count(f.GroupsCut, "more stack was", "more stacks were"), RankList(f.RanksCut))
	}
	return b.String()
}
