package conformance

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	r "rallypoint/core/rendezvous"
	"rallypoint/internal/printable"
)

// vanished closes a run whose finished members are all gone, so that no other node can end it.
func (c *Checker) vanished() {
	if c.ended() || !c.finishing() || c.live() > 0 {
		return
	}
	for _, t := range c.participants {
		if t.state == finished && c.nodeOf(t.node) != nil {
			return
		}
	}
	end := closing{kind: success}
	if c.count(lost) > 0 {
		end.kind = failed
	}
	c.close(end)
}

// checkState checks the invariants after every event.
func (c *Checker) checkState() {
	if c.ended() && len(c.joiners()) > 0 {
		c.violated(9, "%d joins are pending in a closed run", len(c.joiners()))
	}
	for _, s := range c.nodes() {
		c.checkUpdate(s)
	}
	if c.finishing() && c.live() == 0 {
		for _, s := range c.sessions {
			if len(s.barrier) > 0 && c.participantOf(s) != nil {
				c.violated(8, "every live member has finished, and %s still waits at the exit barrier", s.node)
			}
		}
	}
	c.checkDirective()
	c.checkTimers()
	if c.policy.Max > 0 && !c.ended() && !c.finishing() {
		c.checkDue()
	}
}

// checkUpdate checks the last update of a node. One that waits in a join gets its news with the
// outcome.
func (c *Checker) checkUpdate(s *session) {
	if s.join != nil {
		return
	}
	if s.update.Closed != c.ended() {
		c.violated(9, "node %s was told closed=%v, the run: %v", s.node, s.update.Closed, c.ended())
	}
	if s.update.Requeue != (c.closing.kind == requeued) {
		c.violated(12, "node %s was told requeue=%v, the run was closed in the way %d", s.node, s.update.Requeue, c.closing.kind)
	}
	c.checkFacts(s)
	guarantee, want := c.mustRegroup(s)
	if got := s.update.Waiting > 0; got != want {
		c.violated(guarantee, "node %s has to regroup: %v, it was told %d waiting (%s)", s.node, want, s.update.Waiting, s.update.Reason)
	}
	if want := c.onlyLost(s); s.update.OnlyLost != want {
		c.violated(7, "node %s was told that only lost members make it regroup: %v, that is %v", s.node, s.update.OnlyLost, want)
	}
	if want := c.planned(s); s.update.Planned != want {
		c.violated(7, "node %s was told that it regroups only because the job grows or shrinks: %v, that is %v", s.node, s.update.Planned, want)
	}
	c.checkStop(s)
	if want && s.update.Reason == "" {
		c.violated(11, "node %s was told to regroup without a reason", s.node)
	}
}

// mustRegroup says whether num_nodes_waiting is above 0 for a node, and by which
// guarantee.
func (c *Checker) mustRegroup(s *session) (guarantee int, want bool) {
	switch c.closing.kind {
	case success:
		return 8, false
	case failed, requeued:
		return 8, true
	}
	t := c.participantOf(s)
	switch {
	case t == nil:
		return 7, s.stale
	case t.state != running:
		return 8, false
	}
	arrivals := c.due[r.TimerAdmit] && !c.ended() && c.growth() > 0
	return 7, c.count(lost, rejoined) > 0 || arrivals || c.overtaken || c.stop.Round > 0 || c.oversized() && !c.ended()
}

// onlyLost reports whether nothing but lost members, and nodes that wait for their places, has a
// node regroup.
func (c *Checker) onlyLost(s *session) bool {
	t := c.participantOf(s)
	switch {
	case t == nil || t.state != running, c.closing.kind == success, c.closing.kind == failed, c.closing.kind == requeued:
		return false
	}
	others := c.count(rejoined) > 0 || c.overtaken || c.stop.Round > 0 && !c.stop.Leaving || c.endedRound == c.round || c.oversized()
	return c.count(lost) > 0 && !others
}

// planned reports whether a node regroups though every member of its round runs.
func (c *Checker) planned(s *session) bool {
	t := c.participantOf(s)
	if t == nil || t.state != running || c.closing.kind == success || c.closing.kind == failed || c.closing.kind == requeued {
		return false
	}
	_, waits := c.mustRegroup(s)
	return waits && c.count(lost) == 0 && c.count(rejoined) == 0 && !c.overtaken && c.stop.Round == 0
}

func (c *Checker) checkTimers() {
	for name, t := range c.timers {
		if want, ok := c.lasts(name); ok && t.after != want {
			c.violated(timerGuarantee[name.Kind], "timer %+v runs for %v, the policy says %v", name, t.after, want)
		}
	}
	c.checkHold()
	if c.ended() || c.finishing() || c.policy.Max == 0 {
		return
	}
	must := func(kind r.TimerKind, when bool, why string) {
		if when && !c.runs(kind) && !c.due[kind] {
			c.violated(timerGuarantee[kind], "%s, and no timer runs", why)
		}
	}
	n := c.waiting()
	if c.live() == 0 {
		must(r.TimerLastCall, n >= c.policy.Min, "min is met")
		must(r.TimerQuiet, n >= c.policy.Min && c.policy.QuietPeriod > 0, "min is met")
	} else {
		must(r.TimerRegroup, c.count(rejoined) > 0 && c.awaited() > 0, "members wait for others to rejoin")
		must(r.TimerAdmit, c.growth() > 0, "newcomers would make the round larger")
	}
	for _, s := range c.nodes() {
		if s.grace && !c.timers[r.Timer{Kind: r.TimerGrace, Session: s.id}].running {
			c.violated(6, "the connection of %s is broken and nothing ends its grace", s.node)
		}
	}
}

