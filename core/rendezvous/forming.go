package rendezvous

import (
	"cmp"
	"slices"
	"time"
)

// forming is the next round: the nodes that have asked for a place in it, the number of places,
// and the clocks that decide when it is complete.
type forming struct {
	out   *output
	nodes *nodes
	round *round // the one before

	policy   Policy
	policyBy string // the node whose policy it is
	target   int    // of the last scale; 0: there was none

	joinSeq     uint64
	joined      headcount // nodes with a pending join
	joinedGrace int       // of these, how many are inside their grace
	newcomers   int       // of these, how many are not members and not inside their grace

	holding bool                     // TimerHold runs: only a full round may complete, for nodes of an earlier control plane
	clocks  [TimerAdmit + 1]deadline // of clockKinds; waiting newcomers are announced when that of TimerAdmit is due
}

// clockKinds are the kinds of the timers by which a round waits, in the order of a snapshot.
// They are append-only.
var clockKinds = []TimerKind{TimerLastCall, TimerQuiet, TimerRegroup, TimerAdmit}

// deadline is whether a timer of the machine runs, and whether it has run out.
type deadline struct{ armed, due bool }

func (f *forming) arm(kind TimerKind, after time.Duration) {
	f.clocks[kind].armed = true
	f.out.set(Timer{Kind: kind}, after)
}

func (f *forming) disarm(kinds ...TimerKind) {
	for _, kind := range kinds {
		if f.clocks[kind].armed {
			f.out.stop(Timer{Kind: kind})
		}
		f.clocks[kind] = deadline{}
	}
}

// setPolicy has the policy of a node count. No node has a pending join.
func (f *forming) setPolicy(p Policy, by string) {
	f.policy, f.policyBy = p, by
	f.joined = headcount{segment: p.segment()}
	f.round.recount(p.segment())
}

func (f *forming) dropJoin(n *node) {
	f.uncountJoin(n)
	n.join = nil
}

// forgetJoin drops a pending join that was answered elsewhere. It has no answer here,
// so that the node can make the same request again.
func (f *forming) forgetJoin(n *node) {
	if n.join == nil {
		return
	}
	s := f.round.participantOf(n)
	f.dropJoin(n)
	f.nodes.touch(n)
	if s != nil && s.state == participantRejoined {
		f.round.set(s, participantRunning, "")
	}
}

// countJoin and uncountJoin keep the counters of pending joins. A node's place
// must not change between the two.
func (f *forming) countJoin(n *node)   { f.addJoin(n, 1) }
func (f *forming) uncountJoin(n *node) { f.addJoin(n, -1) }

func (f *forming) addJoin(n *node, by int) {
	if n.join == nil {
		return
	}
	f.joined.add(n.domain, by)
	switch {
	case n.grace:
		f.joinedGrace += by
	case f.round.participantOf(n) == nil:
		f.newcomers += by
		f.round.next.add(n.domain, by)
	}
}

// candidates returns the nodes with a pending join, members of the last round
// first and by rank, then the others in order of arrival.
func (f *forming) candidates() []*node {
	list := make([]*node, 0, f.joined.nodes)
	for _, n := range f.nodes.live {
		if n.join != nil {
			list = append(list, n)
		}
	}
	slices.SortFunc(list, func(a, b *node) int {
		return cmp.Or(cmp.Compare(f.round.priority(a), f.round.priority(b)), cmp.Compare(a.seq, b.seq))
	})
	return list
}

// seats returns how many of n nodes in whole segments a round may have: at most max, or the
// target of the last scale, and a multiple of node_unit.
func (f *forming) seats(n int) int {
	n = min(n, f.places(), f.policy.Max)
	return n - n%f.policy.NodeUnit
}

// enough returns the number of nodes at which the first round completes at once.
func (f *forming) enough() int {
	return cmp.Or(f.target, f.policy.Target, f.policy.Max)
}

// places is how many nodes a round has at most: max, or the target of the last scale.
func (f *forming) places() int {
	return cmp.Or(f.target, f.policy.Max)
}

// lack is how many more nodes min needs at least.
func (f *forming) lack() int { return f.joined.lack(f.policy.Min) }

// lackFull is how many more the target of the last scale needs; without one target, or max.
func (f *forming) lackFull() int { return f.joined.lack(f.enough()) }

// gain is how many more nodes than the running round a regroup now would give places to.
func (f *forming) gain() int {
	if f.newcomers == 0 {
		return 0
	}
	return max(0, f.seats(f.round.next.usable)-len(f.round.participants))
}

// admits reports whether the running round will regroup to take waiting nodes in.
func (f *forming) admits() bool { return !f.round.finishing() && f.gain() > 0 }

// oversized reports whether the round has more members than the target of a scale allows:
// those above it will become spares.
func (f *forming) oversized() bool {
	return f.target > 0 && len(f.round.participants) > f.target && f.round.live() > f.target && !f.round.finishing()
}

// forms reports whether pending joins are candidates of a round that is being formed now.
func (f *forming) forms() bool {
	return f.round.live() == 0 && !f.round.finishing() || f.round.tally[participantRejoined] > 0
}

