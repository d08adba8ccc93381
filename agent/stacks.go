package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"rallypoint/agent/process"
	"rallypoint/agent/stacks"
)

// openStacks makes the files into which the workers of an attempt write their stacks; without
// them the job runs as well.
func (t *attempt) openStacks(a *Agent) {
	if a.progress.Folder() == "" {
		return
	}
	var err error
	if t.stacks, err = stacks.NewFiles(a.progress.Folder(), a.assignment.Round, a.spec.Workers); err != nil {
		a.log.Warn("the workers' stacks cannot be collected: " + err.Error())
	}
}

// renewStacks makes new files for the workers that are replaced.
func (t *attempt) renewStacks(a *Agent) {
	if t.stacks == nil {
		return
	}
	for _, local := range t.vacant {
		next, err := stacks.NewFile(a.progress.Folder(), a.assignment.Round, local)
		if err != nil {
			a.log.Warn("the workers' stacks cannot be collected: " + err.Error())
			continue
		}
		t.stacks[local].Remove()
		t.stacks[local] = next
	}
}

// removeRecords removes the files that the workers of an attempt share with the agent.
func (t *attempt) removeRecords() {
	stacks.RemoveFiles(t.stacks)
	t.stacks = nil
	t.removeWorlds()
}

// stackPath is where a worker's stack file lies; "" if it has none.
func (t *attempt) stackPath(local int) string {
	if local >= len(t.stacks) {
		return ""
	}
	return t.stacks[local].Path()
}

// stackTargets are those workers that still run, as they are asked for their stacks. base is the
// rank of the first worker of the node.
func (t *attempt) stackTargets(base int, workers []*process.Process) (targets []stacks.Target) {
	for _, p := range workers {
		if p.HasExited() {
			continue
		}
		target := stacks.Target{Rank: base + p.Local, Pid: p.Pid}
		if p.Local < len(t.stacks) {
			target.File = t.stacks[p.Local]
		}
		targets = append(targets, target)
	}
	return targets
}

// lastStacksPatience bounds how long workers are asked that are about to be killed.
const lastStacksPatience = time.Second

// lastStacks logs where the workers are that did not end within their grace, before they are
// killed, and keeps it for their failures.
func (a *Agent) lastStacks(t *attempt) func([]*process.Process) {
	return func(left []*process.Process) {
		fold := stacks.NewFold(stacks.Collect(context.Background(), t.stackTargets(a.assignment.ranks.base, left), stacks.AllThreads, lastStacksPatience))
		if len(fold.Groups) == 0 {
			return
		}
		a.log.Warn(fmt.Sprintf("where the workers are that have not ended within %v:\n%s", a.spec.ShutdownTimeout, fold.Text()))
		t.lastStacks = append(t.lastStacks, fold.Groups...)
	}
}

// lastStack is where a worker was before it was killed; "" if that is not known.
func (t *attempt) lastStack(rank int) string {
	for _, g := range t.lastStacks {
		if slices.Contains(g.Ranks, rank) {
			return g.Text()
		}
	}
	return ""
}
