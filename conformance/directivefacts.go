package conformance

import (
	"maps"
	"slices"
	"strings"
	"time"

	r "rallypoint/core/rendezvous"
	"rallypoint/internal/printable"
)

// Limits of the directives in facts.
const (
	mostEnded = 16
	longest   = 10 * 365 * 24 * time.Hour
)

// possibleDirectives reports whether a run can have directives as facts say.
func (c *Checker) possibleDirectives(f r.Facts) bool {
	list := f.Directives
	ids := map[string]bool{}
	for _, d := range list.Standing {
		round := d.Round == 0 || d.Round == f.Round
		if ids[d.ID] || !c.sound(d.Direct) || !round || d.Step < -1 || d.Within > longest || d.For > longest {
			return false
		}
		ids[d.ID] = true
	}
	for _, d := range list.Drained {
		if d.For < 0 || d.For > longest {
			return false
		}
	}
	return len(list.Standing) <= most && len(list.Ended) <= mostEnded && list.Target >= 0 && list.Target <= c.policy.Max && list.Seq <= mostAdopted && list.EndedRound <= f.Round
}

// learnDirectives records the previous control plane's facts about directives, unless they are
// already known. Directives that have ended here since stay ended.
func (c *Checker) learnDirectives(f r.DirectiveFacts) {
	if f.Seq <= c.learned {
		return
	}
	c.learned = f.Seq
	c.endedRound = max(c.endedRound, f.EndedRound)
	for _, id := range f.Ended {
		if c.stands(id) != nil {
			c.endDirective()
		} else if !slices.Contains(c.directed, id) {
			c.noteEnded(id)
		}
	}
	for _, told := range f.Standing {
		switch told.By, told.Reason = machines(printable.Text(told.By)), printable.Text(told.Reason); {
		case c.ended() || slices.Contains(c.directed, told.ID):
			continue
		case c.stands(told.ID) != nil:
			c.standing.join(told.Direct)
		default:
			c.place(told.Direct)
		}
		if d := c.stands(told.ID); d != nil && told.Round > 0 && told.Round == c.round && !d.agreed {
			d.asked, d.agreed, d.step = true, true, told.Step
		}
	}
	if !c.own {
		clear(c.drained)
		c.target = f.Target
	}
	for _, d := range f.Drained {
		if _, already := c.drained[d.Node]; !already {
			c.drained[d.Node] = drain{machines(printable.Text(d.By)), printable.Text(d.Reason), d.Cause != r.CauseAdmin, d.Cordoned}
		}
	}
}

// machines is who asked for something, of nodes their machines: a text has the id where two nodes
// share one, and all texts of older histories do.
func machines(by string) string {
	who := strings.Split(by, ", ")
	for i, name := range who {
		if id, isNode := strings.CutPrefix(name, "node "); isNode {
			who[i] = "node " + r.MachineOf(id)
		}
	}
	return strings.Join(who, ", ")
}

// checkDirectiveFacts checks that a node was told all facts about directives that a successor
// needs, if there can be one.
func (c *Checker) checkDirectiveFacts(s *session) {
	f := s.update.Facts.Directives
	if c.succession.Term == 0 || f.Seq == 0 && c.standing == nil && len(c.directed)+len(c.drained) == 0 && c.target == 0 {
		return
	}
	told, want := map[string]r.StandingFact{}, map[string]r.StandingFact{}
	for _, d := range f.Standing {
		told[d.ID] = r.StandingFact{Direct: r.Direct{ID: d.ID, Kind: d.Kind}, Round: d.Round, Step: d.Step}
	}
	if d := c.standing; d != nil {
		fact := r.StandingFact{Direct: r.Direct{ID: d.ID, Kind: d.Kind}}
		if d.agreed {
			fact.Round, fact.Step = c.round, d.step
		}
		want[d.ID] = fact
	}
	if !maps.EqualFunc(told, want, func(a, b r.StandingFact) bool {
		return a.ID == b.ID && a.Kind == b.Kind && a.Round == b.Round && a.Step == b.Step
	}) || f.Target != c.target {
		c.violated(12, "node %s was told of the directives %+v and the target %d, they are %+v and %d", s.node, told, f.Target, want, c.target)
	}
	if ended := c.directed[max(0, len(c.directed)-mostEnded):]; !slices.Equal(f.Ended, ended) {
		c.violated(12, "node %s was told that the directives %q have ended, these have: %q", s.node, f.Ended, ended)
	}
	names := map[string]drain{}
	for _, d := range f.Drained {
		names[d.Node] = drain{machines(d.By), d.Reason, d.Cause != r.CauseAdmin, d.Cordoned}
	}
	if !maps.Equal(names, c.drained) {
		c.violated(12, "node %s was told that %v are drained, these are: %v", s.node, names, c.drained)
	}
}
