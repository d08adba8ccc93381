package agent

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"rallypoint/agent/process"
	"rallypoint/agent/stacks"
	"rallypoint/internal/backoff"
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

// answerAfter is how long workers have run before their agent connects to the store to answer
// questions: one that ends while it connects takes the connection for a stranger's and warns. A
// question that comes earlier waits in the store.
const answerAfter = time.Second

// answerStacks answers where the workers of an attempt are, to whoever asks in the store of
// its round, and hears there that the job hangs, until the function that it returns is called.
func (a *Agent) answerStacks(t *attempt, w *hangWatch) (stop func()) {
	if a.spec.DialStore == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	where, group := net.JoinHostPort(a.assignment.StoreAddr, strconv.Itoa(a.assignment.StorePort)), a.assignment.group
	go func() { // ends with stop
		defer close(done)
		if !backoff.Sleep(ctx, answerAfter) {
			return
		}
		s, err := a.spec.DialStore(ctx, where)
		if err != nil {
			return
		}
		defer func() { _ = s.Close() }()
		a.nextQuestion = stacks.Answer(ctx, s, group, a.nextQuestion, func(ctx context.Context) stacks.Node { return a.stackNode(ctx, t, w) },
			func(h stacks.Hang) { w.hear(ctx, h) })
	}()
	return func() {
		cancel()
		<-done
	}
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
