package standby

import (
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/election/raft"
	"rallypoint/core/succession"
)

// voterOf is the view of a voter that has lost its host, h, beside which others vote.
func voterOf(t *testing.T, beside ...string) (*Group, *others) {
	t.Helper()
	g := standing(t)
	links := map[string]*Link{}
	for _, node := range append([]string{"h"}, beside...) {
		links[node] = g.Dial(node)
		g.Opened(links[node], &inbox{})
		g.Hear(links[node], wire.Liveness{RunID: "run", Group: "g", Node: node, Voter: node, State: uint64(succession.Follows), Term: 3})
	}
	var also []raft.Voter
	for _, node := range beside {
		also = append(also, links[node].voter)
	}
	voters := votersOf(g, links)
	voters.lead(t, "h", 3, nil, also...)
	g.Lost(proof, "g", 3)
	return g, voters
}

// founds reports whether a process that others reach founds a group within six leases; heard is called each beat.
func founds(g *Group, heard func()) (founded bool) {
	for range 6 * g.lease / g.Beat() {
		g.Came(false)
		heard()
		pass(g, g.Beat())
		if _, now := g.FoundAnew(time.Now()); now {
			founded = true
		}
	}
	return founded
}

// TestFoundAnew: a voter whose two fellows are gone founds another group, if it had heard their leader shortly before, or
// a newcomer comes: after half a lease where it is reached by others, and after four where it may itself be
// cut off. It founds none while one of the two lives, or because it was stopped itself for so long.
func TestFoundAnew(t *testing.T) {
	const lease = 10 * time.Second
	for _, c := range []struct {
		what     string
		before   time.Duration // the leader is silent, until its process is proven dead
		came     bool          // another node says hello
		newcomer bool
		after    time.Duration // 0: it founds none
	}{
		{"two that are killed", time.Second, false, false, 4 * lease},
		{"two that are killed, and others are left", time.Second, true, false, lease / 2},
		{"two that were silent for long", lease, true, false, 0},
		{"two that were silent for long, of which one is started again", lease, true, true, lease / 2},
	} {
		g, voters := voterOf(t, "a")
		links := voters.links
		pass(g, c.before)
		g.Ended(links["h"], succession.Dead)
		pass(g, lease)
		if since, _ := g.Stranded(); since != 0 {
			t.Errorf("%s: stranded for %s while another voter lives", c.what, since)
		}
		g.Ended(links["a"], succession.Dead)
		founded, waited := false, time.Duration(0)
		for why := ""; !founded && waited < 6*lease; waited += lease / 4 {
			if c.came {
				g.Came(c.newcomer)
			}
			if waited == 0 {
				pass(g, g.Beat()) // it sees it
			}
			if waited == lease/4 {
				g.vote.origin -= time.Minute // this process is stopped
				g.tick()
			}
			pass(g, lease/4)
			if why, founded = g.FoundAnew(time.Now()); founded && (!strings.Contains(why, `"a"`) || !strings.Contains(why, `"h"`)) {
				t.Error(why)
			}
		}
		switch {
		case founded != (c.after > 0):
			t.Errorf("%s: founded %v", c.what, founded)
		case founded && (waited < c.after || waited > c.after+2*lease):
			t.Errorf("%s: founded after %s", c.what, waited)
		case founded && !succession.Yields(g.Identity(), succession.Identity{Group: rand.Text(), Term: 1, Node: "x"}):
			t.Errorf("%s: it does not yield to a founder with a majority", c.what)
		case founded && (!g.Hosting() || g.Current().Group == "g" || g.Current().Host != "10.0.0.2:1" || !g.start.Alone):
			t.Errorf("%s: %+v", c.what, g.Current())
		}
	}
}

// TestFoundAnewAfterAnEarlierLoss: what counts is whether a process has heard the leader since the others could decide
// nothing without it, not whether it had when the first voter was gone.
func TestFoundAnewAfterAnEarlierLoss(t *testing.T) {
	const lease = 10 * time.Second
	for _, c := range []struct {
		what   string
		others []string // beside the leader
		silent bool     // the leader is, while a goes
		after  bool     // ... and from then on
		want   bool
	}{
		{"of three one goes unheard, then the leader is heard for long", []string{"a"}, true, false, true},
		{"of three one goes unheard, and the leader stays so", []string{"a"}, true, true, false},
		{"of five one goes, and this process is cut off: the other three can end the job", []string{"a", "c", "d"}, false, true, false},
		{"of five one goes, and later the three others", []string{"a", "c", "d"}, false, false, true},
	} {
		g, voters := voterOf(t, c.others...)
		links := voters.links
		passes := func(d time.Duration, silent bool) {
			for ; d > 0; d -= g.Beat() {
				if !silent {
					voters.nodes["h"].Tick(g.vote.now())
					voters.carry()
				}
				pass(g, g.Beat())
			}
		}
		ends := func(node string) {
			delete(voters.nodes, node)
			g.Ended(links[node], succession.Dead)
		}
		passes(lease, c.silent)
		ends("a")
		passes(lease, c.after)
		for node := range links {
			if node != "a" {
				ends(node)
			}
		}
		if founded := founds(g, func() {}); founded != c.want {
			t.Errorf("%s: founded %v", c.what, founded)
		}
	}
}

