package rendezvous

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"rallypoint/internal/pack"
	"rallypoint/internal/printable"
	"rallypoint/internal/wording"
)

// DirectiveKind is what a directive asks for; the numbers are append-only.
type DirectiveKind int

// The kinds. The workers learn of each, and save, before it is carried out.
const (
	DirectiveSave  DirectiveKind = 1 // the workers save; the job goes on
	DirectiveDrain DirectiveKind = 2 // the named nodes leave; they are not admitted again for a time
	DirectiveScale DirectiveKind = 3 // the job goes on with another number of nodes
	DirectiveStop  DirectiveKind = 4 // the run ends, to be queued again
)

// kindTraits are what the kinds differ in; the zero value is of a kind that there is not.
type kindTraits struct {
	name      string
	strength  int    // of two, the stronger one stands
	does      string // what the job does, before when it does it, where that is the same for all nodes
	endsRound bool   // the workers train on in another round, or not at all
	endsRun   bool   // all nodes leave, also after the first has finished
	byNode    bool   // a node gives it about itself: on a signal, in C, alone in its job
	nodes     bool   // it names nodes, which are not admitted for a time
	target    bool   // it has a number of nodes to go on with
}

var directiveKinds = [...]kindTraits{
	DirectiveSave:  {name: "save", strength: 1, byNode: true},
	DirectiveDrain: {name: "drain", strength: 3, endsRound: true, byNode: true, nodes: true},
	DirectiveScale: {name: "scale", strength: 2, does: "it goes on with", endsRound: true, target: true},
	DirectiveStop:  {name: "stop", strength: 4, does: "it ends, to be queued again,", endsRound: true, endsRun: true, byNode: true},
}

func (d DirectiveKind) traits() kindTraits {
	if d < 0 || int(d) >= len(directiveKinds) {
		return kindTraits{}
	}
	return directiveKinds[d]
}

func (d DirectiveKind) String() string {
	if name := d.traits().name; name != "" {
		return name
	}
	return fmt.Sprintf("directive %d", int(d))
}

// EndsRound reports whether the workers are stopped for it, when they have saved.
func (d DirectiveKind) EndsRound() bool { return d.traits().endsRound }

// NamesNodes reports whether it is about the nodes that it names, and else about all.
func (d DirectiveKind) NamesNodes() bool { return d.traits().nodes }

// HasTarget reports whether it needs a number of nodes to go on with.
func (d DirectiveKind) HasTarget() bool { return d.traits().target }

// OfOneNode reports whether a node may give it about itself alone, as on a signal.
func (d DirectiveKind) OfOneNode() bool { return d.traits().byNode }

// Replaces reports whether a directive of this kind takes the place of one of another kind.
func (d DirectiveKind) Replaces(other DirectiveKind) bool {
	return d.traits().strength > other.traits().strength
}

// DirectiveKinds returns all kinds, by their numbers.
func DirectiveKinds() (kinds []DirectiveKind) {
	for kind := range directiveKinds {
		if directiveKinds[kind].name != "" {
			kinds = append(kinds, DirectiveKind(kind))
		}
	}
	return kinds
}

// Bounds of directives.
const (
	maxRemembered     = 64 // ids of directives that no longer stand
	maxDeadlines      = 64 // of the directives that have joined the one that stands
	MaxDirectiveNodes = 1024
)

// Direct gives a directive to a run (docs/decisions/0046, 0075). Its id identifies it: one that
// comes again changes nothing, also after it has ended.
type Direct struct {
	ID     string
	Kind   DirectiveKind
	Nodes  []string      // ids of those that it is about, if it is a drain
	Within time.Duration // until its deadline, from when it is applied; 0: at once
	For    time.Duration // how long a drained node is not admitted; 0: until Undrain
	By     string
	Reason string
	At     time.Time // wall clock, for display only
	Target int       `json:",omitzero"` // of a scale: the number of nodes to go on with
}

// GiveDirective is a Direct by a node of the run: it says who it is by (By), and drains that
// node itself if it names none. The answer is an error that says why the directive cannot
// stand; one that is known already, or adds nothing to a stronger one that stands, is answered
// as if it were given.
type GiveDirective struct {
	Request
	Directive Direct

	// Unfit says of a drain that a check has found this node unfit (docs/decisions/0131): it is kept
	// out by its own word, from now on, if the others can go on without it. Within 0: its workers
	// have ended, and it leaves by itself.
	Unfit bool `json:",omitzero"`
}

func (GiveDirective) event() {}

// CancelDirective takes back a directive that has not been carried out.
type CancelDirective struct {
	ID     string
	By     string
	Reason string
}

// Undrain admits a drained node again.
type Undrain struct {
	Node   string
	By     string
	Reason string
}

// Cordon keeps a node out, by its id or its host, which need not be here: it is refused, and a
// node without workers leaves. Members whose workers run stay until their round ends.
type Cordon struct {
	Node   string
	For    time.Duration // 0: until Undrain
	By     string
	Reason string
}

func (Cordon) event()          {}
func (Direct) event()          {}
func (CancelDirective) event() {}
func (Undrain) event()         {}

