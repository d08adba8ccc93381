package rendezvous

import (
	"fmt"
	"maps"
	"slices"

	"rallypoint/internal/printable"
)

// directives are what nodes and administrators have asked of the run: the directive that
// stands, those that do not any more, and the nodes that are kept out.
type directives struct {
	out     *output
	nodes   *nodes
	round   *round   // its agreement is about the directive that stands
	forming *forming // its target is that of the last scale

	// standing is the directive that stands; nil: none does. Each TimerDirective that runs is a
	// deadline of it, its own or that of one that has joined it.
	standing   *Direct
	past       []string                // ids of the last ones that do not stand any more, at most maxRemembered
	drained    map[string]*DrainedFact // by their names: ids or hosts
	endedRound uint64                  // the last one that a drain or a scale has ended; 0: there is none

	seq     uint64         // grows with each change of what nodes learn of directives
	told    DirectiveFacts // made at that change, if its Seq is that; it is not changed
	learned uint64         // the change that the control plane before has told last
	own     bool           // directives were given, carried out or taken back here
}

// as returns the directive that stands if that is its id, else nil.
func (ds *directives) as(id string) *Direct {
	if d := ds.standing; d != nil && d.ID == id {
		return d
	}
	return nil
}

// knows reports whether a directive of that id stands or has stood, has joined another
// one, or was replaced: one that is given under it changes nothing. The last maxRemembered that
// do not stand are known.
func (ds *directives) knows(id string) bool {
	return ds.as(id) != nil || slices.Contains(ds.past, id)
}

// standsAgainst says why what stands does not let a directive stand; "" if it does.
func (ds *directives) standsAgainst(d *Direct) string {
	s := ds.standing
	switch {
	case s == nil || d.Kind.replaces(s.Kind):
	case !s.joinedBy(d):
		return fmt.Sprintf("directive %s stands%s: %s; cancel it first", s.ID, s.until(), s.describe(ds.round.names))
	case len(s.union(d)) > MaxDirectiveNodes:
		return fmt.Sprintf("directive %s would drain %d nodes with it, at most %d are possible at a time", s.ID, len(s.union(d)), MaxDirectiveNodes)
	case d.Within > 0 && d.Within < s.Within && len(ds.out.timersOf(TimerDirective)) == maxDeadlines:
		return fmt.Sprintf("directive %s has been joined by %d others already; cancel it first", s.ID, maxDeadlines-1)
	}
	return ""
}

// covered reports whether a stronger directive stands, for which the workers save and by which
// the nodes leave that this one names: a node that asks for that has what it needs.
func (ds *directives) covered(d *Direct) bool {
	s := ds.standing
	return s != nil && s.Kind.replaces(d.Kind) && !slices.ContainsFunc(d.Nodes, func(node string) bool { return !s.Kind.traits().endsRun && !slices.Contains(s.Nodes, node) })
}

// stand has a directive stand, for which standsAgainst has nothing: alone, in the place of a
// weaker one, or joined to one of its kind, whose id and agreement stay.
func (ds *directives) stand(d Direct) {
	switch s := ds.standing; {
	case s == nil:
		ds.standing = &d
	case d.Kind.replaces(s.Kind):
		ds.out.note("directive %s takes the place of directive %s, a %v", d.ID, s.ID, s.Kind)
		ds.end(s)
		ds.standing = &d
	default:
		ds.out.note("directive %s joins directive %s", d.ID, s.ID)
		ds.remember(d.ID)
		if sooner := s.join(&d); !sooner {
			d.Within = 0 // the deadline stays
		}
	}
	ds.changed()
	if d.Within > 0 {
		ds.out.set(directiveTimer(d.ID), d.Within)
	}
}

// end has nothing stand any more, and remembers the id of what did.
func (ds *directives) end(d *Direct) {
	if d != ds.standing {
		return
	}
	ds.standing, ds.round.agreement = nil, agreement{}
	ds.out.stopAll(TimerDirective)
	ds.out.stopAll(TimerAgree)
	ds.remember(d.ID)
	ds.changed()
}

func (ds *directives) remember(id string) {
	ds.past = append(ds.past, id)
	if extra := len(ds.past) - maxRemembered; extra > 0 {
		ds.past = slices.Clone(ds.past[extra:])
	}
}

func (ds *directives) cancel(ev CancelDirective) {
	if d := ds.as(ev.ID); d != nil {
		ds.own = true
		ds.end(d)
		ds.out.note("directive %s was canceled by %s: %s", ev.ID, printable.Text(ev.By), printable.Text(ev.Reason))
	}
}

