package conformance

import (
	"slices"

	r "rallypoint/core/rendezvous"
	"rallypoint/internal/printable"
)

// drain is why a node is not admitted.
type drain struct{ by, reason string }

// most is how many directives stand at one time, and how many ids of ended ones are known.
const most = 64

// standing is a directive that stands, and what is known of it in the running round.
type standing struct {
	r.Direct
	asked  bool // members were asked about it, or told of the step
	agreed bool // the step was told, or known to a successor
	step   int64
	held   map[*participant]bool // that have reported a step
	most   int64                 // of the steps
	saved  map[*participant]bool
}

// agreed is what a directive's step is known by, whatever control plane tells it.
type agreed struct {
	id, origin string
	round      uint64
}

// kinds are the kinds that there are.
var kinds = []r.DirectiveKind{r.DirectiveSave, r.DirectiveDrain, r.DirectiveScale, r.DirectiveStop}

// usable reports whether a directive can be given to the run as it is.
func (c *Checker) usable(d r.Direct) bool {
	drains := d.Kind == r.DirectiveDrain
	gone := func(node string) bool { return c.nodeOf(node) == nil }
	switch {
	case !c.sound(d) || d.Within > r.MaxWithin || d.For > r.MaxWithin || c.ended() || len(c.directives) >= most:
		return false
	case drains != (len(d.Nodes) > 0) || len(d.Nodes) > r.MaxDirectiveNodes || !drains && d.For != 0 || slices.ContainsFunc(d.Nodes, gone):
		return false
	case d.Within == 0 && (d.Kind == r.DirectiveSave || d.Kind != r.DirectiveStop && c.finishing()):
		return false
	}
	return d.Kind != r.DirectiveScale || c.fitting(d.Target)
}

// sound reports whether a directive can stand in a run of any size.
func (c *Checker) sound(d r.Direct) bool {
	return d.ID != "" && printable.Text(d.ID) == d.ID && slices.Contains(kinds, d.Kind) && d.Within >= 0 && d.For >= 0 && d.Target >= 0 && (d.Kind == r.DirectiveScale) == (d.Target > 0)
}

// fitting reports whether a round may have that many nodes.
func (c *Checker) fitting(target int) bool {
	p := c.policy
	return target > 0 && target >= p.Min && target <= p.Max && (p.NodeUnit == 0 || target%p.NodeUnit == 0)
}

// direct records a directive that is given for the first time. One that is refused because
// of its size only is not known to be: there is no entry of it.
func (c *Checker) direct(ev r.Direct) {
	known := slices.Contains(c.directed, ev.ID) || c.stands(ev.ID) != nil
	if known || !c.usable(ev) {
		return
	}
	d := &standing{Direct: ev}
	c.directives, c.own = append(c.directives, d), true
	concerns := func(node string) bool {
		s := c.nodeOf(node)
		return s == nil || c.participantOf(s) != nil
	}
	if ev.Within == 0 || ev.Kind == r.DirectiveDrain && !slices.ContainsFunc(ev.Nodes, concerns) {
		c.carryOut(d)
	}
}

// given records a directive by a node, unless it was refused.
func (c *Checker) given(ev r.GiveDirective, effects []r.Effect) {
	s, d := c.sessions[ev.Session], ev.Directive
	if d.Kind == r.DirectiveDrain && len(d.Nodes) == 0 {
		d.Nodes = []string{s.node}
	}
	known := slices.Contains(c.directed, d.ID) || c.stands(d.ID) != nil
	usable := c.usable(d)
	refused := refuses(effects, ev.Request)
	if refused && (known || usable && c.succession.Term == 0) || !refused && !known && !usable {
		c.violated(12, "node %s gave directive %+v, which can stand: %v, and it was refused: %v", s.node, d, usable, refused)
	}
	if refused || drops(effects, s.id) && len(s.asked) > 1<<12 {
		return
	}
	d.By = "node " + s.node
	c.direct(d)
}

func (a *account) stands(id string) *standing {
	if i := slices.IndexFunc(a.directives, func(d *standing) bool { return d.ID == id }); i >= 0 {
		return a.directives[i]
	}
	return nil
}

