package rendezvous

import (
	"fmt"
	"slices"

	"rallypoint/internal/pack"
	"rallypoint/internal/printable"
	"rallypoint/internal/wording"
)

// giveDirective is for a node that gives a directive. The error says why it cannot stand.
func (m *Machine) giveDirective(n *node, d Direct) *Error {
	d.By = "node " + m.names.of(n.id)
	if d.Kind.NamesNodes() && len(d.Nodes) == 0 {
		d.Nodes = []string{n.id}
	}
	if !m.directives.knows(d.ID) && !m.directives.covered(&d) { // else it is answered as if it were given
		if err := m.directiveRefusal(d); err != nil {
			return err
		}
		m.direct(d)
	}
	return nil
}

// directiveRefusal says why a directive that is not known yet cannot be given to the run as it
// is, by a node or by an administrator; nil if it can.
func (m *Machine) directiveRefusal(d Direct) *Error {
	if err := m.directives.misfit(d); err != nil {
		return Errorf(err.Code, "run %q: %s", m.runID, err.Text)
	}
	for _, node := range d.Nodes {
		if len(m.nodes.named(node)) == 0 {
			was := m.Status()
			_, err := findNode(&was, node)
			return err
		}
	}
	if text := m.directives.standsAgainst(&d); text != "" && !m.directives.drainsNoMember(&d) {
		return Errorf(CodeInvalid, "run %q: %s", m.runID, text)
	}
	if d.Within == 0 && !d.Kind.traits().endsRun && m.round.finishing() {
		was := m.Status()
		return Errorf(CodeInvalid, "run %q: a %v would do nothing: %s", m.runID, d.Kind, endsAsItIs(&was))
	}
	return nil
}

// misfit says why a directive cannot stand in this run, whatever its nodes are; nil if it can.
func (ds *directives) misfit(d Direct) *Error {
	p := ds.forming.policy
	switch {
	case d.ID == "":
		return Errorf(CodeInvalid, "a directive without an id")
	case ds.round.run.closed != nil:
		return Errorf(CodeClosed, "it is closed: it %s", ds.round.run.closed.sentence())
	case d.Within < 0 || d.Within > MaxWithin:
		return Errorf(CodeInvalid, "the deadline is in %v, it must be between 0 and %v from now", d.Within, MaxWithin)
	case d.Kind.traits().name == "":
		return Errorf(CodeInvalid, "directive %q, a %v, cannot be given", d.ID, d.Kind)
	case !d.Kind.EndsRound() && d.Within == 0:
		return Errorf(CodeInvalid, "a %v needs time: give it a deadline after now", d.Kind)
	case !d.Kind.NamesNodes() && len(d.Nodes) > 0:
		return Errorf(CodeInvalid, "a %v is about all nodes, it names none", d.Kind)
	case !d.Kind.NamesNodes() && d.For != 0:
		return Errorf(CodeInvalid, "only a drained node is not admitted for a time, a %v has none", d.Kind)
	case d.Kind.NamesNodes() && (len(d.Nodes) == 0 || len(d.Nodes) > MaxDirectiveNodes):
		return Errorf(CodeInvalid, "a %v names 1 to %d nodes, not %d", d.Kind, MaxDirectiveNodes, len(d.Nodes))
	case d.For < 0 || d.For > MaxWithin:
		return Errorf(CodeInvalid, "a node is drained for %v, it must be between 0 (until it is undrained) and %v", d.For, MaxWithin)
	case !d.Kind.HasTarget() && d.Target != 0:
		return Errorf(CodeInvalid, "a %v has no target", d.Kind)
	case d.Kind.HasTarget() && d.Target <= 0:
		return Errorf(CodeInvalid, "a %v needs a target above 0, not %d", d.Kind, d.Target)
	case !d.sound():
		return Errorf(CodeInvalid, "directive %q, a %v, cannot be given", d.ID, d.Kind)
	case d.Kind.HasTarget() && p.Max == 0:
		return Errorf(CodeInvalid, "no node has come yet, so that there is no minimum and maximum to scale between")
	case d.Kind.HasTarget() && d.Target < p.Min:
		return Errorf(CodeInvalid, "the target is %d, the run needs at least %s (min)", d.Target, wording.Count(p.Min, "node", "nodes"))
	case d.Kind.HasTarget() && d.Target > p.Max:
		return Errorf(CodeInvalid, "the target is %d, the run takes at most %s (max)", d.Target, wording.Count(p.Max, "node", "nodes"))
	case d.Kind.HasTarget() && d.Target%p.NodeUnit != 0:
		return Errorf(CodeInvalid, "the target is %d, it must be a multiple of node_unit (%d)", d.Target, p.NodeUnit)
	case d.Kind.HasTarget() && d.Target%p.segment() != 0:
		return Errorf(CodeInvalid, "the target is %d, it must be a multiple of segment (%d)", d.Target, p.Segment)
	}
	return ds.directiveTooMuch(d)
}

