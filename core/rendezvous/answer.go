package rendezvous

import (
	"fmt"
	"slices"

	"rallypoint/internal/printable"
	"rallypoint/internal/wording"
)

func (m *Machine) request(ev Event) {
	var a Answer
	switch ev := ev.(type) {
	case Evict:
		was := m.Status()
		ids := m.nodes.ids([]string{ev.Node})
		if len(ids) == 0 {
			_, a.Err = findNode(&was, ev.Node)
			break
		}
		who, were := nodeTexts(&was, ids), "was"
		if len(ids) > 1 {
			were = "were"
		}
		a.Text = fmt.Sprintf("%s %s evicted from run %q", who, were, m.runID)
		m.evict(ev)
	case Direct:
		m.out.emit(m.requestDirective(ev))
		return
	case CancelDirective:
		if a.Err = m.directives.cancelRefusal(ev.ID); a.Err == nil {
			a.Text = fmt.Sprintf("directive %s of run %q is canceled", ev.ID, m.runID)
			m.directives.cancel(ev)
		}
	case Cordon:
		if a.Err = m.directives.cordonRefusal(ev); a.Err == nil {
			a.Text = m.cordon(ev)
		}
	case Undrain:
		was := m.Status()
		if a.Text, a.Err = undrainText(&was, ev.Node); a.Err == nil {
			m.directives.undrain(ev.Node, "undrained by "+printable.Text(ev.By)+": "+printable.Text(ev.Reason))
		}
	case Forget:
		if a.Err = m.nodes.forgettable(); a.Err == nil {
			a.Text = fmt.Sprintf("run %q is forgotten: the next node begins it again", m.runID)
			m.forgetClosed(ev)
		}
	case CloseRun:
		was := m.Census()
		m.closeRun(ev)
		a.Text = m.closedAnswer(was, ev.Stop)
		m.out.emit(Answer{Text: a.Text, Changed: m.Census().Ended != was.Ended})
		return
	}
	a.Changed = a.Err == nil
	m.out.emit(a)
}

// requestDirective gives a directive of an administrator. One that was given before is answered
// by what has become of it: its first answer may have been lost.
func (m *Machine) requestDirective(d Direct) Answer {
	if m.directives.knows(d.ID) {
		now := "is over, or has joined another one; a new directive needs a new id"
		if m.directives.as(d.ID) != nil {
			now = "stands"
		}
		return Answer{Text: fmt.Sprintf("nothing to do: directive %s of run %q was given before, and %s", d.ID, m.runID, now)}
	}
	if err := m.directiveRefusal(d); err != nil {
		return Answer{Err: err}
	}
	was := m.Status()
	about := d
	about.Nodes = m.nodes.ids(d.Nodes)
	text := directiveText(&was, about)
	if s := m.directives.standing; s != nil && !m.directives.drainsNoMember(&d) {
		does := "joins"
		if d.Kind.replaces(s.Kind) {
			does = "takes the place of"
		}
		text += fmt.Sprintf("; it %s directive %s, a %v", does, s.ID, s.Kind)
	}
	m.direct(d)
	return Answer{Text: text, Changed: true}
}

func (ds *directives) cancelRefusal(id string) *Error {
	if ds.as(id) != nil {
		return nil
	}
	var ids []string
	if d := ds.standing; d != nil {
		ids = []string{d.ID}
	}
	return Errorf(CodeInvalid, "no directive %q of run %q stands; %s", id, ds.round.run.runID, listed(ids, "standing"))
}

func directiveText(was *Status, d Direct) string {
	begin := fmt.Sprintf("directive %s of run %q: ", d.ID, was.RunID)
	when := "now"
	if d.Within > 0 {
		when = fmt.Sprintf("when all have saved, in %v at the latest", d.Within)
	}
	switch {
	case !d.Kind.EndsRound():
		done := fmt.Sprintf("its workers save, within %v", d.Within)
		if !slices.ContainsFunc(was.Members, func(m MemberStatus) bool { return m.State == "running" }) {
			done += "; none run now, those of the next round do if it begins by then"
		}
		return begin + done
	case finished(was) != "" && !d.Kind.traits().endsRun:
		return begin + fmt.Sprintf("its workers save, within %v, and nothing more: %s", d.Within, endsAsItIs(was))
	case d.Kind.NamesNodes():
		return drainText(was, d)
	}
	does := d.Kind.traits().does
	if d.Kind.HasTarget() {
		does += " " + wording.Count(d.Target, "node", "nodes")
	}
	return begin + does + " " + when
}