// lasts is how long a timer runs. The graces after a restart are leases, and the length of a hold
// depends on when the control plane started.
func (c *Checker) lasts(t r.Timer) (time.Duration, bool) {
	switch t.Kind {
	case r.TimerLastCall:
		return c.policy.LastCallTimeout, true
	case r.TimerQuiet:
		return c.policy.QuietPeriod, true
	case r.TimerRegroup:
		return c.policy.RegroupTimeout, true
	case r.TimerAdmit:
		return c.policy.AdmitDelay, true
	case r.TimerGrace:
		if s := c.sessions[t.Session]; s != nil && s.recovering {
			return cmp.Or(c.recovery, c.policy.LeaseTimeout), true
		}
		return c.policy.ReconnectGrace, true
	}
	return 0, false
}

func (c *Checker) checkDue() {
	n := c.waiting()
	if c.joinersInGrace() > 0 || n < c.policy.Min {
		return
	}
	held := c.runs(r.TimerHold)
	full := n >= c.full()
	switch {
	case c.live() == 0:
		if full || !held && (c.due[r.TimerLastCall] || c.due[r.TimerQuiet]) {
			c.violated(5, "a first round of %d nodes is due and was not completed", n)
		}
	case c.count(rejoined) > 0:
		if (c.awaited() == 0 || c.due[r.TimerRegroup]) && (full || !held) {
			c.violated(6, "a regroup of %d nodes is due and was not completed", n)
		}
	}
}

func (c *Checker) checkErrors() {
	for _, f := range c.errs {
		if f.err == nil {
			c.violated(11, "a refusal without an error at %T", f.ev)
			continue
		}
		for _, word := range c.mustSay(f) {
			if !strings.Contains(f.err.Text, printable.Text(word)) {
				c.violated(11, "an error of code %d does not say %q: %q", f.err.Code, word, f.err.Text)
			}
		}
		if strings.TrimSpace(f.err.Text) == "" {
			c.violated(11, "an error of code %d without words", f.err.Code)
		}
		if s := f.session; s != nil && f.err.Code == r.CodeMismatch && !c.ended() && !c.strange(s) {
			c.violated(4, "node %s, which waited, was refused for its command: %s", s.node, f.err.Text)
		}
	}
}

func (c *Checker) mustSay(f failure) []string {
	run := []string{}
	if c.runID != "" {
		run = []string{fmt.Sprintf("run %q", c.runID)}
	}
	ended := c.closing
	switch f.err.Code {
	case r.CodeClosed:
		if !c.ended() {
			return append(run, append([]string{"finished: "}, c.someNames(finished)...)...)
		}
		return append(run, ended.by, ended.reason)
	case r.CodeGraceful, r.CodeUnfit:
		if h, ok := f.ev.(r.Hello); ok && f.session == nil {
			d, _ := c.rowOf(h.Node, printable.Text(h.HostName))
			return append(run, r.MachineOf(h.Node), d.by, d.reason)
		}
		if !c.ended() && f.session != nil {
			d, _ := c.rowOf(f.session.node, f.session.hostName)
			return append(run, r.MachineOf(f.session.node), d.by, d.reason)
		}
		return append(run, ended.by, ended.reason)
	case r.CodeMismatch:
		if h, ok := f.ev.(r.Hello); ok && f.session == nil {
			size := func(p r.Policy) string {
				if p.Min == p.Max {
					return fmt.Sprintf("nnodes=%d", p.Max)
				}
				return fmt.Sprintf("nnodes=%d:%d", p.Min, p.Max)
			}
			return append(run, r.MachineOf(h.Node), r.MachineOf(c.policyBy), size(h.Policy), size(c.policy))
		}
		return append(run, r.MachineOf(f.session.node))
	case r.CodeNodeInUse:
		if h, ok := f.ev.(r.Hello); ok {
			return append(run, r.MachineOf(h.Node))
		}
	case r.CodeEvicted:
		words := append(run, r.MachineOf(f.session.node))
		if ev, ok := f.ev.(r.Evict); ok {
			words = append(words, ev.By, ev.Reason)
		}
		return words
	case r.CodeRoundOver:
		return append(run, "round ")
	}
	return nil
}

// someNames are the machines of members in a state, as many as an error has room for.
func (c *Checker) someNames(s state) (names []string) {
	for _, t := range c.participants {
		if t.state == s && len(names) < 8 {
			names = append(names, r.MachineOf(t.node))
		}
	}
	return names
}
