package agent

import (
	"time"

	"rallypoint/agent/process"
	"rallypoint/agent/stacks"
)

// openStacks makes the files into which the workers of an attempt write their stacks; without
// them the job runs as well.
func (t *attempt) openStacks() {
	if t.progress.Folder() == "" {
		return
	}
	var err error
	if t.stacks, err = stacks.NewFiles(t.progress.Folder(), t.assignment.Round, t.spec.Workers); err != nil {
		t.log.Warn("the workers' stacks cannot be collected: " + err.Error())
	}
}

// renewStacks makes new files for the workers that are replaced.
func (t *attempt) renewStacks() {
	if t.stacks == nil {
		return
	}
	for _, local := range t.vacant {
		next, err := stacks.NewFile(t.progress.Folder(), t.assignment.Round, local)
		if err != nil {
			t.log.Warn("the workers' stacks cannot be collected: " + err.Error())
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
	t.worlds.remove()
	t.worlds = nil
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
