package agent

import (
	"fmt"
	"strconv"
	"strings"
	"time"

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

func (r LeaveRule) text(how outcome) string {
	if how == unkillable {
		return fmt.Sprintf("this node leaves the run and is kept out for %v: it cannot start its workers again", r.Window)
	}
	return fmt.Sprintf("this node leaves the run and is kept out for %v: its workers were the first to fail, %s in that time", r.Window, wording.Count(r.Failures, "time", "times"))
}

// SetOnFailure sets what a node does when its workers fail: restart, regroup[:TIME], keep, or
// leave[:N[/TIME]]. fixed is the word for a job whose nodes are known in advance, such as "static", else "".
func (s *Spec) SetOnFailure(text, fixed string, least, most int) error {
	const endpoint = "use HOST:PORT, a directory or an etcd"
	rule, ok := parseOnFailure(text)
	policy, grace, limited := strings.Cut(text, ":")
	switch {
	case policy == "regroup" && fixed == "static":
		return fmt.Errorf("the nodes of a %s job do not notice when another is lost, so their workers cannot regroup; %s", fixed, endpoint)
	case policy == "regroup":
		s.Regroup, s.RegroupGrace = true, defaultRegroupGrace
		if limited {
			var err error
			if s.RegroupGrace, err = ParseWindow(grace); err != nil {
				return fmt.Errorf("%q must be regroup[:TIME] with the time that a worker has to call regroup, such as regroup:30s", text)
			}
		}
		return nil
	case text == "keep" && fixed != "":
		return fmt.Errorf("the nodes of a %s job do not notice when another is lost, so they cannot continue without it; for keep, %s", fixed, endpoint)
	case text == "keep" && least != most:
		return fmt.Errorf("keep takes a fixed number of nodes, such as %d, not %d:%d: with a range, a node that joins or is lost restarts the workers of all nodes", most, least, most)
	case text == "keep":
		s.Keep = true
		return nil
	case !ok:
		return fmt.Errorf("%q must be restart, regroup[:TIME], keep, or leave[:N[/TIME]] with N failures in a time of at most %v, such as leave:2/1h", text, rendezvous.MaxWithin)
	case rule.Failures > 0 && fixed != "":
		return fmt.Errorf("no other node can take the place of one that leaves a %s job; %s", fixed, endpoint)
	}
	s.Leave = rule
	return nil
}

// parseOnFailure reads restart, or leave[:N[/TIME]].
func parseOnFailure(text string) (rule LeaveRule, ok bool) {
	policy, count, counted := strings.Cut(text, ":")
	if policy == "restart" && !counted {
		return rule, true
	}
	if policy != "leave" {
		return rule, false
	}
	rule = DefaultLeaveRule
	if !counted {
		return rule, true
	}
	count, window, windowed := strings.Cut(count, "/")
	n, err := strconv.ParseUint(count, 10, 16)
	rule.Failures = int(n)
	if err == nil && windowed {
		rule.Window, err = ParseWindow(window)
	}
	return rule, err == nil && n > 0 && rule.Window <= rendezvous.MaxWithin
}

const maxWindow = 1e9 * time.Second

// ParseWindow reads a time such as 30m, 6h or 2d.
func ParseWindow(text string) (time.Duration, error) {
	text = strings.TrimSpace(text)
	d, err := time.ParseDuration(text)
	if number, found := strings.CutSuffix(text, "d"); found {
		var days uint64
		days, err = strconv.ParseUint(number, 10, 16)
		d = time.Duration(days) * 24 * time.Hour
	}
	if err == nil && (d <= 0 || d > maxWindow) {
		err = strconv.ErrRange
	}
	return d, err
}
