package conformance

import (
	"slices"
	"strings"

	r "rallypoint/core/rendezvous"
	"rallypoint/internal/pack"
	"rallypoint/internal/printable"
)

// drain is why a node is not admitted.
type drain struct {
	by, reason string
	unfit      bool // it left by its own word
	cordoned   bool // it stays until its round ends
}

// most is how many ids of ended directives are kept, and how many directives can have moved the
// deadline closer.
const most = 64

// standing is the pending directive, and its state in the running round.
type standing struct {
	r.Direct
	asked  bool // members were asked about it, or told of the step
	agreed bool // the step was told, or known to a successor
	step   int64
	held   map[*participant]bool // that have reported a step
	most   int64                 // of the steps
	saved  map[*participant]bool
	nearer int // directives that have brought its deadline nearer
}

// agreed is the key of a directive's step, whichever control plane announces it.
type agreed struct {
	id, origin string
	round      uint64
}

// kinds are the kinds that there are, from the weakest to the strongest.
var kinds = []r.DirectiveKind{r.DirectiveSave, r.DirectiveScale, r.DirectiveDrain, r.DirectiveStop}

// beside is what happens to a directive while another one is pending.
type beside int

const (
	besideRefused beside = iota
	besideJoins
	besideReplaces // or nothing stands
)

// besides applies guarantee 12's rule for a second directive.
func (c *Checker) besides(d r.Direct) beside {
	s := c.standing
	if s == nil {
		return besideReplaces
	}
	weaker := slices.Index(kinds, s.Kind)
	switch stronger := slices.Index(kinds, d.Kind); {
	case stronger > weaker:
		return besideReplaces
	case stronger < weaker || d.Target != s.Target:
		return besideRefused
	}
	nearer := d.Within > 0 && d.Within < s.Within
	if len(together(s.Nodes, d.Nodes)) > r.MaxDirectiveNodes || nearer && s.nearer == most-1 {
		return besideRefused
	}
	return besideJoins
}

// covered reports whether a stronger directive is pending that makes all nodes leave which this
// one names.
func (c *Checker) covered(d r.Direct) bool {
	s := c.standing
	if s == nil || slices.Index(kinds, d.Kind) < 0 || slices.Index(kinds, s.Kind) <= slices.Index(kinds, d.Kind) {
		return false
	}
	return s.Kind == r.DirectiveStop || !slices.ContainsFunc(d.Nodes, func(node string) bool { return !slices.Contains(s.Nodes, node) })
}

func together(a, b []string) []string {
	all := slices.Clone(a)
	for _, node := range b {
		if !slices.Contains(all, node) {
			all = append(all, node)
		}
	}
	return all
}

func (s *standing) join(d r.Direct) {
	s.Nodes = together(s.Nodes, d.Nodes)
	s.By, s.Reason = addText(s.By, ", ", d.By), addText(s.Reason, "; ", d.Reason)
	if d.For == 0 || s.For > 0 && d.For > s.For {
		s.For = d.For
	}
	if d.Within < s.Within {
		s.Within = d.Within
		s.nearer++
	}
}

// addText adds one text to another, unless one of them has the other in it.
func addText(a, between, b string) string {
	if strings.Contains(a, b) {
		return a
	}
	if strings.Contains(b, a) {
		return b
	}
	return pack.CutText(a+between+b, r.MaxNameLen)
}

// drainsNoMember reports whether a directive drains only nodes without workers.
func (c *Checker) drainsNoMember(d r.Direct) bool {
	return d.Kind == r.DirectiveDrain && !slices.ContainsFunc(d.Nodes, func(name string) bool {
		list := c.named(name)
		return len(list) == 0 || slices.ContainsFunc(list, func(s *session) bool { return c.participantOf(s) != nil })
	})
}

