package agent

import (
	"time"

	"rallypoint/agent/process"
	"rallypoint/agent/stacks"
	"rallypoint/internal/ownfile"
)

// openStacks makes the files into which workers that are about to start write their stacks; without
// them the job runs as well.
func (t *attempt) openStacks(locals []int) {
	folder := t.progress.Folder()
	if folder == "" {
		return
	}
	if t.stacks == nil {
		t.stacks = make([]*ownfile.File, t.spec.Workers)
	}
	for _, local := range locals {
		file, err := stacks.NewFile(folder, t.assignment.Round, local)
		if err != nil {
			t.log.Warn("the workers' stacks cannot be collected: " + err.Error())
			return
		}
		if before := t.stacks[local]; before != nil {
			before.Remove()
		}
		t.stacks[local] = file
	}
}

// removeRecords removes the files that the workers of an attempt share with the agent.
func (t *attempt) removeRecords() {
	for _, file := range t.stacks {
		if file != nil {
			file.Remove()
		}
	}
	t.stacks = nil
	t.worlds.remove()
	t.worlds = nil
}

// stackPath is where a worker's stack file lies; "" if it has none.
func (t *attempt) stackPath(local int) string {
	if local >= len(t.stacks) || t.stacks[local] == nil {
		return ""
	}
	return t.stacks[local].Path()
}

// stackTargets are those workers that still run, as they are asked for their stacks.
func (t *attempt) stackTargets(workers []*process.Process) (targets []stacks.Target) {
	for _, p := range workers {
		if p.HasExited() {
			continue
		}
		target := stacks.Target{Rank: t.assignment.ranks.base + p.Local, Pid: p.Pid}
		if p.Local < len(t.stacks) {
			target.File = t.stacks[p.Local]
		}
		targets = append(targets, target)
	}
	return targets
}

// lastStacksPatience bounds how long workers are asked that are about to be killed.
const lastStacksPatience = time.Second
