package conformance

import (
	"fmt"
	"slices"
	"strings"

	r "rallypoint/core/rendezvous"
	"rallypoint/internal/printable"
)

// announceStop records the first announced stop of the running round. A node that leaves
// is a member of it no more.
func (c *Checker) announceStop(ev r.AnnounceStop, effects []r.Effect) {
	s := c.sessions[ev.Session]
	t, stays := c.participantOf(s), refusal(effects, ev.Request) != nil
	if stays && ev.Away == 0 {
		c.violated(7, "node %s announced %+v, and was refused", s.node, ev)
	}
	if t == nil || t.state != running || ev.Round != c.round || ev.Generation != c.origin || c.disowned() {
		if ev.Away != 0 && !stays {
			c.violated(7, "node %s left as unfit, by %+v, and runs no workers", s.node, ev)
		}
		return
	}
	if ev.Away != 0 && !stays {
		c.leavesUnfit(s, ev)
	}
	ev.Leaving = ev.Leaving || ev.Away != 0 && !stays
	if c.stop.Round == 0 {
		reason := printable.Text(ev.Reason)
		if stays {
			reason += "; " + strings.TrimPrefix(refusal(effects, ev.Request).Text, fmt.Sprintf("run %q: ", c.runID))
		}
		c.stop = r.RoundStop{Round: c.round, Rank: t.rank, Leaving: ev.Leaving, Reason: reason}
	}
	if ev.Leaving {
		t.state = lost
	}
}

// ownWordShare is the inverse of the share of a run's nodes that may be out at their own request.
const ownWordShare = 8

// leavesUnfit checks that a node may leave by its own word because its workers keep failing, and
// records that it is out: nothing else can have been the cause of its failure.
func (c *Checker) leavesUnfit(s *session, ev r.AnnounceStop) {
	if c.stop.Round != 0 || c.count(lost) > 0 || c.overtaken {
		c.violated(7, "node %s left as unfit; the stop %+v was known, %d nodes lost, the round overtaken %v", s.node, c.stop, c.count(lost), c.overtaken)
	}
	c.ownWord(s)
	c.keepOut(c.ownKey(s), drain{by: "node " + r.MachineOf(s.node), reason: printable.Text(ev.Reason), unfit: true})
}

// ownWord checks that a node may be kept out by its own word: enough others stay, and few are out
// so, also if all of them say it at once.
func (c *Checker) ownWord(s *session) {
	out, others := 0, []string{} // their domains
	for _, d := range c.drained {
		if d.unfit {
			out++
		}
	}
	for _, other := range c.nodes() {
		if other != s && !c.isOut(other) {
			others = append(others, other.domain)
		}
	}
	if out >= max(1, c.policy.Max/ownWordShare) {
		c.violated(4, "node %s left as unfit, the %dth of a run of %d nodes", s.node, out+1, c.policy.Max)
	}
	if left := c.inSegments(others); left < c.policy.Min {
		c.violated(4, "node %s left as unfit, with %d others of at least %d", s.node, left, c.policy.Min)
	}
	if c.ended() || c.finishing() {
		c.violated(7, "node %s left as unfit; the run ended %v or finishing %v", s.node, c.ended(), c.finishing())
	}
	c.own = true
}

// isOut reports whether a live node is kept out once its round ends.
func (c *Checker) isOut(s *session) bool {
	_, away := c.rowOf(s.node, s.hostName)
	return away
}

func (c *Checker) ownKey(s *session) string {
	others := slices.DeleteFunc(c.named(s.hostName), func(other *session) bool { return other == s }) // s may have left
	if s.hostName == "" || len(others) > 0 {
		return s.node
	}
	return s.hostName
}

// givenUnfit records the drain of a node that a check has found unfit, unless it was refused. It is
// out from then on, and stays while its workers save.
func (c *Checker) givenUnfit(s *session, ev r.GiveDirective, effects []r.Effect) {
	d, refused := ev.Directive, refusal(effects, ev.Request) != nil
	if c.isOut(s) || slices.Contains(c.directed, d.ID) || c.stands(d.ID) != nil {
		if refused {
			c.violated(12, "node %s is unfit, by %+v, is out already, and was refused", s.node, d)
		}
		return
	}
	if refused {
		return
	}
	c.ownWord(s)
	d.Nodes, d.By = []string{c.ownKey(s)}, "node "+r.MachineOf(s.node)
	t := c.participantOf(s)
	runs := d.Within > 0 && t != nil && t.state == running && !c.covered(d)
	if runs && !c.usable(d) {
		c.violated(12, "node %s is drained as unfit, by %+v, which cannot stand", s.node, d)
	}
	c.keepOut(d.Nodes[0], drain{by: d.By, reason: printable.Text(d.Reason), unfit: true, cordoned: runs})
	if runs {
		c.direct(d)
	} else if s.join != nil {
		if refusal(effects, s.join.Request) == nil {
			c.violated(4, "node %s is unfit, by %+v, and still joins", s.node, d)
		}
		c.unjoin(s)
	}
}

// checkStop checks that members whose workers may run know the stop of their round, and that
// other nodes know of none.
func (c *Checker) checkStop(s *session) {
	var want r.RoundStop
	if t := c.participantOf(s); t != nil && t.state == running && c.stop.Round > 0 {
		want = c.stop
		want.Lost = c.count(lost) > 0 || c.overtaken
	}
	if s.update.Stop != want {
		c.violated(7, "node %s should know of the announced stop %+v, it was told %+v", s.node, want, s.update.Stop)
	}
}
