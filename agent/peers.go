package agent

import (
	"slices"
	"sync"

	"rallypoint/agent/failure"
)

// publishFirst publishes to the other nodes the first failure of an attempt, while the
// workers are being stopped; a node that leaves has none to tell. The function that it returns waits until that is done.
func (a *Agent) publishFirst(t *attempt, v outcome) (wait func()) {
	if v != someFailed && v != unkillable || a.assignment.groups < 2 || t.leaves {
		return func() {}
	}
	f := *a.firstFailure(t)
	failed := slices.Clone(t.failures)
	var published sync.WaitGroup
	published.Go(func() { // ends by the limit of publishFailure
		if len(failed) > 0 {
			f, _ = a.failure(t, failed[0], inTime) // its error is logged with the report
		}
		a.publishFailure(&f)
	})
	return published.Wait
}

// publishFailure publishes a failure to the other nodes.
func (a *Agent) publishFailure(f *failure.Failure) {
	ctx, cancel := a.untilImpatient(a.spec.ReportTimeout)
	defer cancel()
	s := a.announcedStop()
	first := s.Round != 0 && !s.Leaving && s.Rank == a.assignment.group
	if err := f.Publish(ctx, a.assignment.keys, a.assignment.Round, a.assignment.group, first); err != nil {
		a.log.Warn("cannot tell the other nodes of the failure: " + err.Error())
	}
}

// readPeers reads the failures that the nodes of the round published.
func (a *Agent) readPeers() {
	if a.assignment.groups < 2 {
		return
	}
	ctx, cancel := a.untilImpatient(a.spec.ReportTimeout)
	defer cancel()
	a.awaitCulprit(ctx)
	published := failure.ReadPublished(ctx, a.assignment.keys, a.assignment.Round)
	if s := a.announcedStop(); s.Round != 0 && !s.Leaving {
		published = failure.CulpritFirst(published, s.Rank)
	}
	if published != nil {
		a.assignment.peers = published
	}
}
