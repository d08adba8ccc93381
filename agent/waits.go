package agent

import (
	"context"
	"time"

	"rallypoint/agent/stacks"
	"rallypoint/internal/background"
	"rallypoint/internal/backoff"
)

// Looks at whether workers wait: so often while they make steps, else less, and every so many of
// them whether they use a device.
const (
	waitLook       = 200 * time.Millisecond
	waitLookIdle   = 2 * time.Second
	looksForDevice = 300
)

// watchWaits sees how much of their time the workers of an attempt wait for other ranks, until the
// function that it returns is called or a worker ends. Of workers that use a device nothing is
// known (docs/decisions/0125).
func (a *Agent) watchWaits(t *attempt) (stop func()) {
	if a.progress.Folder() == "" || a.assignment.ranks.world < 2 || !stacks.KernelTellsWaits() {
		return func() {}
	}
	return background.Run(context.Background(), func(ctx context.Context) {
		waiting := make([]bool, len(t.workers.Procs))
		pause := waitLookIdle
		for look := 0; backoff.Sleep(ctx, backoff.Jitter(pause)); {
			pause = waitLookIdle
			if changed, announced := a.progress.Pulse(); changed.IsZero() || announced {
				continue
			}
			pause = waitLook
			for i, p := range t.workers.Procs {
				if p.HasExited() || look%looksForDevice == 0 && stacks.UsesDevice(p.Pid) {
					a.progress.ForgetWaits()
					return
				}
				waiting[i] = stacks.WaitsForThread(p.Pid)
			}
			a.progress.NoteWaits(a.assignment.ranks.base, waiting)
			look++
		}
	})
}
