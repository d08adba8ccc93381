package standby

import (
	"slices"
	"testing"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/election/raft"
	"rallypoint/core/succession"
)

// others are the votes of the processes at the other ends of a group's links, by node.
type others struct {
	g     *Group
	nodes map[string]*raft.Node
	links map[string]*Link
	lose  func() bool // what would reach the group's process now is lost; nil: nothing is
}

// votersOf gives each link whose other end has a voter's name its vote.
func votersOf(g *Group, links map[string]*Link) *others {
	o := &others{g: g, nodes: map[string]*raft.Node{}, links: links}
	for node, l := range links {
		o.nodes[node] = raft.New(l.voter, g.lease, g.vote.now(), nil)
	}
	return o
}

// carry delivers what all say, and what follows.
func (o *others) carry() {
	for again := true; again; {
		again = false
		for node, n := range o.nodes {
			box := o.links[node].out.(*inbox)
			frames := box.frames
			box.frames = nil
			for _, f := range frames {
				if v, ok := f.(wire.Vote); ok && v.To == o.links[node].voter {
					again = true
					n.Receive(v.Message, o.g.vote.now())
				}
			}
			for _, m := range n.Messages() {
				if m.To == o.g.vote.voter && (o.lose == nil || !o.lose()) {
					again = true
					o.g.HearVote(o.links[node], wire.Vote{Group: o.g.groupLocked(), Message: m})
				}
				for other, to := range o.nodes {
					if m.To == o.links[other].voter {
						again = true
						to.Receive(m, o.g.vote.now())
					}
				}
			}
		}
	}
}

// lead makes a node's process the leader of a cluster in which the group's process votes, and others.
func (o *others) lead(t *testing.T, node string, term uint64, value []byte, also ...raft.Voter) {
	t.Helper()
	n := o.nodes[node]
	id := o.links[node].voter
	n.Begin("cluster of "+node, term-1, []raft.Voter{id}, value, o.g.vote.now())
	n.SetVoters(append([]raft.Voter{id, o.g.vote.voter}, also...), o.g.vote.now())
	o.carry()
	for range 3 { // the voters are changed once those that are added have answered
		n.Tick(o.g.vote.now())
		o.carry()
	}
	if !o.g.Votes() {
		t.Fatalf("the process does not vote: %+v", o.g.vote.node.Voters())
	}
}

// Ended notes that a connection is gone, without attempts to open another one.
func (g *Group) Ended(l *Link, state succession.State) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.endedLocked(l, state)
}

// pass lets time pass in which this process runs.
func pass(g *Group, d time.Duration) {
	for ; d > 0; d -= g.Beat() {
		g.vote.origin -= g.Beat()
		g.tick()
	}
}

// TestDeposedHostKnowsOfVoters: a host that wakes, and steps down before another host that is gone by then, still knows
// that others vote: it gives the run up where all refuse, and does not wait for a host that is started again.
func TestDeposedHostKnowsOfVoters(t *testing.T) {
	g := NewGroup("run", "a", 10*time.Second, false)
	g.SetSelf("10.0.0.1:1", "")
	g.Found(time.Now())
	linkTo(g, "b", "a", "c")
	linkTo(g, "c", "a", "b")
	if g.SetEligible([]string{"b", "c"}); !g.HasVoters() {
		t.Fatal("no voters")
	}
	to := wire.Redirect{Group: g.Current().Group, Term: 2, Host: "10.0.0.2:1", Node: "b"}
	if !g.StepDown(to) || !g.HasVoters() {
		t.Error("it forgets that others vote")
	}
	if g.Follow(wire.Welcome{Group: to.Group, Term: 2, HostNode: "b"}, to.Host); g.HasVoters() {
		t.Error("the next host may have none")
	}
}

// TestVotersDialLater: in a job's first beat a standby dials those before it and the host nobody, as if
// nobody voted.
func TestVotersDialLater(t *testing.T) {
	list := []wire.StandbyNode{{Node: "a", Addr: "10.0.0.1:1"}, {Node: "b", Addr: "10.0.0.2:1"}, {Node: "c", Addr: "10.0.0.3:1"}}
	host := NewGroup("run", "h", time.Hour, false)
	host.Found(time.Now())
	standby := NewGroup("run", "b", time.Hour, false)
	standby.SetSelf(list[1].Addr, "")
	for _, g := range []*Group{host, standby} {
		g.tick() // nobody is listed yet
		g.SetList(list)
	}
	if first, then := host.Wanted(), standby.Wanted(); len(first) != 0 || !slices.Equal(then, list[:1]) {
		t.Errorf("at once the host dials %v, the standby %v", first, then)
	}
	changed := standby.Changed()
	host.tick()
	standby.tick()
	<-changed
	if first, then := host.Wanted(), standby.Wanted(); !slices.Equal(first, list) || !slices.Equal(then, []wire.StandbyNode{list[0], list[2]}) {
		t.Errorf("after a beat the host dials %v, the standby %v", first, then)
	}
}

// TestVotersCampaignInTurn: once the leader is proven dead the first voter of the list campaigns at once, and the next one
// a beat later if it hears the first.
func TestVotersCampaignInTurn(t *testing.T) {
	for _, dead := range []bool{false, true} {
		g, voters := voterOf(t, "a", "c")
		if dead {
			delete(voters.nodes, "a")
			g.Ended(voters.links["a"], succession.Dead)
		}
		box := voters.links["c"].out.(*inbox)
		asked := func() bool {
			return slices.ContainsFunc(box.frames, func(f wire.Frame) bool { _, is := f.(wire.Vote); return is })
		}
		voters.carry()
		g.Ended(voters.links["h"], succession.Dead)
		if asked() != dead {
			t.Errorf("the first is dead: %v, and the second campaigns at once: %v", dead, asked())
		}
		if pass(g, g.Beat()); !asked() {
			t.Errorf("the first is dead: %v, and the second does not campaign", dead)
		}
	}
}