// usable reports whether a directive can be given to the run as it is.
func (c *Checker) usable(d r.Direct) bool {
	drains := d.Kind == r.DirectiveDrain
	gone := func(name string) bool { return len(c.named(name)) == 0 }
	switch {
	case !c.sound(d) || d.Within > r.MaxWithin || d.For > r.MaxWithin || c.ended():
		return false
	case drains != (len(d.Nodes) > 0) || len(d.Nodes) > r.MaxDirectiveNodes || !drains && d.For != 0 || slices.ContainsFunc(d.Nodes, gone):
		return false
	case d.Within == 0 && (d.Kind == r.DirectiveSave || d.Kind != r.DirectiveStop && c.finishing()):
		return false
	}
	return (d.Kind != r.DirectiveScale || c.fitting(d.Target)) && (c.drainsNoMember(d) || c.besides(d) != besideRefused)
}

// sound reports whether a directive is possible in a run of any size.
func (c *Checker) sound(d r.Direct) bool {
	return d.ID != "" && printable.Text(d.ID) == d.ID && slices.Contains(kinds, d.Kind) && d.Within >= 0 && d.For >= 0 && d.Target >= 0 && (d.Kind == r.DirectiveScale) == (d.Target > 0)
}

// fitting reports whether a round may have that many nodes.
func (c *Checker) fitting(target int) bool {
	p := c.policy
	return target > 0 && target >= p.Min && target <= p.Max && (p.NodeUnit == 0 || target%p.NodeUnit == 0) && target%c.segment() == 0
}

// direct records a directive that is given for the first time. One that is refused because
// of its size only is not known to be: there is no entry of it.
func (c *Checker) direct(ev r.Direct) {
	known := slices.Contains(c.directed, ev.ID) || c.stands(ev.ID) != nil
	if known || !c.usable(ev) {
		return
	}
	c.own = true
	c.stand(ev)
}

func (c *Checker) stand(ev r.Direct) {
	ev.By, ev.Reason = printable.Text(ev.By), printable.Text(ev.Reason)
	if c.drainsNoMember(ev) {
		c.noteEnded(ev.ID)
		c.carryOut(&standing{Direct: ev})
		return
	}
	c.place(ev)
	if ev.Within == 0 {
		c.carryOut(c.standing)
	}
}

// place makes a directive the pending one, joins it to that, or ends it.
func (c *Checker) place(d r.Direct) {
	switch c.besides(d) {
	case besideReplaces:
		c.endDirective()
		c.standing = &standing{Direct: d}
	case besideJoins:
		c.noteEnded(d.ID)
		c.standing.join(d)
	case besideRefused:
		c.noteEnded(d.ID)
	}
}

// given records a directive by a node, unless it was refused.
func (c *Checker) given(ev r.GiveDirective, effects []r.Effect) {
	s, d := c.sessions[ev.Session], ev.Directive
	if ev.Unfit {
		c.givenUnfit(s, ev, effects)
		return
	}
	if d.Kind == r.DirectiveDrain && len(d.Nodes) == 0 {
		d.Nodes = []string{s.node}
	}
	known := slices.Contains(c.directed, d.ID) || c.stands(d.ID) != nil
	usable := c.usable(d)
	refused := refusal(effects, ev.Request) != nil
	if !known && c.covered(d) {
		if refused {
			c.violated(12, "node %s gave directive %+v, which %s covers, and was refused", s.node, d, c.standing.ID)
		}
		return
	}
	if refused && (known || usable && c.succession.Term == 0) || !refused && !known && !usable {
		c.violated(12, "node %s gave directive %+v, which can stand: %v, and it was refused: %v", s.node, d, usable, refused)
	}
	if refused || drops(effects, s.id) && len(s.asked) > 1<<12 {
		return
	}
	d.By = "node " + r.MachineOf(s.node)
	c.direct(d)
}

// stands returns the pending directive if it has this id, else nil.
func (a *account) stands(id string) *standing {
	if a.standing != nil && a.standing.ID == id {
		return a.standing
	}
	return nil
}

func (a *account) endDirective() {
	if a.standing != nil {
		a.noteEnded(a.standing.ID)
		a.standing = nil
	}
}

func (a *account) noteEnded(id string) {
	a.directed = append(a.directed, id)
	a.directed = a.directed[max(0, len(a.directed)-most):]
}