// directiveTooMuch refuses a directive with which the facts would grow out of bounds.
func (ds *directives) directiveTooMuch(d Direct) *Error {
	f := ds.makeFacts()
	f.Standing = append(f.Standing, StandingFact{Direct: d})
	for _, s := range f.Standing { // nodes that will be drained
		if !s.Kind.NamesNodes() {
			continue
		}
		for _, node := range s.Nodes {
			f.Drained = append(f.Drained, DrainedFact{Node: node, By: s.By, Reason: s.Reason, For: s.For})
		}
	}
	return ds.tooMuchToTell(f)
}

// tooMuchToTell refuses facts out of bounds: what they tell must not be lost with the control
// plane's host.
func (ds *directives) tooMuchToTell(f DirectiveFacts) *Error {
	if !ds.round.run.succession.canBeSucceeded() {
		return nil
	}
	f.Ended, f.Seq = nil, ds.seq+1
	if size := len(pack.Append(nil, func(p *pack.Packer) { f.code(pack.Coder{Out: p}) })); size > maxDirectiveFacts {
		return Errorf(CodeTooLarge, "with it, the run's directives and drained nodes would have %d bytes; a control plane in a node's process hands at most %d on to "+
			"its next host: name fewer nodes at a time, undrain some, give a shorter reason, or meet at `rallypoint serve`", size, maxDirectiveFacts)
	}
	return nil
}

// direct gives the run a directive that directiveRefusal lets pass.
func (m *Machine) direct(ev Direct) {
	ev.By, ev.Reason = printable.Text(ev.By), printable.Text(ev.Reason)
	ev.Nodes = slices.Clone(ev.Nodes)
	for i, node := range ev.Nodes {
		ev.Nodes[i] = printable.Text(node)
	}
	m.directives.own = true
	m.out.note("directive %s: %s", ev.ID, ev.describe(m.names))
	if m.directives.drainsNoMember(&ev) {
		m.directives.remember(ev.ID)
		m.carryOut(&ev, "at once")
		return
	}
	m.directives.stand(ev)
	if ev.Within == 0 {
		m.carryOut(m.directives.standing, "at once")
	}
}

// canAgree reports whether the round can agree on a directive: its members run, and none of
// them is about to stop its workers.
func (r *round) canAgree() bool {
	return r.run.closed == nil && r.stop == nil && r.overtaken == "" && r.tally[participantRunning] > 0
}

// settleDirective does what follows from the reports: it asks the members of a round that can
// agree, ends the agreement, and carries the directive out when all have saved.
func (m *Machine) settleDirective() {
	d := m.directives.standing
	if d == nil {
		return
	}
	switch canAgree := m.round.canAgree(); {
	case m.round.allSaved():
		m.carryOut(d, "all have saved")
	case m.round.agreement.phase == phaseWaiting && canAgree:
		m.directives.ask(d)
	case m.round.agreement.phase == phaseAsking && !canAgree:
		m.round.agreement.phase = phaseGivenUp
		m.out.stopAll(TimerAgree)
		m.directives.changed()
	case m.round.agreement.phase == phaseAsking && m.round.all(&m.round.agreement.held):
		m.directives.agree(d, m.round.agreement.step)
	}
}

func (ds *directives) noteReport(n *node, ev ReportDirective) {
	if ev.Round == ds.round.number && ev.Generation == ds.round.origin && !ds.round.disowned() {
		ds.report(n, DirectiveReport{ID: ev.ID, Step: ev.Step, Saved: ev.Saved})
	}
}

// applyReports records what the node of a hello says that it has reported in its last round.
func (ds *directives) applyReports(n *node, c LastRound) {
	if c.Round != ds.round.number || c.Generation != ds.round.origin || ds.round.disowned() {
		return
	}
	if d := ds.standing; d != nil && ds.round.agreement.phase == phaseWaiting && ds.round.canAgree() {
		ds.ask(d) // the first member that comes to a successor answers what it has not asked yet
	}
	for _, r := range c.Reports {
		ds.report(n, r)
	}
}

// deadlinePassed carries out the directive that stands, also if some have not saved.
func (m *Machine) deadlinePassed() {
	if d := m.directives.standing; d != nil {
		m.carryOut(d, "at its deadline"+m.directives.unsaved())
	}
}

// carryOut does what a directive asks for, and ends it.
func (m *Machine) carryOut(d *Direct, why string) {
	m.directives.own = true
	m.directives.end(d)
	defer m.directives.changed()
	if m.round.finishing() && (!d.Kind.traits().endsRun || m.round.live() == 0) {
		// No node takes the place of another any more, and one that leaves fails the job; one
		// that all have finished is not to be queued again.
		if d.Kind.EndsRound() {
			m.out.note("directive %s is over and not carried out: the job is about to end, a member has finished", d.ID)
		}
		return
	}
	switch d.Kind {
	case DirectiveSave:
		m.out.note("directive %s is over, %s", d.ID, why)
	case DirectiveDrain:
		m.drain(d, why)
	case DirectiveScale:
		m.forming.target = d.Target
		m.out.note("directive %s is carried out, %s: the run continues with %s", d.ID, why, wording.Count(d.Target, "node", "nodes"))
		if m.forming.oversized() {
			m.directives.endedRound = m.round.number
		}
		if m.forming.gain() > 0 { // the workers have saved: what they train until a quiet time has passed, the next round trains again
			m.directives.endedRound = m.round.number
			m.out.stop(Timer{Kind: TimerAdmit})
			m.forming.clocks[TimerAdmit] = deadline{armed: true, due: true}
		}
	case DirectiveStop:
		m.out.note("directive %s is carried out, %s", d.ID, why)
		m.close(Closing{Kind: ClosedRequeue, By: d.By, Reason: d.Reason})
	}
}

