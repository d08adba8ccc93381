package statustext

import (
	"fmt"
	"strconv"
	"strings"

	"rallypoint/core/control"
)

// A job whose steps take longer than this is shown as standing still.
const (
	leastStandS = 5
	standSteps  = 3
)

// progressText is how far a run's workers are; "" if none has said so.
func progressText(p *control.ProgressStatus, called Names) string {
	if p == nil {
		return ""
	}
	step := "step "
	if p.Counted {
		step = "optimizer step "
	}
	parts := []string{step + Grouped(p.Step)}
	if p.SecondsPerStep > 0 {
		parts = append(parts, stepTime(p.SecondsPerStep)+" a step")
	}
	switch b := p.Behind; {
	case b != nil:
		name := NodeText(called.Of(b.Node), MaxNode)
		switch {
		case name == "":
			name = fmt.Sprintf("node of rank %d", b.Rank)
		case !strings.HasPrefix(name, "node"): // as those that are drawn do
			name = "node " + name
		}
		parts = append(parts, fmt.Sprintf("%s %s behind for %s", name, countedSteps(b.Steps), ago(b.ForS)))
	case p.ChangeAgeS > max(leastStandS, standSteps*p.SecondsPerStep):
		stands := "no step for " + ago(p.ChangeAgeS)
		if p.Nodes > 1 && p.SmallestStep == p.Step { // in lockstep no node can be named: all have reported the same
			stands += "; all nodes are at " + step + Grouped(p.Step)
		}
		parts = append(parts, stands)
	}
	return strings.Join(parts, " · ")
}

// Grouped formats a number with its digits in groups of three.
func Grouped(n int64) string {
	text := strconv.FormatInt(n, 10)
	var b strings.Builder
	for i, digit := range text {
		if i > 0 && digit != '-' && (len(text)-i)%3 == 0 {
			b.WriteByte(' ')
		}
		b.WriteRune(digit)
	}
	return b.String()
}

// stepTime is the time of a step, in two digits.
func stepTime(seconds float64) string {
	switch {
	case seconds >= 10:
		return ago(seconds)
	case seconds >= 1:
		return fmt.Sprintf("%.1f s", seconds)
	case seconds >= 0.01:
		return fmt.Sprintf("%.0f ms", seconds*1e3)
	case seconds >= 0.001:
		return fmt.Sprintf("%.1f ms", seconds*1e3)
	}
	return fmt.Sprintf("%.0f µs", seconds*1e6)
}

// smallNumbers are the numbers that a sentence has in words.
var smallNumbers = []string{"no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"}

func countedSteps(n int64) string {
	switch {
	case n == 1:
		return "one step"
	case n >= 0 && n < int64(len(smallNumbers)):
		return smallNumbers[n] + " steps"
	}
	return Grouped(n) + " steps"
}

// stepText is the step of a node's slowest worker, and, where they differ, of its fastest.
func stepText(p *control.NodeProgressStatus) string {
	switch {
	case p == nil:
		return ""
	case p.SmallestStep == p.Step:
		return Grouped(p.Step)
	}
	return Grouped(p.SmallestStep) + " to " + Grouped(p.Step)
}