// undrainText says what becomes of a request to let a drained node join again.
func undrainText(was *Status, node string) (string, *Error) {
	ids := make([]string, 0, len(was.Drained))
	for _, d := range was.Drained {
		if d.Node == node {
			return fmt.Sprintf("node %s may join run %q again", node, was.RunID), nil
		}
		ids = append(ids, d.Node)
	}
	for _, d := range was.Directives {
		if slices.Contains(d.Nodes, node) {
			return "", Errorf(CodeInvalid, "node %q of run %q is not drained yet; directive %s is to drain it: cancel that", node, was.RunID, d.ID)
		}
	}
	return "", Errorf(CodeInvalid, "node %q of run %q is not drained; %s", node, was.RunID, listed(ids, "drained"))
}

// listed lists names under what they are.
func listed(names []string, what string) string {
	if len(names) == 0 {
		return "none is " + what
	}
	return what + ": " + wording.Names(names)
}

func drainText(was *Status, d Direct) string {
	who, verb := nodeTexts(was, d.Nodes), "leaves"
	if len(d.Nodes) > 1 {
		verb = "leave"
	}
	when := "now"
	isMember := func(m MemberStatus) bool { return m.Session != "" && slices.Contains(d.Nodes, m.Node) }
	if d.Within > 0 && slices.ContainsFunc(was.Members, isMember) {
		when = fmt.Sprintf("when all have saved, in %v at the latest", d.Within)
	}
	done := fmt.Sprintf("directive %s of run %q: %s %s %s", d.ID, was.RunID, who, verb, when)
	if d.For > 0 {
		done += fmt.Sprintf(", and may come back %v later", d.For)
	} else {
		done += ", and may come back when it is undrained"
	}
	left, members := headcount{segment: was.Nodes.Segment}, 0
	for _, m := range was.Members {
		if m.State == "lost" {
			continue
		}
		members++
		if !slices.Contains(d.Nodes, m.Node) {
			left.add(m.Topology, 1)
		}
	}
	for _, j := range was.Waiting {
		if j.Role != RoleMember && !slices.Contains(d.Nodes, j.Node) {
			left.add(j.Topology, 1)
		}
	}
	switch {
	case left.nodes == 0 && members == 0:
		done += "; no other node is left: the next nodes to join begin the job"
	case left.nodes == 0:
		done += "; no other node is left, so the run then ends and should be queued again"
	case left.usable < was.Nodes.Min:
		done += fmt.Sprintf("; the others are too few then (%d of at least %d) and wait for replacements", left.usable, was.Nodes.Min)
	}
	return done
}

// closedAnswer says what closing the run did, which was like that before.
func (m *Machine) closedAnswer(was Census, stop bool) string {
	if m.Census().Ended == was.Ended {
		return fmt.Sprintf("nothing to do: run %q was closed already: it %s", m.runID, m.closed.sentence())
	}
	refused := was.Waiting + was.Spare + was.Rejoined
	running := was.Running + was.Unknown
	done := fmt.Sprintf("run %q is closed: no more nodes join it", m.runID)
	if stop {
		done = fmt.Sprintf("run %q is closed as failed", m.runID)
	}
	switch {
	case running > 0 && stop:
		done += fmt.Sprintf("; its %s of round %d must stop", wording.Count(running, "node", "nodes"), was.Round)
	case running > 0:
		done += fmt.Sprintf("; round %d continues with %s", was.Round, wording.Count(running, "node", "nodes"))
	}
	if refused > 0 {
		done += fmt.Sprintf("; %s refused", wording.Count(refused, "node that waited was", "nodes that waited were"))
	}
	return done
}
