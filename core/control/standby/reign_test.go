package standby

import (
	"errors"
	"testing"
	"time"

	"rallypoint/core/control/journal"
	"rallypoint/core/control/wire"
	"rallypoint/core/election/raft"
	"rallypoint/core/succession"
)

// firstOfThree is the view of the first of three servers, and the votes of the two others.
func firstOfThree(t *testing.T) (*Peers, *others) {
	t.Helper()
	names := []string{"a:1", "b:1", "c:1"}
	replica := journal.NewReplica(func(r journal.Run) ([]byte, error) { return r.Snapshot, nil })
	p, err := NewPeers(names, names[0], 10*time.Second, replica, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	links := map[string]*Link{}
	for i, name := range names[1:] {
		l := p.Dial(name)
		p.Opened(l, &inbox{})
		p.Hear(l, wire.Liveness{RunID: p.runID, Group: p.inside, Node: name, Voter: raft.NewVoter(i + 2).String(), State: uint64(succession.Abstains)})
		links[name] = l
	}
	return p, votersOf(p.Group, links)
}

// TestReignEndsWithAnotherLead: another server leads while one that was elected still begins the runs, and that one is elected
// again. What it has begun lacks what the other one has told nodes: it begins again.
func TestReignEndsWithAnotherLead(t *testing.T) {
	p, voters := firstOfThree(t)
	voters.carry()
	reign, _, elected := p.Elected()
	if !elected {
		t.Fatal("it is not elected")
	}
	b, c := voters.nodes["b:1"], voters.nodes["c:1"]
	now := p.vote.now()
	b.LeaderEnded(now)
	c.LeaderEnded(now)
	b.Campaign(now)
	voters.carry()
	b.Propose(now, journal.Entries([]journal.WriteBatch{{Run: 1, Snapshot: &journal.Snapshot{ID: "run", State: []byte("state")}}})...)
	voters.carry()
	b.Tick(now) // which tells the others what is committed
	voters.carry()
	if len(p.Replica.Runs()) != 1 {
		t.Fatal("it does not know the run of the other leader")
	}
	delete(voters.nodes, "b:1")
	c.LeaderEnded(now)
	p.Ended(voters.links["b:1"], succession.Dead)
	voters.carry()
	if _, leads := p.vote.node.Leads(); !leads {
		t.Fatal("it is not elected again")
	}
	if p.Lead(reign, time.Now()) {
		t.Fatal("it leads with what it had begun with")
	}
	if err := p.Commit(t.Context(), reign, journal.Entries([]journal.WriteBatch{{Run: 1, First: 1, Events: [][]byte{[]byte("event")}}})); !errors.Is(err, ErrDeposed) {
		t.Errorf("it commits what follows from what it had begun with: %v", err)
	}
	next, _, elected := p.Elected()
	if !elected || !p.Lead(next, time.Now()) {
		t.Errorf("it does not begin again; elected: %v", elected)
	}
}

// TestReignKnowsWhatTheOneBeforeHasProposed: a server hosts no more while what it has proposed is on its way to the others, and
// nobody else has led. A majority accepts that yet: the next reign begins with it, or would propose the same events again,
// and no server could go on with such a log.
func TestReignKnowsWhatTheOneBeforeHasProposed(t *testing.T) {
	p, voters := firstOfThree(t)
	voters.carry()
	reign, _, elected := p.Elected()
	if !elected || !p.Lead(reign, time.Now()) {
		t.Fatal("it does not lead")
	}
	p.vote.node.Propose(p.vote.now(), journal.Entries([]journal.WriteBatch{{Run: 1, Snapshot: &journal.Snapshot{ID: "run", State: []byte("state")}}})...)
	p.members.voteLocked()
	p.StepDown(wire.Redirect{Group: p.target.Group, Node: "a:1"})
	if _, _, elected := p.Elected(); elected {
		t.Errorf("its next reign begins with %d runs", len(p.Replica.Runs()))
	}
	voters.carry()
	if _, _, elected := p.Elected(); !elected || len(p.Replica.Runs()) != 1 {
		t.Errorf("elected: %v, with %d runs", elected, len(p.Replica.Runs()))
	}
}

// TestHostThatIsElectedAgain: another node leads for a moment, and the host before it is elected again. Its server lacks what
// the other has told nodes: it begins again, with what the voters keep.
func TestHostThatIsElectedAgain(t *testing.T) {
	g, b, _, voters := hostWithMajority(t, 10*time.Second)
	next, other := voters.nodes["b"], voters.nodes["c"]
	now := g.vote.now()
	next.LeaderEnded(now)
	other.LeaderEnded(now)
	next.Campaign(now)
	voters.carry()
	if _, leads := next.Leads(); !leads {
		t.Fatal("the other is not elected")
	}
	delete(voters.nodes, "b")
	other.LeaderEnded(now)
	g.Ended(b, succession.Dead)
	voters.carry()
	if _, leads := g.vote.node.Leads(); !leads {
		t.Fatal("it is not elected again")
	}
	to, deposed := g.Deposed()
	if !deposed || g.Committed(0) {
		t.Fatal("it hosts on")
	}
	if g.StepDown(to); g.Elected() == 0 {
		t.Error("it forgets that it is elected")
	}
}
