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
func (a *Agent) openStacks() {
	a.closeStacks()
	if a.progress.Folder() == "" {
		return
	}
	files, err := stacks.NewFiles(a.progress.Folder(), a.assignment.Round, a.spec.Workers)
	if err != nil {
		a.log.Warn("the workers' stacks cannot be collected: " + err.Error())
	}
	a.stackFiles = files
}

// renewStacks makes new files for workers that are replaced.
func (a *Agent) renewStacks(locals []int) {
	if a.stackFiles == nil {
		return
	}
	for _, local := range locals {
		next, err := stacks.NewFile(a.progress.Folder(), a.assignment.Round, local)
		if err != nil {
			a.log.Warn("the workers' stacks cannot be collected: " + err.Error())
			continue
		}
		a.stackFiles[local].Remove()
		a.stackFiles[local] = next
	}
}

func (a *Agent) closeStacks() {
	stacks.RemoveFiles(a.stackFiles)
	a.stackFiles = nil
}

// stackPath is where a worker's stack file lies; "" if it has none.
func (a *Agent) stackPath(local int) string {
	if local >= len(a.stackFiles) {
		return ""
	}
	return a.stackFiles[local].Path()
}

// stackTargets are the workers that still run, as they are asked for their stacks.
func (a *Agent) stackTargets(workers []*process.Process) []stacks.Target {
	var targets []stacks.Target
	for _, p := range workers {
		if p.HasExited() {
			continue
		}
		t := stacks.Target{Rank: a.assignment.ranks.base + p.Local, Pid: p.Pid}
		if p.Local < len(a.stackFiles) {
			t.File = a.stackFiles[p.Local]
		}
		targets = append(targets, t)
	}
	return targets
}

// lastStacksPatience bounds how long workers are asked that are about to be killed.
const lastStacksPatience = time.Second

// lastStacks logs where the workers are that did not end within their grace, before they are
// killed, and keeps it for their failures.
func (a *Agent) lastStacks(t *attempt) func([]*process.Process) {
	return func(left []*process.Process) {
		fold := stacks.NewFold(stacks.Collect(context.Background(), a.stackTargets(left), stacks.AllThreads, lastStacksPatience))
		if len(fold.Groups) == 0 {
			return
		}
		a.log.Warn(fmt.Sprintf("where the workers are that have not ended within %v:\n%s", a.spec.ShutdownTimeout, fold.Text()))
		t.lastStacks = append(t.lastStacks, fold.Groups...)
	}
}

// lastStack is where a worker was before it was killed; "" if that is not known.
func (a *attempt) lastStack(rank int) string {
	for _, g := range a.lastStacks {
		if slices.Contains(g.Ranks, rank) {
			return g.Text()
		}
	}
	return ""
}