// drainsNoMember reports whether a drain names nodes without workers only, such as spares: the
// workers of the round have nothing to save for it, nor to wait for.
func (ds *directives) drainsNoMember(d *Direct) bool {
	return d.Kind.NamesNodes() && !slices.ContainsFunc(d.Nodes, func(name string) bool {
		list := ds.nodes.named(name)
		return len(list) == 0 || slices.ContainsFunc(list, func(n *node) bool { return ds.round.participantOf(n) != nil })
	})
}

// drainsAll reports whether a drain names every node of a run that has a round.
func (ds *directives) drainsAll(d *Direct) bool {
	if ds.round.live() == 0 || ds.round.tally[participantUnknown] > 0 {
		return false
	}
	for _, n := range ds.nodes.live {
		if !d.names(n) {
			return false
		}
	}
	return true
}

// rowOf is why a node is kept out, by its id or its host; nil: it is not.
func (ds *directives) rowOf(id, hostName string) *DrainedFact {
	if d := ds.drained[id]; d != nil || hostName == "" {
		return d
	}
	return ds.drained[hostName]
}

// keepOut has a node refused from now on, or all nodes of a host. The reason for which a node was kept out first
// stays; the time begins again.
func (ds *directives) keepOut(row DrainedFact) {
	if was := ds.drained[row.Node]; was != nil {
		was.For, was.Cordoned = row.For, was.Cordoned && row.Cordoned
	} else {
		ds.drained[row.Node] = &row
	}
	ds.out.stop(drainedTimer(row.Node))
	if row.For > 0 {
		ds.out.set(drainedTimer(row.Node), row.For)
	}
}

func (ds *directives) undrain(node, by string) {
	if ds.drained[node] == nil {
		return
	}
	delete(ds.drained, node)
	ds.out.stop(drainedTimer(node))
	ds.own = true
	ds.changed()
	ds.out.note("node %s may come back: %s", printable.Text(node), by)
}

// expire lets a node back in whose time is over. The time of one that will leave by a drain, such
// as an unfit node whose workers save, has not begun.
func (ds *directives) expire(node string) {
	if row, d := ds.drained[node], ds.standing; row != nil && row.Cordoned && d != nil && slices.Contains(d.Nodes, node) {
		ds.out.set(drainedTimer(node), row.For)
		return
	}
	ds.undrain(node, "its time is over")
}

func (ds *directives) forgetDrained() {
	for node := range ds.drained {
		ds.out.stop(drainedTimer(node))
	}
	clear(ds.drained)
}

func directiveTimer(id string) Timer {
	return Timer{Kind: TimerDirective, Session: SessionID(id)}
}

func drainedTimer(node string) Timer { return Timer{Kind: TimerDrained, Session: SessionID(node)} }

// changed records a change of what nodes and a successor have to know of
// directives.
func (ds *directives) changed() {
	ds.seq++
	ds.told = DirectiveFacts{}
}

// facts are what a successor has to know. They are made once for each change:
// they go to every node.
func (ds *directives) facts() DirectiveFacts {
	if ds.seq == 0 {
		return DirectiveFacts{}
	}
	if ds.told.Seq != ds.seq {
		ds.told = ds.makeFacts()
	}
	return ds.told
}

func (ds *directives) makeFacts() DirectiveFacts {
	f := DirectiveFacts{Seq: ds.seq, Target: ds.forming.target, EndedRound: ds.endedRound}
	if d := ds.standing; d != nil {
		s := StandingFact{Direct: *d}
		if ds.round.agreement.phase == phaseAgreed {
			s.Round, s.Step = ds.round.number, ds.round.agreement.step
		}
		f.Standing = append(f.Standing, s)
	}
	f.Ended = slices.Clone(ds.past[max(0, len(ds.past)-maxEndedFacts):])
	for _, node := range slices.Sorted(maps.Keys(ds.drained)) {
		f.Drained = append(f.Drained, *ds.drained[node])
	}
	return f
}

// learn applies what the control plane before this one has told of directives, if it is newer than
// what is known. Directives that were given or taken back here since stand: an id that has ended
// here stays so. It reports whether it was.
func (ds *directives) learn(f DirectiveFacts) bool {
	if f.Seq <= ds.learned {
		return false
	}
	ds.learned = f.Seq
	ds.endedRound = max(ds.endedRound, f.EndedRound)
	for _, id := range f.Ended {
		if d := ds.as(id); d != nil {
			ds.end(d)
			ds.out.note("directive %s had ended at the control plane before", id)
		} else if !slices.Contains(ds.past, id) {
			ds.remember(id)
		}
	}
	for _, s := range f.Standing {
		ds.learnStanding(s)
	}
	if !ds.own {
		ds.forgetDrained()
		ds.forming.target = f.Target
	}
	for _, d := range f.Drained {
		if ds.drained[d.Node] == nil {
			d.By, d.Reason = printable.Text(d.By), printable.Text(d.Reason)
			ds.keepOut(d)
		}
	}
	ds.seq = max(ds.seq, f.Seq)
	ds.changed()
	return true
}

