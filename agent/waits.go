package agent

import (
	"context"
	"time"

	"rallypoint/agent/stacks"
	"rallypoint/internal/background"
	"rallypoint/internal/backoff"
)

// How often the agent samples whether workers wait, while they make steps and else, and after how
// many samples it checks whether they use a device.
const (
	waitLook       = 200 * time.Millisecond
	waitLookIdle   = 2 * time.Second
	looksForDevice = 300
)

// watchWaits measures how much of their time the workers of an attempt wait for other ranks,
// until the returned function is called or a worker ends. It cannot measure workers that use a
// device (docs/decisions/0125).
func (a *Agent) watchWaits(t *attempt) (stop func()) {
	if a.progress.Folder() == "" || a.assignment.ranks.world < 2 || !stacks.KernelTellsWaits() {
		return func() {}
	}
	return background.Run(context.Background(), func(ctx context.Context) {
		waiting := make([]bool, len(t.workers.Procs))
		pause := waitLookIdle
		for look := 0; backoff.Sleep(ctx, backoff.Jitter(pause)); {
			pause = waitLookIdle
			if changed, _, announced := a.progress.Pulse(); changed.IsZero() || announced {
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
