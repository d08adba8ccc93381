package agent

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
	for !a.rdzv.Closed() && !a.lossSeen() {
		select {
		case <-a.rdzv.Changed():
			continue
		case <-arrived:
		case <-ctx.Done():
		}
		break
	}
	return a.lossSeen() && !a.rdzv.Closed()
}
