package standby

import (
	"fmt"
	"slices"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/succession"
	"rallypoint/internal/wording"
)

// stranded is since when no host can be elected any more, as far as this process knows: so many voters are
// dead, or gone from where they listened, that those which are left are no majority.
type stranded struct {
	proven bool          // they are dead; some that are only gone may be behind a firewall
	since  time.Duration // of the vote's clock
	ticked time.Duration
	idle   time.Duration // of the time since, how long this process did not run
	place  int           // of this process among those in the same position
}

// strandedLocked lets time pass for a process that is stranded.
func (g *Group) strandedLocked() {
	v, s := &g.vote, &g.vote.stranded
	now := v.now()
	linked := func(is func(l *Link) bool) func(id succession.Voter) bool {
		return func(id succession.Voter) bool {
			for l := range g.links {
				if l.voter == id && is(l) {
					return true
				}
			}
			return false
		}
	}
	place, is, proven := v.ballot.Stranded(linked(func(l *Link) bool {
		return l.out != nil && l.word != succession.Hosts && (l.word != succession.Stands || g.hosting)
	}), linked(func(l *Link) bool { return l.refuses }))
	paused := max(0, now-s.ticked-2*g.Beat()) // nothing was heard, and a beat that is late is none
	hosted := v.ballot.Majority(now) || !g.hosting && (g.link == succession.Stands || now-v.ballot.Heard() < g.lease/4)
	s.idle += paused
	if !is || paused >= g.lease || hosted {
		s.since, s.idle = now, 0
	}
	s.ticked, s.place, s.proven = now, place, proven
}

// lasted is how long this process has run while that was so.
func (s *stranded) lasted() time.Duration { return s.ticked - s.since - s.idle }

// Stranded reports how long this process has run since no host could be elected any more, for the voters are
// dead, and for how long it waits in all before it founds another group: that is how long it looks for a
// host that was elected in the meantime.
func (g *Group) Stranded() (since, patience time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := &g.vote.stranded
	if s.proven {
		since = s.lasted()
	}
	return since, time.Duration(succession.GiveUp+s.place) * g.lease
}

// FoundAnew makes this process the founder of another group in the place of one that can elect nobody. It
// reports false unless it was stranded for long enough; why is for the log.
func (g *Group) FoundAnew(now time.Time) (why string, founded bool) {
	since, patience := g.Stranded()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.hosting || g.closed || g.self == "" || since < patience {
		return "", false
	}
	var dead []string
	for node, id := range g.vote.names {
		if node != g.node && (g.vote.ballot.ProvenDead(id)) {
			dead = append(dead, node)
		}
	}
	slices.Sort(dead)
	g.foundLocked(now)
	g.start.Alone = true
	return fmt.Sprintf("no host can be elected: %s died, the voters that are left are no majority, and nobody has hosted for %s since; this node founds the control plane anew",
		wording.Names(dead), wording.Seconds(since)), true
}

// Overtaken returns where to go, if this process hosts and is stranded for so long that it does not host
// any more: it looks for another host, as all others do.
func (g *Group) Overtaken() (to wire.Redirect, overtaken bool) {
	since, patience := g.Stranded()
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.nowhereLocked(), g.hosting && since >= patience
}

// nowhereLocked is the redirect for nodes whose host knows of no other.
func (g *Group) nowhereLocked() wire.Redirect {
	return wire.Redirect{Group: g.target.Group, Term: g.target.Term, Servers: g.servers()}
}

// Deserted returns why this process does not host any more, if its voters were silent, and nothing has listened
// for a lease where they did: whoever has succeeded it had so long to find it. "": that is not so. They are gone,
// most likely, but it is not proven that they are dead: this process founds no other group, in which it might
// run beside them.
func (g *Group) Deserted() (to wire.Redirect, why string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s, now := &g.vote.stranded, g.vote.now()
	if !g.hosting || s.proven || s.lasted() < g.lease {
		return to, ""
	}
	var gone []string
	heard := time.Duration(0)
	for l := range g.links {
		if l.refuses && g.vote.ballot.Accepted().Voters.Has(l.voter) {
			gone = append(gone, l.node)
			heard = max(heard, g.vote.ballot.Answered()[l.voter])
		}
	}
	slices.Sort(gone)
	gone = slices.Compact(gone)
	return g.nowhereLocked(), fmt.Sprintf("it has not heard %s for %s, and the addresses where they stood by refuse connections now", wording.Names(gone), wording.Seconds(now-heard))
}
