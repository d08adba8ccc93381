package run

import (
	"strconv"
	"strings"

	"rallypoint/agent"
	"rallypoint/core/rendezvous"
)

// setOnFailure takes what a node does whose workers keep failing.
func (c *config) setOnFailure(o *options, _ environ) error {
	if o.onFailure == "keep" {
		return c.setKeep()
	}
	rule, ok := parseOnFailure(o.onFailure)
	switch {
	case !ok:
		return usagef("argument --on-failure: %q must be restart, keep, or leave[:N[/TIME]] with N failures in a time of at most %v, such as leave:2/1h", o.onFailure, rendezvous.MaxWithin)
	case rule.Failures > 0 && c.rendezvous.kind != kindDynamic:
		return usagef("argument --on-failure: no other node can take the place of one that leaves a %v job; let the nodes meet at --rdzv-endpoint=HOST:PORT, a directory or an etcd", c.rendezvous.kind)
	}
	c.spec.Leave = rule
	return nil
}

// setKeep has workers that fail end nothing while others of the node run.
func (c *config) setKeep() error {
	p := c.rendezvous.params
	switch {
	case c.rendezvous.kind != kindDynamic:
		return usagef("argument --on-failure: the nodes of a %v job do not learn of each other's loss, so that none can go on without another; for keep let them meet at --rdzv-endpoint=HOST:PORT, a directory or an etcd", c.rendezvous.kind)
	case p.Min != p.Max:
		return usagef("argument --on-failure: keep takes a fixed number of nodes, such as --nnodes=%d, not %d:%d: in a range a node that comes or is lost restarts the workers of all", p.Max, p.Min, p.Max)
	}
	c.spec.Keep = true
	return nil
}

// parseOnFailure reads restart, or leave[:N[/TIME]].
func parseOnFailure(text string) (rule agent.LeaveRule, ok bool) {
	policy, count, counted := strings.Cut(text, ":")
	if policy == "restart" && !counted {
		return rule, true
	}
	if policy != "leave" {
		return rule, false
	}
	rule = agent.DefaultLeaveRule
	if !counted {
		return rule, true
	}
	count, window, windowed := strings.Cut(count, "/")
	n, err := strconv.ParseUint(count, 10, 16)
	rule.Failures = int(n)
	if err == nil && windowed {
		rule.Window, err = parseWindow(window)
	}
	return rule, err == nil && n > 0 && rule.Window <= rendezvous.MaxWithin
}