// forgetSteps is for a round that is over: the next one agrees again.
func (a *account) forgetSteps() {
	if s := a.standing; s != nil {
		a.standing = &standing{Direct: s.Direct, nearer: s.nearer}
	}
}

// carryOut records the consequences of a directive whose time has come.
func (c *Checker) carryOut(d *standing) {
	c.own = true
	if d == c.standing {
		c.endDirective()
	}
	if c.finishing() && (d.Kind != r.DirectiveStop || c.live() == 0) {
		return
	}
	end := closing{kind: requeued, by: d.By, reason: d.Reason}
	switch d.Kind {
	case r.DirectiveScale:
		c.target = d.Target
		c.due[r.TimerAdmit] = c.growth() > 0
		if c.growth() > 0 || c.oversized() {
			c.endedRound = c.round
		}
	case r.DirectiveStop:
		c.close(end)
	case r.DirectiveDrain:
		if c.drainsAll(d) {
			c.close(end)
			return
		}
		for _, node := range d.Nodes {
			c.keepOut(node, drain{by: printable.Text(d.By), reason: printable.Text(d.Reason)})
			if c.byNode[node] != nil {
				c.endedRound = c.round
			}
			for _, s := range c.named(node) {
				c.leaving[s.node] = true
				if c.byNode[s.node] != nil {
					c.endedRound = c.round
				}
			}
		}
	}
}

func (c *Checker) drainsAll(d *standing) bool {
	stays := func(s *session) bool { return !s.isNamed(d.Nodes) }
	return c.live() > 0 && c.count(unknown) == 0 && !slices.ContainsFunc(c.nodes(), stays)
}

func (c *Checker) reported(s *session, generation string, round uint64, report r.DirectiveReport) {
	d, t := c.stands(report.ID), c.participantOf(s)
	if d == nil || t == nil || t.state != running || round != c.round || generation != c.origin || c.disowned() || report.Step < -1 {
		return
	}
	switch {
	case d.agreed && report.Saved:
		if d.saved == nil {
			d.saved = map[*participant]bool{}
		}
		d.saved[t] = true
	case d.asked && !d.agreed && !report.Saved && !d.held[t]:
		if d.held == nil {
			d.held, d.most = map[*participant]bool{}, -1
		}
		d.held[t], d.most = true, max(d.most, report.Step)
	}
}

// reports records the reports that a hello repeats about its node's last round.
func (c *Checker) reports(s *session, last r.LastRound) {
	for _, report := range last.Reports {
		c.reported(s, last.Generation, last.Round, report)
	}
	c.settleSaved()
}

// settleSaved carries out a directive for which all members have saved.
func (c *Checker) settleSaved() {
	if c.ended() || c.count(lost, rejoined, unknown) > 0 || c.count(running) == 0 {
		return
	}
	if d := c.standing; d != nil && d.agreed && c.every(d.saved) {
		c.carryOut(d)
	}
}

func (c *Checker) every(set map[*participant]bool) bool {
	return !slices.ContainsFunc(c.participants, func(t *participant) bool { return t.state == running && !set[t] })
}

// endGone ends a drain that the last round knew and whose nodes are all gone.
func (c *Checker) endGone() {
	if d := c.standing; d != nil && d.Kind == r.DirectiveDrain && d.asked && !slices.ContainsFunc(d.Nodes, func(name string) bool { return len(c.named(name)) > 0 }) {
		c.carryOut(d)
	}
}

// named are the live nodes of a name, which is a node's id or a host.
func (c *Checker) named(name string) []*session {
	return slices.DeleteFunc(c.nodes(), func(s *session) bool { return !s.isNamed([]string{name}) })
}

func (s *session) isNamed(names []string) bool {
	return slices.Contains(names, s.node) || s.hostName != "" && slices.Contains(names, s.hostName)
}

// keepOut records that a node is kept out. The first reason stays.
func (c *Checker) keepOut(node string, row drain) {
	if was, already := c.drained[node]; already {
		was.cordoned = was.cordoned && row.cordoned
		row = was
	}
	c.drained[node] = row
}

