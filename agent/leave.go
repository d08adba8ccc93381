package agent

import (
	"fmt"
	"slices"
	"time"

	"rallypoint/agent/telemetry"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/wording"
)

// LeaveRule makes a node whose workers keep failing leave the run as unfit (docs/decisions/0121).
// With the zero value it stays.
type LeaveRule struct {
	Failures int           // of the node's workers within Window, each the first of its round; > 0
	Window   time.Duration // and how long the node is kept out then; at most rendezvous.MaxWithin
}

// DefaultLeaveRule is the rule where only the policy is given.
var DefaultLeaveRule = LeaveRule{Failures: 2, Window: time.Hour}

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

// asksToLeave notes a failure of this node's workers, and reports whether the node asks to
// leave the run as unfit. A failure after a standstill does not count: the workers that fail
// first then are those that waited for one that hangs elsewhere.
func (a *Agent) asksToLeave(t *attempt, v outcome) bool {
	if a.leaving.rule.Failures == 0 {
		return false
	}
	switch still := t.still; {
	case v == unkillable:
		return true
	case v != someFailed:
		return false
	case still > 0 || t.hang != nil:
		a.log.Info(fmt.Sprintf("the failure does not count for --on-failure leave: the workers had made no step for %v, the cause may be another node", still.Round(time.Second)))
		return false
	}
	t.struck = true
	return a.leaving.strike()
}

// answeredStop handles the reply to the announcement of a stop: err answers a node that asked to
// leave. A failure that followed another node's stop or loss does not count.
func (a *Agent) answeredStop(t *attempt, asked bool, err error) {
	if s := a.announcedStop(); t.struck && s.Round != 0 && (s.Rank != a.assignment.group || s.Lost) {
		a.leaving.strikes = a.leaving.strikes[:len(a.leaving.strikes)-1]
	}
	switch {
	case asked && err == nil:
		t.leaves, t.unfit = true, true
	case asked && rendezvous.CodeOf(err) == rendezvous.CodeInvalid:
		a.log.Warn("this node stays in the run: " + err.Error())
		a.publish(telemetry.Stays{})
	case err != nil:
		a.leaving.later = asked
		a.log.Info("the other nodes could not be told yet that this one stops its workers: " + err.Error())
	}
}

// unfitText says why a node leaves as unfit.
func (a *Agent) unfitText(v outcome) string {
	rule := a.spec.Leave
	if v == unkillable {
		return fmt.Sprintf("this node leaves the run and is kept out for %v: it cannot start its workers again", rule.Window)
	}
	return fmt.Sprintf("this node leaves the run and is kept out for %v: its workers were the first to fail, %s in that time", rule.Window, wording.Count(rule.Failures, "time", "times"))
}
