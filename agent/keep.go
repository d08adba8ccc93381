package agent

import (
	"fmt"

	"rallypoint/agent/failure"
	"rallypoint/agent/process"
	"rallypoint/internal/wording"
)

// mustRegroup reports whether the nodes have to form a new round. Under Spec.Keep lost nodes alone
// are no reason: the others continue without them.
func (a *Agent) mustRegroup() bool {
	return a.rdzv.NodesWaiting() > 0 && !(a.spec.Keep && a.rdzv.OnlyLost())
}

// keeps reports whether the failures of this attempt's workers end nothing: another worker runs or
// has succeeded, and Spec.Keep is set.
func (a *Agent) keeps(t *attempt) bool {
	return a.spec.Keep && len(t.failures) < len(t.workers.Procs)
}

// keepsWithout records a worker that has failed while the others of the node run on.
func (a *Agent) keepsWithout(t *attempt, p *process.Process) {
	a.progress.Gone(p.Local)
	text := a.describe(t, p).Summary()
	if left := len(t.workers.Procs) - len(t.ended); left > 0 {
		text += fmt.Sprintf("; %d of %s of this node continue without it", left, wording.Count(len(t.workers.Procs), "worker", "workers"))
	}
	a.log.Warn(text + " (--on-failure keep)")
}

// kept returns the failures in spite of which this node has succeeded.
func (a *Agent) kept(t *attempt) []failure.Failure {
	if len(t.failures) == 0 {
		return nil
	}
	failures := a.failures(t)
	a.log.Warn(fmt.Sprintf("%s of this node failed; the node succeeded because the others did:\n%s", wording.Count(len(failures), "worker", "workers"), failure.Report(a.name, failures, "")))
	return failures
}
