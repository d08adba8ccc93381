package conformance

import (
	"slices"

	r "rallypoint/core/rendezvous"
)

// drain is why a node is not admitted.
type drain struct{ by, reason string }

// most is how many directives stand at one time, and how many ids of ended ones are known.
const most = 64

// direct records a directive that is given for the first time.
func (c *Checker) direct(ev r.Direct) {
	known := slices.Contains(c.directed, ev.ID) || slices.ContainsFunc(c.directives, func(d r.Direct) bool { return d.ID == ev.ID })
	if known || ev.ID == "" || ev.Kind != r.DirectiveDrain || ev.Within < 0 || ev.For < 0 || c.ended() || len(c.directives) >= most {
		return
	}
	c.directives = append(c.directives, ev)
	if ev.Within == 0 {
		c.deadlinePassed(ev.ID)
	}
}

// endDirective takes a directive out of those that stand.
func (a *account) endDirective(id string) (d r.Direct, stood bool) {
	at := slices.IndexFunc(a.directives, func(d r.Direct) bool { return d.ID == id })
	if at < 0 {
		return d, false
	}
	d = a.directives[at]
	a.directives = slices.Delete(a.directives, at, at+1)
	a.directed = append(a.directed, id)
	a.directed = a.directed[max(0, len(a.directed)-most):]
	return d, true
}

// endDirectives ends all that stand, with the run.
func (a *account) endDirectives() {
	for len(a.directives) > 0 {
		_, _ = a.endDirective(a.directives[0].ID)
	}
}

func (c *Checker) deadlinePassed(id string) {
	d, _ := c.endDirective(id)
	for _, node := range d.Nodes {
		if _, already := c.drained[node]; !already {
			c.drained[node] = drain{r.Printable(d.By), r.Printable(d.Reason)}
		}
	}
}

// drains reports whether a node is given up because a directive drains it.
func (c *Checker) drains(ev r.Event, s *session) bool {
	_, away := c.drained[s.node]
	switch ev := ev.(type) {
	case r.TimerFired:
		return away && ev.Timer.Kind == r.TimerDirective
	case r.Direct:
		return away && ev.Within == 0
	}
	return false
}

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

// checkDirective checks that a node knows of the directive that was given last of those
// that stand.
func (c *Checker) checkDirective(s *session) {
	id, named := "", false
	if n := len(c.directives); n > 0 {
		id, named = c.directives[n-1].ID, slices.Contains(c.directives[n-1].Nodes, s.node)
	}
	if got := s.update.Directive; got.ID != id || got.Named != named {
		c.violated(7, "node %s should know of directive %q (named: %v), it was told %+v", s.node, id, named, got)
	}
}