// drain has the named nodes leave. If there is no other node the run ends, to be queued again: its
// nodes would otherwise leave a run that waits for others until they give up.
func (m *Machine) drain(d *Direct, why string) {
	m.out.note("directive %s is carried out, %s", d.ID, why)
	if m.directives.drainsAll(d) {
		m.close(Closing{Kind: ClosedRequeue, By: d.By, Reason: d.Reason})
		return
	}
	for _, node := range d.Nodes {
		m.directives.keepOut(DrainedFact{Node: node, By: d.By, Reason: d.Reason, For: d.For})
		if m.round.byNode[node] != nil {
			m.directives.endedRound = m.round.number
		}
		for _, n := range m.nodes.named(node) {
			if m.round.byNode[n.id] != nil {
				m.directives.endedRound = m.round.number
			}
			m.lose(n, "drained by "+d.By+": "+d.Reason)
		}
	}
}

// endGone carries out a drain that a round has heard of and whose nodes are all gone: the next
// round has nothing to ask its members for.
func (m *Machine) endGone() {
	d := m.directives.standing
	if d == nil || !d.Kind.NamesNodes() || m.round.agreement.phase == phaseWaiting {
		return
	}
	if !slices.ContainsFunc(d.Nodes, func(node string) bool { return len(m.nodes.named(node)) > 0 }) {
		m.carryOut(d, "its nodes are gone")
	}
}

// cordonRefusal says why a node cannot be cordoned; nil if it can.
func (ds *directives) cordonRefusal(ev Cordon) *Error {
	switch {
	case ds.round.run.closed != nil:
		return Errorf(CodeClosed, "run %q is closed: it %s", ds.round.run.runID, ds.round.run.closed.sentence())
	case ev.Node == "" || printable.Text(ev.Node) != ev.Node:
		return Errorf(CodeInvalid, "run %q: %q is no name of a node", ds.round.run.runID, ev.Node)
	case ev.For < 0 || ev.For > MaxWithin:
		return Errorf(CodeInvalid, "run %q: a node is cordoned for %v, it must be between 0 (until it is uncordoned) and %v", ds.round.run.runID, ev.For, MaxWithin)
	}
	f := ds.makeFacts()
	f.Drained = append(f.Drained, cordonRow(ev))
	if err := ds.tooMuchToTell(f); err != nil {
		return Errorf(err.Code, "run %q: %s", ds.round.run.runID, err.Text)
	}
	return nil
}

func cordonRow(ev Cordon) DrainedFact {
	return DrainedFact{Node: ev.Node, By: printable.Text(ev.By), Reason: printable.Text(ev.Reason), For: ev.For, Cordoned: true}
}

// cordon keeps a node out that cordonRefusal lets pass, and says what that does.
func (m *Machine) cordon(ev Cordon) string {
	row := cordonRow(ev)
	m.directives.keepOut(row)
	m.directives.own = true
	m.directives.changed()
	m.out.note("node %s was cordoned by %s: %s", ev.Node, row.By, row.Reason)
	stay := 0
	for _, n := range m.nodes.named(ev.Node) {
		if s := m.round.participantOf(n); s != nil && n.join == nil {
			stay++
			continue
		}
		m.lose(n, "cordoned by "+row.By+": "+row.Reason)
	}
	text := fmt.Sprintf("node %s is kept out of run %q", ev.Node, m.runID)
	if ev.For > 0 {
		text += fmt.Sprintf(" for %v", ev.For)
	} else {
		text += " until it is uncordoned"
	}
	if stay > 0 {
		text += fmt.Sprintf("; %s until the round ends", wording.Count(stay, "node of it runs workers and stays", "nodes of it run workers and stay"))
	}
	return text
}

// drainedError refuses a node that is kept out: with CodeUnfit if it left by its own word.
func (ds *directives) drainedError(node string, d *DrainedFact) *Error {
	code, how := CodeGraceful, "it was drained by "+d.By
	switch {
	case d.Cause != CauseAdmin:
		code, how = CodeUnfit, d.By+" left it as unfit"
	case d.Cordoned:
		how = "it was cordoned by " + d.By
	}
	return Errorf(code, "run %q continues without node %s: %s: %s; `rallypoint admin undrain` admits it again", ds.round.run.runID, node, how, d.Reason)
}
