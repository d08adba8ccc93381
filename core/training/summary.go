package training

import (
	"slices"
	"time"
)

// NodeReport is a report as it was received.
type NodeReport struct {
	Report
	Age time.Duration // of the report
}

// Change is for how long no worker of the node has reported another step.
func (n *NodeReport) Change() time.Duration { return n.SinceChange + n.Age }

// Stalled is for how long the workers that are at Smallest have not moved.
func (n *NodeReport) Stalled() time.Duration { return n.SinceSlowest + n.Age }

// Summary is how far a job has come in one round.
type Summary struct {
	Step     int64 // the largest of all workers
	Smallest int64
	Nodes    int           // that have reported
	PerStep  time.Duration // 0: not known
	Change   time.Duration // for how long no worker has reported another step
	Behind   int           // index of the node that holds the others up; -1: none does, or Counted
	Counted  bool          // see Report; a node that is, beside others, is left out
	Slow     SlowRank
}

// A node is behind when its slowest worker is below the job's largest step and has not
// moved for longer than all that a sound one needs between two samples: some steps, and
// the time from one heartbeat to the next.
const (
	leastStall = 5 * time.Second
	stallSteps = 3
)

// Summarize sums up the reports of the nodes that run in one round; false without any. Of
// several nodes that lag it names the one with the smallest step, of these the one that
// has stood for longest.
func Summarize(nodes []NodeReport) (Summary, bool) {
	if len(nodes) == 0 {
		return Summary{}, false
	}
	s := Summary{Behind: -1, Slow: slowRank(nodes), Counted: !slices.ContainsFunc(nodes, func(n NodeReport) bool { return !n.Counted })}
	for i := range nodes {
		n := &nodes[i]
		if n.Counted != s.Counted {
			continue
		}
		if s.Nodes++; s.Nodes == 1 {
			s.Step, s.Smallest, s.Change, s.PerStep = n.Largest, n.Smallest, n.Change(), n.PerStep
		}
		s.Step, s.Smallest = max(s.Step, n.Largest), min(s.Smallest, n.Smallest)
		change := n.Change()
		if n.PerStep > 0 && (s.PerStep == 0 || change < s.Change) {
			s.PerStep = n.PerStep
		}
		s.Change = min(s.Change, change)
	}
	limit := max(leastStall, stallSteps*s.PerStep)
	for i := range nodes {
		n := &nodes[i]
		if n.Counted || // nodes with other optimizers have other counts at the same step
			n.Smallest == s.Step || n.Stalled() < limit {
			continue
		}
		if b := s.Behind; b < 0 || n.Smallest < nodes[b].Smallest || n.Smallest == nodes[b].Smallest && n.Stalled() > nodes[b].Stalled() {
			s.Behind = i
		}
	}
	return s, true
}
