package standby

import (
	"fmt"
	"slices"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/election/raft"
	"rallypoint/core/succession"
	"rallypoint/internal/wording"
)

// recovery is what a process knows when no leader can be elected any more: so many voters are gone that those
// which are left are no majority. One that is gone has ended its connection, or is silent, and its
// address refuses, or another process answers there.
//
// If that has held for half a lease, and the process has heard a leader since it was needed, or within half a lease
// before, or newcomers have come to it since, it may begin another cluster, whose first round leaves a
// gap. It is needed where the other voters that are left are no majority without it, nor will be by a change of voters
// to which it has agreed. The next one in the list of voters waits for half a lease longer. A process that
// nobody reaches may be cut off itself by a firewall that refuses in everybody's name: it waits for four leases.
// Where the leader was not heard, the others may have gone on without it, and have ended: it begins nothing.
type recovery struct {
	needed   time.Duration // since when the others decide nothing without this process; 0: they may
	lasted   time.Duration // for how long this process has run since no leader can be elected any more
	last     time.Duration // when a leader, or a majority, was heard last
	resumed  time.Duration // when it was heard first after a silence
	heardAt  time.Duration // when it was heard last, and had said so then
	ticked   time.Duration
	paused   time.Duration // before that, how long this process did not run: it was stopped, perhaps, and has not read what came meanwhile
	place    int           // of this process among those in the same position
	newcomer time.Duration // when a node last came that has not followed this group; 0: none has
	reached  time.Duration // when any other last came, or a voter that is connected was last heard
}

// Came notes that another node says hello. A newcomer has followed no leader of this group.
func (g *Group) Came(newcomer bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s, now := &g.vote.recovery, max(g.vote.now(), 1)
	if s.reached = now; newcomer {
		s.newcomer = now
	}
}

// recoverLocked lets time pass for a process that hears of no leader.
func (g *Group) recoverLocked() {
	v, s := &g.vote, &g.vote.recovery
	now := v.now()
	linked := func(id raft.Voter, is func(l *Link) bool) bool {
		return g.anyLink(func(l *Link) bool { return l.voter == id && is(l) }) != nil
	}
	gone := func(id raft.Voter) bool {
		return v.node.ProvenDead(id) || linked(id, func(l *Link) bool { return l.refuses })
	}
	voters := v.node.Voters()
	lives, others, place := []raft.Voter{v.voter}, []raft.Voter(nil), 0
	for _, id := range voters.All() {
		if id == v.voter {
			place = len(lives) - 1
			continue
		}
		if gone(id) {
			continue
		}
		others = append(others, id)
		if linked(id, func(l *Link) bool {
			if l.out != nil { // it may be silent for a while before it counts as gone
				s.reached = max(s.reached, l.heard)
			}
			return l.out != nil && l.state != succession.Leads && (l.state != succession.Follows || g.hosting)
		}) {
			lives = append(lives, id)
		}
	}
	heard := g.majorityLocked()
	if s.last > 0 && heard-s.last > g.lease/4 {
		s.resumed = heard
	}
	if s.last = heard; heard-s.resumed >= g.lease/4 { // what is read first after a silence, or a pause, was said before
		s.heardAt = heard
	}
	left := slices.DeleteFunc(v.node.MayVote(), func(id raft.Voter) bool { return id == v.voter || gone(id) })
	if v.node.MayDecide(left) {
		s.needed = 0
	} else if s.needed == 0 {
		s.needed = max(now, 1)
	}
	elapsed := now - s.ticked
	s.paused = max(0, elapsed-2*g.Beat()) // nothing was heard, and a beat that is late is none
	hosted := v.node.Majority(now) || !g.hosting && (g.link == succession.Follows || now-v.node.Heard() < g.lease/4)
	unknown := len(lives) <= len(others)
	if !v.node.Votes() || unknown || voters.Majority(lives) || s.paused >= g.lease || hosted {
		s.lasted = 0
	} else {
		s.lasted += elapsed - s.paused
	}
	s.ticked, s.place = now, place
}

