package agent

import (
	"slices"
	"time"

	"rallypoint/agent/failure"
	"rallypoint/agent/logs"
	"rallypoint/agent/progress"
	"rallypoint/core/rendezvous"
	"rallypoint/core/training"
)

// history is what a node remembers of the rounds in which it was.
type history struct {
	changed      progress.Cause    // why the last attempt is over
	lastFailures []failure.Failure // by which the last attempt ended, as far as they are known
	failed       training.Failure  // by which a round of the job has ended last, but for its age
	failedAt     time.Time
	culprit      culprit
	leaving      leaving
}

// culprit is the worker of this node that failed first in a round, before any of another node.
type culprit struct {
	round   uint64 // 0: there was none
	failure string
	parts   []logs.Part // what it wrote last
}

// noteFailure keeps by which failure the round ends, if it does by one.
func (h *history) noteFailure(s rendezvous.RoundStop) {
	if s.Round != 0 && !s.Leaving {
		h.failed, h.failedAt = training.Failure{Round: s.Round, Text: s.Reason}, time.Now()
	}
}

// reportedFailure is the last failure as the node of that rank reports it, for a status of the job that
// no control plane has, or one that has not seen it: one node of a round does.
func (h *history) reportedFailure(group int) (f training.Failure, at time.Time) {
	if group != 0 {
		return f, at
	}
	return h.failed, h.failedAt
}

// leaving is what a node knows of its failures that count for the rule.
type leaving struct {
	rule    LeaveRule
	now     func() time.Time
	strikes []time.Time // the last of them
	later   bool        // it asked to leave as unfit, and has no answer yet
}

// strike adds a failure, and reports whether the node asks to leave.
func (l *leaving) strike() bool {
	now := l.now()
	l.strikes = append(slices.DeleteFunc(l.strikes, func(at time.Time) bool { return now.Sub(at) > l.rule.Window }), now)
	return len(l.strikes) >= l.rule.Failures
}
