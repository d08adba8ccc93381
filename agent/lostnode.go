package agent

import "time"

// lostNode waits for the cause of a failure that the budget does not cover: it
// reports whether a node was lost, so that the failure followed from that. It
// waits at most LostNodeTimeout, and not at all if this node is alone.
func (a *Agent) lostNode() bool {
	if a.assignment.groups < 2 {
		return false
	}
	ctx, cancel := a.untilInterrupt(max(a.spec.LostNodeTimeout, 1))
	defer cancel()
	arrived, stop := a.openBarrier(ctx)
	defer stop()
	tick := time.Tick(a.spec.MonitorInterval)
	for {
		if a.rdzv.Closed() {
			return false
		}
		if a.lossSeen() {
			return !a.rdzv.Closed()
		}
		select {
		case <-arrived:
			return a.lossSeen() && !a.rdzv.Closed()
		case <-ctx.Done():
			return a.lossSeen() && !a.rdzv.Closed()
		case <-tick:
		}
	}
}