// endDirective takes a directive out of those that stand.
func (a *account) endDirective(id string) {
	if a.stands(id) == nil {
		return
	}
	a.directives = slices.DeleteFunc(a.directives, func(d *standing) bool { return d.ID == id })
	a.noteEnded(id)
}

func (a *account) noteEnded(id string) {
	a.directed = append(a.directed, id)
	a.directed = a.directed[max(0, len(a.directed)-most):]
}

// endDirectives ends all that stand, with the run.
func (a *account) endDirectives() {
	for len(a.directives) > 0 {
		a.endDirective(a.directives[0].ID)
	}
}

// forgetSteps is for a round that is over: the next one agrees again.
func (a *account) forgetSteps() {
	for _, d := range a.directives {
		*d = standing{Direct: d.Direct}
	}
}

// carryOut records what follows from a directive whose time has come.
func (c *Checker) carryOut(d *standing) {
	c.own = true
	c.endDirective(d.ID)
	if c.finishing() && (d.Kind != r.DirectiveStop || c.live() == 0) {
		return
	}
	end := closing{requeued, d.By, d.Reason}
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
			if _, already := c.drained[node]; !already {
				c.drained[node] = drain{printable.Text(d.By), printable.Text(d.Reason)}
			}
			c.leaving[node] = true
			if c.byNode[node] != nil {
				c.endedRound = c.round
			}
		}
	}
}

func (c *Checker) drainsAll(d *standing) bool {
	if c.live() == 0 || c.count(unknown) > 0 {
		return false
	}
	for _, s := range c.nodes() {
		if !slices.Contains(d.Nodes, s.node) {
			return false
		}
	}
	return true
}

// reported records what a member says of a directive.
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

// reports records what the node of a hello says again of its last round.
func (c *Checker) reports(s *session, last r.LastRound) {
	for _, report := range last.Reports {
		c.reported(s, last.Generation, last.Round, report)
	}
	c.settleSaved()
}

// settleSaved carries out the directives for which all members have saved.
func (c *Checker) settleSaved() {
	if c.ended() || c.count(lost, rejoined, unknown) > 0 || c.count(running) == 0 {
		return
	}
	for _, d := range slices.Clone(c.directives) {
		if d.agreed && c.every(d.saved) && c.stands(d.ID) != nil {
			c.carryOut(d)
			c.settleSaved()
			return
		}
	}
}

// every reports whether all running members are in a set.
func (c *Checker) every(set map[*participant]bool) bool {
	for _, t := range c.participants {
		if t.state == running && !set[t] {
			return false
		}
	}
	return true
}

// endGone ends drains of which the last round was told and whose nodes are all gone.
func (c *Checker) endGone() {
	for _, d := range slices.Clone(c.directives) {
		if d.Kind == r.DirectiveDrain && d.asked && !slices.ContainsFunc(d.Nodes, func(node string) bool { return c.nodeOf(node) != nil }) {
			c.carryOut(d)
		}
	}
}

// drains reports whether a node is given up because a directive drains it at this event.
func (c *Checker) drains(s *session) bool { return c.leaving[s.node] }

// refusesDrained checks that a drained node is refused.
func (c *Checker) refusesDrained(h r.Hello, refused *r.Error) bool {
	if _, away := c.drained[h.Node]; !away {
		return false
	}
	if r.CodeOf(asError(refused)) != r.CodeGraceful {
		c.violated(4, "node %s was drained, and not refused: %+v", h.Node, refused)
	}
	return true
}

// tellDirective records what a node learns of a directive, and checks that its members
// agree on one step a round.
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

// checkDirectives checks that all nodes know of the same directive, one that stands, if any
// does; and that members and no others are asked about it.
func (c *Checker) checkDirectives() {
	var shown r.DirectiveNotice
	var first *session
	for _, s := range c.nodes() {
		v := s.update.Directive
		d := c.stands(v.ID)
		switch {
		case s.join != nil:
			continue // it learns it by its outcome
		case (d == nil) != (len(c.directives) == 0) || d == nil && v != (r.DirectiveNotice{}):
			c.violated(12, "%d directives stand, and node %s was told of %+v", len(c.directives), s.node, v)
			continue
		case d == nil:
			continue
		}
		named := d.Kind == r.DirectiveStop || d.Kind == r.DirectiveDrain && slices.Contains(d.Nodes, s.node)
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