// learnStanding applies that a directive stood, by the rule for one that is given, and the step on
// which the members of the round have agreed: there is no second one for the round.
func (ds *directives) learnStanding(s StandingFact) {
	s.By, s.Reason = printable.Text(s.By), printable.Text(s.Reason)
	switch d := ds.as(s.ID); {
	case slices.Contains(ds.past, s.ID):
		return
	case d != nil:
		if d.join(&s.Direct) {
			ds.out.set(directiveTimer(s.ID), s.Within)
		}
	case ds.standsAgainst(&s.Direct) != "":
		ds.remember(s.ID)
		return
	default:
		ds.out.note("directive %s, of the control plane before: %s", s.ID, s.describe(ds.round.names))
		ds.stand(s.Direct)
	}
	if d := ds.as(s.ID); d != nil && s.Round == ds.round.number && s.Round > 0 && ds.round.agreement.phase != phaseAgreed {
		ds.out.stopAll(TimerAgree)
		ds.changed()
		ds.round.agreement = agreement{phase: phaseAgreed, step: s.Step}
	}
}

// forgetAgreement drops what the members of a round have said when it is over: the next one
// agrees again.
func (ds *directives) forgetAgreement() {
	if ds.round.agreement.phase != phaseWaiting {
		ds.out.stopAll(TimerAgree)
		ds.round.agreement = agreement{}
		ds.changed()
	}
}

func (ds *directives) ask(d *Direct) {
	ds.round.agreement = agreement{phase: phaseAsking, step: -1}
	ds.out.set(agreeTimer(d.ID), d.agreeTime())
	ds.changed()
}

// agree ends the agreement: the step is the one for this round, and there is no other.
func (ds *directives) agree(d *Direct, step int64) {
	ds.out.stopAll(TimerAgree)
	ds.changed()
	ds.round.agreement.phase, ds.round.agreement.step = phaseAgreed, step
	if step >= 0 {
		ds.out.note("directive %s: the workers of round %d are told at step %d", d.ID, ds.round.number, step)
	} else {
		ds.out.note("directive %s: the workers of round %d are told at once", d.ID, ds.round.number)
	}
}

// agreeTimePassed continues without an agreed step: nobody knows what a silent member's workers
// do, so that no step is the same for all.
func (ds *directives) agreeTimePassed() {
	d := ds.standing
	if d == nil || ds.round.agreement.phase != phaseAsking {
		return
	}
	ds.out.note("directive %s: no step is agreed: %v passed without an answer of %s", d.ID, d.agreeTime(), ds.round.namesWithout(&ds.round.agreement.held))
	ds.agree(d, -1)
}

func (ds *directives) report(n *node, r DirectiveReport) {
	s, d := ds.round.participantOf(n), ds.as(r.ID)
	if s == nil || s.state != participantRunning || d == nil || r.Step < -1 {
		return
	}
	switch {
	case ds.round.agreement.phase == phaseAsking && !r.Saved && !ds.round.agreement.held.contains(s.rank):
		ds.round.agreement.held.add(s.rank)
		ds.round.agreement.step = max(ds.round.agreement.step, r.Step)
	case ds.round.agreement.phase == phaseAgreed && r.Saved:
		ds.round.agreement.saved.add(s.rank)
	}
}

// notice is that directive in a node's view.
func (ds *directives) notice(n *node) DirectiveNotice {
	d := ds.standing
	if d == nil || n.ended {
		return DirectiveNotice{}
	}
	v := DirectiveNotice{ID: d.ID, Kind: d.Kind, Named: d.names(n), Text: d.describe(ds.round.names), Within: d.Within, Target: d.Target, By: d.By, Reason: d.Reason}
	s := ds.round.participantOf(n)
	if s == nil || s.state != participantRunning {
		return v
	}
	switch ds.round.agreement.phase {
	case phaseAsking:
		v.Round = ds.round.number
	case phaseAgreed:
		v.Round, v.Agreed, v.Step = ds.round.number, true, ds.round.agreement.step
	}
	return v
}

// unsaved names the nodes that have not reported that their workers have saved.
func (ds *directives) unsaved() string {
	if ds.round.agreement.phase != phaseAgreed {
		return " (no workers were told in this round)"
	}
	if names := ds.round.namesWithout(&ds.round.agreement.saved); names != "" {
		return " (no word of a save came from " + names + ")"
	}
	return ""
}

// names reports whether a directive is about a node in particular, or ends the run for all.
func (d *Direct) names(n *node) bool {
	return d.Kind.traits().endsRun || slices.Contains(d.Nodes, n.id) || n.hostName != "" && slices.Contains(d.Nodes, n.hostName)
}

func agreeTimer(id string) Timer { return Timer{Kind: TimerAgree, Session: SessionID(id)} }