// cordon records that a node is kept out, and which nodes leave because of it.
func (c *Checker) cordon(ev r.Cordon) {
	if c.ended() || ev.Node == "" || printable.Text(ev.Node) != ev.Node || ev.For < 0 || ev.For > r.MaxWithin {
		return
	}
	c.own = true
	c.keepOut(ev.Node, drain{by: printable.Text(ev.By), reason: printable.Text(ev.Reason), cordoned: true})
	for _, s := range c.named(ev.Node) {
		if c.participantOf(s) == nil || s.join != nil {
			c.leaving[s.node] = true
		}
	}
}

// rowOf is why a node is kept out, by its id or its host.
func (c *Checker) rowOf(id, hostName string) (row drain, away bool) {
	if row, away = c.drained[id]; !away && hostName != "" {
		row, away = c.drained[hostName]
	}
	return row, away
}

// code is that of the refusal of a node that the row keeps out.
func (d drain) code() r.Code {
	if d.unfit {
		return r.CodeUnfit
	}
	return r.CodeGraceful
}

func (c *Checker) refusesDrained(h r.Hello, refused *r.Error) bool {
	row, away := c.rowOf(h.Node, printable.Text(h.HostName))
	if !away || row.cordoned && h.LastRound.Round > 0 {
		return false
	}
	if r.CodeOf(asError(refused)) != row.code() {
		c.violated(4, "node %s was drained, and not refused: %+v", h.Node, refused)
	}
	return true
}

// tellDirective records what a node learns about a directive, and checks that the members agree
// on one step per round.
func (c *Checker) tellDirective(v r.DirectiveNotice) {
	d := c.stands(v.ID)
	if v.Round == 0 || d == nil || v.Round != c.round {
		return
	}
	d.asked = true
	if !v.Agreed {
		return
	}
	key := agreed{v.ID, c.origin, v.Round}
	if step, known := c.steps[key]; known && step != v.Step {
		c.violated(12, "directive %s has step %d in round %d, and had %d before", v.ID, v.Step, v.Round, step)
	}
	if !d.agreed && v.Step >= 0 && (v.Step != d.most || !c.every(d.held) || c.count(unknown) > 0) {
		c.violated(12, "directive %s has step %d in round %d; of its members those that have answered are at %d at most, all have: %v", v.ID, v.Step, v.Round, d.most, c.every(d.held))
	}
	c.steps[key] = v.Step
	d.agreed, d.step = true, v.Step
}

// checkDirective checks that all nodes know the pending directive, and that only members are
// asked about it.
func (c *Checker) checkDirective() {
	var shown r.DirectiveNotice
	var first *session
	for _, s := range c.nodes() {
		v := s.update.Directive
		d := c.stands(v.ID)
		switch {
		case s.join != nil:
			continue // it learns it by its outcome
		case d != c.standing || d == nil && v != (r.DirectiveNotice{}):
			c.violated(12, "directive %+v stands, and node %s was told of %+v", c.standing, s.node, v)
			continue
		case d == nil:
			continue
		}
		named := d.Kind == r.DirectiveStop || d.Kind == r.DirectiveDrain && s.isNamed(d.Nodes)
		if v.Kind != d.Kind || v.Named != named || v.Target != d.Target || v.Within != d.Within {
			c.violated(12, "node %s was told of directive %+v, it is %+v", s.node, v, d.Direct)
		}
		if first != nil && v.ID != shown.ID {
			c.violated(12, "node %s was told of directive %s, node %s of %s", s.node, v.ID, first.node, shown.ID)
		}
		t := c.participantOf(s)
		member := t != nil && t.state == running
		if !member && (v.Round != 0 || v.Agreed) || v.Round != 0 && v.Round != c.round || v.Agreed && v.Round == 0 {
			c.violated(12, "node %s, running in round %d: %v, is asked about directive %+v", s.node, c.round, member, v)
		}
		if member && shown.Round != 0 && v.Round != shown.Round || member && first != nil && shown.Agreed && (v.Agreed != shown.Agreed || v.Step != shown.Step) {
			c.violated(12, "node %s was told of %+v, node %s of %+v", s.node, v, first.node, shown)
		}
		if first == nil || v.Round != 0 {
			first, shown = s, v
		}
	}
}
