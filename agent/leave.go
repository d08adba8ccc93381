package agent

import (
	"fmt"
	"slices"
	"time"

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

// text says why a node leaves as unfit.
func (r LeaveRule) text(how outcome) string {
	if how == unkillable {
		return fmt.Sprintf("this node leaves the run and is kept out for %v: it cannot start its workers again", r.Window)
	}
	return fmt.Sprintf("this node leaves the run and is kept out for %v: its workers were the first to fail, %s in that time", r.Window, wording.Count(r.Failures, "time", "times"))
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
