package conformance

import (
	"fmt"
	"strings"
	"time"

	r "rallypoint/core/rendezvous"
)

// vanished closes a run whose finished members are all gone, and which no other node
// can end.
func (j *Checker) vanished() {
	if j.ended() || j.count(finished) == 0 || j.live() > 0 {
		return
	}
	for _, t := range j.participants {
		if t.state == finished && j.nodeOf(t.node) != nil {
			return
		}
	}
	c := closing{success, "", ""}
	if j.count(lost) > 0 {
		c.kind = failed
	}
	j.close(c)
}

// checkState checks what must hold after every event.
func (j *Checker) checkState() {
	if j.ended() && len(j.joiners()) > 0 {
		j.violated(9, "%d joins are pending in a closed run", len(j.joiners()))
	}
	for _, s := range j.nodes() {
		j.checkUpdate(s)
	}
	if j.count(finished) > 0 && j.live() == 0 {
		for _, s := range j.sessions {
			if len(s.barrier) > 0 && j.participantOf(s) != nil {
				j.violated(8, "every live member has finished, and %s still waits at the exit barrier", s.node)
			}
		}
	}
	j.checkTimers()
	if j.policy.Max > 0 && !j.ended() && j.count(finished) == 0 {
		j.checkDue()
	}
}

// checkUpdate checks what a node learned last. One that waits in a join learns it
// by its outcome.
func (j *Checker) checkUpdate(s *session) {
	if s.join != nil {
		return
	}
	if s.update.Closed != j.ended() {
		j.violated(9, "node %s was told closed=%v, the run: %v", s.node, s.update.Closed, j.ended())
	}
	guarantee, want := j.mustRegroup(s)
	if got := s.update.Waiting > 0; got != want {
		j.violated(guarantee, "node %s has to regroup: %v, it was told %d waiting (%s)", s.node, want, s.update.Waiting, s.update.Reason)
	}
	if want && s.update.Reason == "" {
		j.violated(11, "node %s was told to regroup without a reason", s.node)
	}
}

// mustRegroup says whether num_nodes_waiting is above 0 for a node, and by which
// guarantee.
func (j *Checker) mustRegroup(s *session) (guarantee int, want bool) {
	switch j.closing.kind {
	case success:
		return 8, false
	case failed:
		return 8, true
	}
	t := j.participantOf(s)
	switch {
	case t == nil:
		return 7, s.stale
	case t.state != running:
		return 8, false
	}
	arrivals := j.due[r.TimerAdmit] && !j.ended() && j.growth() > 0
	return 7, j.count(lost, rejoined) > 0 || arrivals || j.overtaken
}

// checkTimers checks that what must happen at the latest will: its timer runs.
func (j *Checker) checkTimers() {
	for name, t := range j.timers {
		if want, ok := j.lasts(name); ok && t.after != want {
			j.violated(timerGuarantee[name.Kind], "timer %+v runs for %v, the policy says %v", name, t.after, want)
		}
	}
	if j.ended() || j.count(finished) > 0 || j.policy.Max == 0 {
		return
	}
	must := func(kind r.TimerKind, when bool, why string) {
		if when && !j.runs(kind) && !j.due[kind] {
			j.violated(timerGuarantee[kind], "%s, and no timer runs", why)
		}
	}
	n := len(j.joiners())
	if j.live() == 0 {
		must(r.TimerLastCall, n >= j.policy.Min, "min is met")
		must(r.TimerQuiet, n >= j.policy.Min && j.policy.QuietPeriod > 0, "min is met")
	} else {
		must(r.TimerRegroup, j.count(rejoined) > 0 && j.awaited() > 0, "members wait for others to rejoin")
		must(r.TimerAdmit, j.growth() > 0, "newcomers would make the round larger")
	}
	for _, s := range j.nodes() {
		if s.grace && !j.timers[r.Timer{Kind: r.TimerGrace, Session: s.id}].running {
			j.violated(6, "the connection of %s is broken and nothing ends its grace", s.node)
		}
	}
}

// lasts is how long a timer runs. The graces after a restart are leases, and what
// a hold lasts depends on when the control plane began.
func (j *Checker) lasts(t r.Timer) (time.Duration, bool) {
	switch t.Kind {
	case r.TimerLastCall:
		return j.policy.LastCallTimeout, true
	case r.TimerQuiet:
		return j.policy.QuietPeriod, true
	case r.TimerRegroup:
		return j.policy.RegroupTimeout, true
	case r.TimerAdmit:
		return j.policy.AdmitDelay, true
	case r.TimerGrace:
		if s := j.sessions[t.Session]; s != nil && s.recovering {
			return j.policy.LeaseTimeout, true
		}
		return j.policy.ReconnectGrace, true
	}
	return 0, false
}

// checkDue checks that no round is overdue.
func (j *Checker) checkDue() {
	n := len(j.joiners())
	if j.joinersInGrace() > 0 || n < j.policy.Min {
		return
	}
	held := j.runs(r.TimerHold)
	full := n >= j.full()
	switch {
	case j.live() == 0:
		if full || !held && (j.due[r.TimerLastCall] || j.due[r.TimerQuiet]) {
			j.violated(5, "a first round of %d nodes is due and was not completed", n)
		}
	case j.count(rejoined) > 0:
		if (j.awaited() == 0 || j.due[r.TimerRegroup]) && (full || !held) {
			j.violated(6, "a regroup of %d nodes is due and was not completed", n)
		}
	}
}

// checkErrors checks what nodes are told when they are refused.
func (j *Checker) checkErrors() {
	for _, f := range j.errs {
		if f.err == nil {
			j.violated(11, "a refusal without an error at %T", f.ev)
			continue
		}
		for _, word := range j.mustSay(f) {
			if !strings.Contains(f.err.Text, r.Printable(word)) {
				j.violated(11, "an error of code %d does not say %q: %q", f.err.Code, word, f.err.Text)
			}
		}
		if strings.TrimSpace(f.err.Text) == "" {
			j.violated(11, "an error of code %d without words", f.err.Code)
		}
	}
}

// mustSay are words that an error has to contain.
func (j *Checker) mustSay(f failure) []string {
	run := []string{}
	if j.runID != "" {
		run = []string{fmt.Sprintf("run %q", j.runID)}
	}
	ended := j.closing
	switch f.err.Code {
	case r.CodeClosed:
		if !j.ended() {
			return append(run, append([]string{"finished: "}, j.someNames(finished)...)...)
		}
		return append(run, ended.by, ended.reason)
	case r.CodeGraceful:
		return append(run, ended.by, ended.reason)
	case r.CodeMismatch:
		if h, ok := f.ev.(r.Hello); ok {
			size := func(p r.Policy) string { return fmt.Sprintf("nnodes=%d:%d", p.Min, p.Max) }
			return append(run, h.Node, j.policyBy, size(h.Policy), size(j.policy))
		}
	case r.CodeNodeInUse:
		if h, ok := f.ev.(r.Hello); ok {
			return append(run, h.Node)
		}
	case r.CodeEvicted:
		words := append(run, f.session.node)
		if ev, ok := f.ev.(r.Evict); ok {
			words = append(words, ev.By, ev.Reason)
		}
		return words
	case r.CodeRoundOver:
		return append(run, "round ")
	}
	return nil
}

// someNames are the ids of members in a state, as many as an error has room for.
func (j *Checker) someNames(s state) (names []string) {
	for _, t := range j.participants {
		if t.state == s && len(names) < 8 {
			names = append(names, t.node)
		}
	}
	return names
}