// directive is the one that stands. Each TimerDirective that runs is a deadline of it, its own
// or that of one that has joined it.
type directive struct {
	Direct
	text string // what it asks for; made for the first notice
}

// describe says what a directive asks for.
func (d *Direct) describe() string {
	text := d.Kind.String()
	switch {
	case d.Kind.NamesNodes():
		names, more := d.Nodes, ""
		if len(names) > maxNames {
			names, more = names[:maxNames], fmt.Sprintf(" and %d more", len(d.Nodes)-maxNames)
		}
		text += " " + strings.Join(names, ", ") + more
	case d.Kind.HasTarget():
		text += " to " + wording.Count(d.Target, "node", "nodes")
	}
	if d.Within > 0 {
		text += fmt.Sprintf(" within %v", d.Within)
	}
	return text + ", asked for by " + d.By + ": " + d.Reason
}

// names reports whether a directive is about a node in particular, or ends the run for all.
func (d *Direct) names(n *node) bool {
	return d.Kind.traits().endsRun || slices.Contains(d.Nodes, n.id) || n.hostName != "" && slices.Contains(d.Nodes, n.hostName)
}

// sound reports whether a directive can stand in some run.
func (d *Direct) sound() bool {
	return d.ID != "" && printable.Text(d.ID) == d.ID && d.Kind.traits().name != "" && d.Within >= 0 && d.For >= 0 && d.Target >= 0 && d.Kind.HasTarget() == (d.Target > 0)
}

// giveDirective is for a node that gives a directive.
func (m *Machine) giveDirective(n *node, ev GiveDirective) {
	d := ev.Directive
	d.By = "node " + n.id
	if ev.Unfit {
		m.drainUnfit(n, ev.Number, d)
		return
	}
	if d.Kind.NamesNodes() && len(d.Nodes) == 0 {
		d.Nodes = []string{n.id}
	}
	if !m.directives.knows(d.ID) && !m.directives.covered(&d) { // else it is answered as if it were given
		if err := m.directiveRefusal(d); err != nil {
			m.nodes.fail(n, ev.Number, err)
			return
		}
		m.direct(d)
	}
	m.nodes.answer(n, ev.Number, nil)
}