// TestFoundAnewWhileVotersChange: a voter acknowledges that the leader votes alone from now on, and is cut off before it
// hears that this is so: the leader may go on, and end the job.
func TestFoundAnewWhileVotersChange(t *testing.T) {
	const lease = 10 * time.Second
	for _, c := range []struct {
		what string
		cut  time.Duration // before the leader is gone
		want bool
	}{
		{"the leader dies at once", 0, true},
		{"the leader goes on for long", 2 * lease, false},
	} {
		g, voters := voterOf(t, "a")
		h, link := voters.nodes["h"], voters.links["h"]
		delete(voters.nodes, "a")
		g.Ended(voters.links["a"], succession.Dead)
		for range lease / g.Beat() {
			h.Tick(g.vote.now())
			voters.carry()
			pass(g, g.Beat())
		}
		voters.lose = func() bool { return !h.Voters().Has(g.vote.voter) }
		h.SetVoters([]raft.Voter{link.voter}, g.vote.now())
		voters.carry()
		if h.Votes() || !g.Votes() {
			t.Fatalf("%s: the leader's voters are %v, and here %v", c.what, h.Voters(), g.vote.node.Voters())
		}
		pass(g, c.cut)
		g.Ended(link, succession.Dead)
		if founded := founds(g, func() {}); founded != c.want {
			t.Errorf("%s: founded %v", c.what, founded)
		}
	}
}

// TestFoundAnewInAHalfMadeChange: this process knows that the voters become three of five, and two of five are left: they
// are no majority of anything.
func TestFoundAnewInAHalfMadeChange(t *testing.T) {
	g, voters := voterOf(t, "a", "c", "d")
	h, links := voters.nodes["h"], voters.links
	voters.lose = func() bool { return len(g.vote.node.Voters().Outgoing) > 0 }
	h.SetVoters([]raft.Voter{links["h"].voter, links["a"].voter, g.vote.voter}, g.vote.now())
	for range 3 {
		h.Tick(g.vote.now())
		voters.carry()
	}
	if v := g.vote.node.Voters(); len(v.Outgoing) != 5 || len(v.Incoming) != 3 {
		t.Fatalf("the voters are %+v", v)
	}
	for _, node := range []string{"h", "a", "d"} {
		g.Ended(links[node], succession.Dead)
	}
	heard := func() {
		g.Hear(links["c"], wire.Liveness{RunID: "run", Group: "g", Node: "c", Voter: "c", State: uint64(succession.Lost), Term: 3})
	}
	if !founds(g, heard) {
		t.Error("it founds no group")
	}
}

// hostOfTwo is the view of a host, a, with links to two nodes that may vote.
func hostOfTwo(lease time.Duration) (g *Group, b, c *Link) {
	g = NewGroup("run", "a", lease, false)
	g.SetSelf("10.0.0.1:1", "")
	g.Found(time.Now())
	return g, linkTo(g, "b", "a", "c"), linkTo(g, "c", "a", "b")
}

// hostWithMajority is hostOfTwo whose two nodes vote, and hear it.
func hostWithMajority(t *testing.T, lease time.Duration) (g *Group, b, c *Link, voters *others) {
	t.Helper()
	g, b, c = hostOfTwo(lease)
	voters = votersOf(g, map[string]*Link{"b": b, "c": c})
	g.SetEligible([]string{"b", "c"})
	for range 3 * lease / g.Beat() {
		pass(g, g.Beat())
		voters.carry()
	}
	if !g.VoteReport().Majority {
		t.Fatal("it has no majority")
	}
	return g, b, c, voters
}

// TestSilentVoterIsNoContact: a host that is cut off from both voters notices it of one after the other. The one whose
// connection is still open, and silent, has not reached it since: so it may be this process that is cut off.
func TestSilentVoterIsNoContact(t *testing.T) {
	const lease = 10 * time.Second
	g, b, c, _ := hostWithMajority(t, lease)
	pass(g, lease/4)
	for _, l := range []*Link{b, c} {
		g.Ended(l, succession.Unconnected)
		l.refuses = true
		pass(g, g.Beat())
	}
	if _, patience := g.Stranded(); patience != succession.GiveUp*lease {
		t.Errorf("it founds the control plane anew after %s", patience)
	}
	pass(g, lease/2)
	to, why := g.Deserted()
	if why == "" {
		t.Fatal("it hosts on")
	}
	g.StepDown(to)
	pass(g, lease)
	if _, founded := g.FoundAnew(time.Now()); founded {
		t.Error("it founds the control plane anew, though nobody has reached it")
	}
	g.Came(false)
	pass(g, g.Beat())
	if why, founded := g.FoundAnew(time.Now()); !founded || !strings.Contains(why, `"b", "c"`) {
		t.Errorf("another node has reached it: founded %v, %q", founded, why)
	}
}