// majorityLocked is when this process last had a majority, or heard one that had.
func (g *Group) majorityLocked() time.Duration {
	if g.hosting {
		return g.vote.node.HeardByMajority(g.vote.now())
	}
	return g.vote.node.Heard()
}

// mayBegin reports whether this process may begin another cluster, once patience is over. A newcomer may say hello a
// moment before its machine, which was dark, refuses for the first time.
func (s *recovery) mayBegin(lease time.Duration) bool {
	return s.needed > 0 && (s.heardAt >= s.needed-lease/2 || s.newcomer > 0 && s.newcomer > s.needed-lease)
}

// Stranded reports how long this process has run since no leader could be elected any more, and for how long
// it waits in all before it founds another group; 0: it founds none.
func (g *Group) Stranded() (since, patience time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.strandedLocked()
}

func (g *Group) strandedLocked() (since, patience time.Duration) {
	s := &g.vote.recovery
	if !s.mayBegin(g.lease) {
		return s.lasted, 0
	}
	if s.reached < s.needed || s.ticked-s.reached > g.lease {
		return s.lasted, succession.GiveUp * g.lease
	}
	return s.lasted, time.Duration(1+s.place) * g.lease / 2
}

// MayFound reports whether the rule of recovery allows this process to found another group.
func (g *Group) MayFound() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mayFoundLocked()
}

func (g *Group) mayFoundLocked() bool {
	since, patience := g.strandedLocked()
	return !g.hosting && !g.closed && (g.self != "" || len(g.listening) > 0) && patience > 0 && since >= patience
}

// FoundAnew makes this process the founder of another group in the place of one that can elect nobody, if it may.
// why is for the log. Its caller is the one that makes this process host.
func (g *Group) FoundAnew(now time.Time) (why string, founded bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.mayFoundLocked() {
		return "", false
	}
	since, _ := g.strandedLocked()
	gone := g.goneLocked()
	g.foundLocked(now)
	g.target.Group = yieldsFirst + g.target.Group
	g.start.Alone = true
	return fmt.Sprintf("no leader can be elected: %s died, the voters that are left are no majority, and nobody has led for %s since; this node founds the control plane anew, and leaves a gap in the numbers of rounds",
		wording.Names(gone), wording.Seconds(since)), true
}

// yieldsFirst begins the names of groups that were founded anew: of two groups in one term that have a round each, the
// one with the earlier name yields (succession.Yields), and a drawn name is later.
const yieldsFirst = "0-"

// goneLocked are the nodes of the voters that are gone.
func (g *Group) goneLocked() (nodes []string) {
	for node, id := range g.vote.names {
		if node != g.node && g.vote.node.Voters().Has(id) && g.vote.node.ProvenDead(id) {
			nodes = append(nodes, node)
		}
	}
	for l := range g.links {
		if l.refuses && g.vote.node.Voters().Has(l.voter) {
			nodes = append(nodes, l.node)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// nowhereLocked is the redirect for nodes whose host knows of no other.
func (g *Group) nowhereLocked() wire.Redirect {
	return wire.Redirect{Group: g.target.Group, Term: g.target.Term, Servers: g.servers()}
}

// Deserted returns why this process does not lead any more, if its voters are gone for half a lease, and raft has had
// it step down, or its memory is of no use: it looks for another leader, as all others do, whose hellos then show it
// that it is not the one that is cut off. "": that is not so.
func (g *Group) Deserted() (to wire.Redirect, why string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	since, _ := g.strandedLocked()
	switch _, leads := g.vote.node.Leads(); {
	case !g.hosting:
		return to, ""
	case g.vote.node.Lost():
		return g.nowhereLocked(), "its memory of the vote is of no use any more"
	case leads, since < g.lease/2:
		return to, ""
	}
	return g.nowhereLocked(), fmt.Sprintf("no majority has heard it for %s, and the addresses where %s stood by refuse connections now, or others answer there", wording.Seconds(g.vote.now()-g.majorityLocked()), wording.Names(g.goneLocked()))
}