// directiveRefusal says why a directive that is not known yet cannot be given to the run as it
// is, by a node or by an administrator; nil if it can.
func (m *Machine) directiveRefusal(d Direct) *Error {
	if err := m.misfit(d); err != nil {
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

// direct gives the run a directive that directiveRefusal lets pass.
func (m *Machine) direct(ev Direct) {
	ev.By, ev.Reason = printable.Text(ev.By), printable.Text(ev.Reason)
	ev.Nodes = slices.Clone(ev.Nodes)
	for i, node := range ev.Nodes {
		ev.Nodes[i] = printable.Text(node)
	}
	m.directives.own = true
	m.out.note("directive %s: %s", ev.ID, ev.describe())
	if m.directives.drainsNoMember(&ev) {
		m.directives.remember(ev.ID)
		m.carryOut(&directive{Direct: ev}, "at once")
		return
	}
	m.directives.stand(ev)
	if ev.Within == 0 {
		m.carryOut(m.directives.standing, "at once")
	}
}

// joinedBy reports whether another directive asks for nothing that this one cannot do with it.
func (d *Direct) joinedBy(other *Direct) bool {
	return other.Kind == d.Kind && other.Target == d.Target
}

// join adds another directive to this one: the nodes of both, the longer time for which they are
// not admitted, the nearer deadline. It reports whether that may be the other's.
func (d *directive) join(other *Direct) (sooner bool) {
	d.Nodes, d.text = d.union(other), ""
	d.By, d.Reason = both(d.By, other.By, ", "), both(d.Reason, other.Reason, "; ")
	if d.For > 0 && (other.For == 0 || other.For > d.For) {
		d.For = other.For
	}
	if other.Within >= d.Within {
		return false
	}
	end := d.At.Add(d.Within)
	if nearer := other.At.Add(other.Within); nearer.Before(end) {
		end = nearer
	}
	d.Within, d.At = other.Within, end.Add(-other.Within)
	return true
}

// union returns the nodes of both.
func (d *Direct) union(other *Direct) []string {
	nodes := slices.Clone(d.Nodes)
	for _, node := range other.Nodes {
		if !slices.Contains(nodes, node) {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// both returns two texts as one; a text that is part of the other adds nothing.
func both(a, b, between string) string {
	switch {
	case strings.Contains(a, b):
		return a
	case strings.Contains(b, a):
		return b
	}
	return pack.CutText(a+between+b, MaxNameLen)
}

// until says when a directive is carried out at the latest, by the clock of whoever gave it.
func (d *Direct) until() string {
	if d.At.IsZero() {
		return ""
	}
	return " until " + d.At.Add(d.Within).UTC().Format("2006-01-02 15:04:05 UTC")
}

// misfit says why a directive cannot stand in this run, whatever its nodes are; nil if it can.
func (m *Machine) misfit(d Direct) *Error {
	p := m.forming.policy
	switch {
	case d.ID == "":
		return Errorf(CodeInvalid, "a directive without an id")
	case m.closed != nil:
		return Errorf(CodeClosed, "it is closed: it %s", m.closed.sentence())
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
	}
	return m.directiveTooMuch(d)
}

// deadlinePassed carries out the directive that stands, also if some have not saved.
func (m *Machine) deadlinePassed() {
	if d := m.directives.standing; d != nil {
		m.carryOut(d, "at its deadline"+m.directives.unsaved())
	}
}

// carryOut does what a directive asks for, and ends it.
func (m *Machine) carryOut(d *directive, why string) {
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
		m.out.note("directive %s is carried out, %s: the run goes on with %s", d.ID, why, wording.Count(d.Target, "node", "nodes"))
		if m.forming.oversized() {
			m.directives.endedRound = m.round.number
		}
		if m.forming.gain() > 0 { // the workers have saved: what they train until a quiet time has passed, the next round trains again
			m.directives.endedRound = m.round.number
			m.out.stop(Timer{Kind: TimerAdmit})
			m.forming.admit = deadline{armed: true, due: true}
		}
	case DirectiveStop:
		m.out.note("directive %s is carried out, %s", d.ID, why)
		m.close(Closing{Kind: ClosedRequeue, By: d.By, Reason: d.Reason})
	}
}

// drain has the named nodes leave. If no other node is there the run ends, to be queued
// again: its nodes would otherwise leave a run that waits for others until they give up.
func (m *Machine) drain(d *directive, why string) {
	m.out.note("directive %s is carried out, %s", d.ID, why)
	if m.directives.drainsAll(d) {
		m.close(Closing{Kind: ClosedRequeue, By: d.By, Reason: d.Reason})
		return
	}
	for _, node := range d.Nodes {
		m.directives.keepOut(node, drained{by: d.By, reason: d.Reason, away: d.For})
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
func (m *Machine) cordonRefusal(ev Cordon) *Error {
	switch {
	case m.closed != nil:
		return Errorf(CodeClosed, "run %q is closed: it %s", m.runID, m.closed.sentence())
	case ev.Node == "" || printable.Text(ev.Node) != ev.Node:
		return Errorf(CodeInvalid, "run %q: %q is no name of a node", m.runID, ev.Node)
	case ev.For < 0 || ev.For > MaxWithin:
		return Errorf(CodeInvalid, "run %q: a node is cordoned for %v, it must be between 0 (until it is uncordoned) and %v", m.runID, ev.For, MaxWithin)
	}
	f := m.directives.makeFacts()
	f.Drained = append(f.Drained, cordonRow(ev).fact(ev.Node))
	if err := m.tooMuchToTell(f); err != nil {
		return Errorf(err.Code, "run %q: %s", m.runID, err.Text)
	}
	return nil
}

func cordonRow(ev Cordon) *drained {
	return &drained{by: printable.Text(ev.By), reason: printable.Text(ev.Reason), away: ev.For, cordoned: true}
}

// cordon keeps a node out that cordonRefusal lets pass, and says what that does.
func (m *Machine) cordon(ev Cordon) string {
	row := cordonRow(ev)
	m.directives.keepOut(ev.Node, *row)
	m.directives.own = true
	m.directives.changed()
	m.out.note("node %s was cordoned by %s: %s", ev.Node, row.by, row.reason)
	stay := 0
	for _, n := range m.nodes.named(ev.Node) {
		if s := m.round.participantOf(n); s != nil && n.join == nil {
			stay++
			continue
		}
		m.lose(n, "cordoned by "+row.by+": "+row.reason)
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
func (m *Machine) drainedError(node string, d *drained) *Error {
	code, how := CodeGraceful, "it was drained by "+d.by
	switch {
	case d.cause != CauseAdmin:
		code, how = CodeUnfit, d.by+" left it as unfit"
	case d.cordoned:
		how = "it was cordoned by " + d.by
	}
	return Errorf(code, "run %q goes on without node %s: %s: %s; `rallypoint admin undrain` admits it again", m.runID, node, how, d.reason)
}

// DirectiveStatus is a standing directive.
type DirectiveStatus struct {
	ID     string
	Kind   string
	Nodes  []string
	Within time.Duration
	By     string
	Reason string
	At     time.Time
	Target int // of a scale

	Phase   DirectivePhase
	Round   uint64   // whose members are asked or have agreed; 0 while it waits
	Step    int64    // that they agreed on; -1: none, the workers get it at once
	Members int      // running ones of the round
	Saved   int      // of these, whose workers have saved
	Missing []string // some of those that have not said yet what the phase waits for
}

// DirectivePhase is how far a directive is in the running round.
type DirectivePhase string

// The phases.
const (
	DirectiveWaiting  DirectivePhase = "waiting"  // for a round
	DirectiveAgreeing DirectivePhase = "agreeing" // the members say at which step their workers are held
	DirectiveAgreed   DirectivePhase = "agreed"   // the workers get it, at the step if there is one
)

// DrainedStatus is a node that is not admitted.
type DrainedStatus struct {
	Node, By, Reason string
	Cause            DrainCause
	Cordoned         bool
}