// TestDeserted: a host whose voters have fallen silent hosts on, however long; when all of them refuse connections
// for half a lease it says so. It founds no other group: they may be behind a firewall.
func TestDeserted(t *testing.T) {
	const lease = 10 * time.Second
	g, b, c := hostOfTwo(lease)
	never := g.Dial("d") // whose port a firewall refused from the beginning
	if g.SetEligible([]string{"b", "c"}); !g.Votes() {
		t.Fatal("no voters")
	}
	for _, step := range []struct {
		what string
		do   func()
		want bool
	}{
		{"both are silent", func() {
			g.Ended(b, succession.Unconnected)
			g.Ended(c, succession.Unconnected)
			never.refuses = true
			pass(g, 6*lease)
		}, false},
		{"one is gone", func() { b.refuses = true; pass(g, 6*lease) }, false},
		{"both are gone, for less than half a lease", func() { c.refuses = true; pass(g, lease/2-g.Beat()) }, false},
		{"one is silent again", func() { c.refuses = false; pass(g, lease) }, false},
		{"this process was stopped", func() {
			c.refuses = true
			pass(g, lease/4)
			g.vote.origin -= time.Minute
			pass(g, lease/2)
		}, false},
		{"both are gone for half a lease", func() { pass(g, 2*g.Beat()) }, true},
	} {
		step.do()
		_, why := g.Deserted()
		if (why != "") != step.want {
			t.Fatalf("%s: %q", step.what, why)
		}
		if step.want && !(strings.Contains(why, `"b", "c"`) && strings.Contains(why, "refuse")) {
			t.Error(why)
		}
	}
	g.StepDown(wire.Redirect{Group: g.Current().Group})
	pass(g, 10*lease)
	if why, founded := g.FoundAnew(time.Now()); founded {
		t.Errorf("it founds another group: %s", why)
	}
	if _, why := g.Deserted(); why != "" {
		t.Errorf("it hosts no more: %s", why)
	}
}

// TestHeartbeatAheadOfTheLog: the voters become five of three while one of these is cut off, so that the others may decide without
// it, and the leader dies when no more than its next heartbeat has reached that one. The heartbeat changes nothing: it
// counts only where the leader was heard shortly before, and that is enough without it.
func TestHeartbeatAheadOfTheLog(t *testing.T) {
	const lease = 10 * time.Second
	for cut := range 14 {
		var founded [2]bool
		for i, heard := range []bool{false, true} {
			g, voters := voterOf(t, "a")
			h := voters.nodes["h"]
			passes := func(beats int) {
				for range beats {
					h.Tick(g.vote.now())
					voters.carry()
					pass(g, g.Beat())
				}
			}
			passes(20)
			all := h.Voters().All()
			for _, node := range []string{"c", "d"} {
				voters.links[node] = &Link{node: node, voter: raft.ParseVoter(node), out: &inbox{}}
				voters.nodes[node] = raft.New(raft.ParseVoter(node), lease, g.vote.now(), nil)
				all = append(all, raft.ParseVoter(node))
			}
			voters.lose = func() bool { return true }
			h.SetVoters(all, g.vote.now())
			passes(1 + cut)
			if !h.Voters().Has(raft.ParseVoter("d")) || g.vote.node.Voters().Has(raft.ParseVoter("d")) {
				t.Fatalf("the leader's voters are %v, and here %v", h.Voters(), g.vote.node.Voters())
			}
			delete(voters.nodes, "a")
			g.Ended(voters.links["a"], succession.Dead)
			before := g.vote.node.Heard()
			voters.lose = func() bool { return !heard || g.vote.node.Heard() > before }
			passes(1)
			if ahead := g.vote.node.Heard() > before; ahead != heard || g.vote.node.Voters().Has(raft.ParseVoter("d")) {
				t.Fatalf("it has heard the leader: %v; its voters are %v", ahead, g.vote.node.Voters())
			}
			delete(voters.nodes, "h")
			g.Ended(voters.links["h"], succession.Dead)
			founded[i] = founds(g, func() {})
		}
		if founded[0] != founded[1] {
			t.Errorf("cut off for %d beats it founds a group: %v without the heartbeat, %v with it", cut, founded[0], founded[1])
		}
		if cut == 0 && !founded[0] || cut > 11 && founded[0] {
			t.Errorf("cut off for %d beats it founds a group: %v", cut, founded[0])
		}
	}
}