// evaluate keeps the clocks that decide when a round is complete, and reports whether one is.
func (f *forming) evaluate() (complete bool) {
	switch {
	case f.round.finishing(): // guarantee 8: no node is admitted any more
		f.disarm(clockKinds...)
		return false
	case f.round.live() == 0:
		return f.evaluateFirst()
	}
	return f.evaluateRegroup()
}

// evaluateFirst follows guarantee 5: the first round, and one that no member of
// the last round lives to regroup.
func (f *forming) evaluateFirst() (complete bool) {
	f.disarm(TimerRegroup, TimerAdmit)
	if f.joined.usable < f.policy.Min || f.policy.Min == 0 {
		f.disarm(TimerLastCall, TimerQuiet)
		return false
	}
	if !f.clocks[TimerLastCall].armed {
		f.arm(TimerLastCall, f.policy.LastCallTimeout)
	}
	if !f.clocks[TimerQuiet].armed && f.policy.QuietPeriod > 0 {
		f.arm(TimerQuiet, f.policy.QuietPeriod)
	}
	return f.blocked() == blockedByNothing
}

// evaluateRegroup follows guarantees 6 and 7.
func (f *forming) evaluateRegroup() (complete bool) {
	f.disarm(TimerLastCall, TimerQuiet)
	f.evaluateAdmission()
	if f.round.tally[participantRejoined] == 0 {
		f.disarm(TimerRegroup)
		return false
	}
	if f.round.awaited() > 0 && !f.clocks[TimerRegroup].armed {
		f.arm(TimerRegroup, f.policy.RegroupTimeout)
	}
	return f.blocked() == blockedByNothing
}

// blockedBy is what keeps the round that is being formed from being complete.
type blockedBy int

const (
	blockedByNothing     blockedBy = iota
	blockedByMembers               // of the last round: they have not rejoined, and have time to
	blockedByLack                  // fewer nodes than min have joined
	blockedByConnections           // of waiting nodes: they are broken, and have time to come back
	blockedByHold                  // the control plane is new: nodes of an earlier one have time to come
	blockedByTime                  // enough have joined; more have time to come
)

// blocked decides whether the next round is complete. All texts and figures about a round that is
// being formed follow from this alone.
func (f *forming) blocked() blockedBy {
	first := f.round.live() == 0
	switch {
	case !first && f.round.awaited() > 0 && !f.clocks[TimerRegroup].due:
		return blockedByMembers
	case f.joined.usable < f.policy.Min || f.policy.Min == 0:
		return blockedByLack
	case f.joinedGrace > 0:
		return blockedByConnections
	case f.joined.usable >= f.enough():
		return blockedByNothing
	case f.holding:
		return blockedByHold
	case first && !f.clocks[TimerLastCall].due && !f.clocks[TimerQuiet].due:
		return blockedByTime
	}
	return blockedByNothing
}

// evaluateAdmission decides whether waiting newcomers are worth a regroup, and
// announces them after a quiet time.
func (f *forming) evaluateAdmission() {
	if f.gain() == 0 {
		f.disarm(TimerAdmit)
		return
	}
	if !f.clocks[TimerAdmit].armed {
		f.arm(TimerAdmit, f.policy.AdmitDelay)
	}
}

// arrived restarts the clocks that wait for quiet.
func (f *forming) arrived() {
	f.disarm(TimerQuiet)
	if admit := f.clocks[TimerAdmit]; admit.armed && !admit.due {
		f.disarm(TimerAdmit)
	}
}

// dropAwaited marks the live members that the round continues without, and names them. They learn
// it by their update and come back as waiting nodes.
func (f *forming) dropAwaited() []string {
	if f.round.awaited() == 0 {
		return nil
	}
	var names []string
	for _, s := range f.round.participants {
		if s.state != participantRunning && s.state != participantUnknown {
			continue
		}
		if n := f.nodes.live[s.node]; n != nil && s.state == participantRunning {
			n.stale = "it did not rejoin within regroup_timeout"
			f.nodes.touch(n)
		}
		f.out.note("node %s was dropped: it did not rejoin within %v", f.round.names.ofMember(s), f.policy.RegroupTimeout)
		if len(names) < maxNames {
			names = append(names, f.round.names.ofMember(s))
		}
	}
	return names
}

func (f *forming) hold(d time.Duration) {
	f.holding = true
	f.out.set(Timer{Kind: TimerHold}, d)
}

func (f *forming) stopHold() {
	if f.holding {
		f.holding = false
		f.out.stop(Timer{Kind: TimerHold})
	}
}

// holdTime is how long the hold lasts in all.
func (f *forming) holdTime() time.Duration { return f.out.running[Timer{Kind: TimerHold}].after }

// endHoldIfComplete ends the hold unless members are missing: they are all that a control
// plane waits for which knows of a round.
func (f *forming) endHoldIfComplete() {
	if f.round.tally[participantUnknown] == 0 {
		f.stopHold()
	}
}
