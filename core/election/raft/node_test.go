package raft

import (
	"maps"
	"slices"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

const lease = 10 * time.Second

// group is a few voters whose messages arrive at once.
type group struct {
	t     *testing.T
	now   time.Duration
	nodes map[Voter]*Node
	down  map[Voter]bool
	lose  func(m Message) bool // nil: nothing is lost
}

func newGroup(t *testing.T, size int) (*group, []Voter) {
	g := &group{t: t, nodes: map[Voter]*Node{}, down: map[Voter]bool{}}
	var ids []Voter
	for i := range size {
		id := Voter(i + 1)
		ids = append(ids, id)
		g.nodes[id] = New(id, lease, 0, nil)
	}
	g.nodes[1].Begin("e", 0, ids[:1], nil, 0)
	g.nodes[1].SetVoters(ids, 0)
	g.carry()
	return g, ids
}

// carry delivers all messages, and those that follow.
func (g *group) carry() (count int) {
	for again := true; again; {
		again = false
		for _, id := range slices.Sorted(maps.Keys(g.nodes)) {
			for _, m := range g.nodes[id].Messages() {
				if to := g.nodes[m.To]; to != nil && !g.down[id] && !g.down[m.To] && (g.lose == nil || !g.lose(m)) {
					again = true
					count++
					if !to.Receive(m, g.now) {
						g.t.Fatalf("%v refuses a message of %v", m.To, m.From)
					}
				}
			}
		}
	}
	return count
}

func (g *group) tick(beats int) {
	for range beats {
		g.now += Beat(lease)
		for id, n := range g.nodes {
			if !g.down[id] {
				n.Tick(g.now)
			}
		}
		g.carry()
	}
}

func (g *group) leader() (leader Voter) {
	g.t.Helper()
	for id, n := range g.nodes {
		if !g.down[id] && n.Majority(g.now) {
			if leader != 0 {
				g.t.Fatalf("both %v and %v lead", leader, id)
			}
			leader = id
		}
	}
	return leader
}

// TestFounderLeadsAtOnce: a process that begins a cluster alone leads without a message, in term 1, and
// others become voters.
func TestFounderLeadsAtOnce(t *testing.T) {
	n := New(1, lease, 0, nil)
	n.Begin("e", 0, []Voter{1}, []byte("facts"), 0)
	if term, leads := n.Leads(); !leads || term != 1 || !n.Majority(0) {
		t.Fatalf("term %d, leads %v", term, leads)
	}
	number := n.Propose(0, []byte("more"))
	if number == 0 || n.Committed() < number {
		t.Errorf("number %d, confirmed %d", number, n.Committed())
	}
	g, _ := newGroup(t, 3)
	g.tick(1)
	if v := g.nodes[3].Voters(); len(v.Incoming) != 3 || len(v.Outgoing) != 0 {
		t.Errorf("%+v", v)
	}
	if g.leader() != 1 {
		t.Error("the founder leads no more")
	}
}

// TestProofElects: voters that see the leader's death elect the next one without a tick, which has all
// that was confirmed, and removes the dead one, so that the next death is no different.
func TestProofElects(t *testing.T) {
	g, _ := newGroup(t, 5)
	g.tick(1)
	n := g.nodes[1]
	number := n.Propose(g.now, []byte("facts"))
	g.carry()
	if n.Committed() < number {
		t.Fatal("not confirmed")
	}
	left := []Voter{1, 2, 3, 4, 5}
	for len(left) > 2 {
		dead := left[0]
		left = left[1:]
		g.down[dead] = true
		for _, id := range left {
			g.nodes[id].LeaderEnded(g.now)
		}
		next := g.nodes[left[0]]
		next.Dead(dead, g.now)
		next.Campaign(g.now)
		count := g.carry()
		if _, leads := next.Leads(); !leads {
			t.Fatalf("%v does not lead after %d messages", left[0], count)
		}
		if value, _, _ := next.Value(); string(value) != "facts" {
			t.Errorf("it has %q", value)
		}
		voters := left
		if len(voters) == 2 {
			voters = voters[:1]
		}
		next.SetVoters(voters, g.now)
		g.carry()
		if v := next.Voters(); len(v.Outgoing) > 0 || len(v.Incoming) != len(voters) {
			t.Fatalf("voters %+v of %v", v, voters)
		}
		g.tick(1)
	}
}

// TestRemovedUnheard: a voter acknowledges the change by which it votes no more, and is cut off before it hears that this
// is committed. It knows that others may decide without it, and is told once it can be reached.
func TestRemovedUnheard(t *testing.T) {
	g, _ := newGroup(t, 3)
	g.tick(1)
	g.down[3] = true
	leader, removed := g.nodes[1], g.nodes[2]
	g.lose = func(m Message) bool { return m.To == 2 && !leader.Voters().Has(2) }
	leader.SetVoters([]Voter{1}, g.now)
	g.carry()
	if !leader.alone() || !removed.Votes() || !removed.MayDecide([]Voter{1}) {
		t.Fatalf("the leader's voters are %v, those of the other %v", leader.Voters(), removed.Voters())
	}
	g.lose = nil
	g.tick(3 * electionTicks)
	if removed.Votes() || g.leader() != 1 {
		t.Errorf("it still knows of %v", removed.Voters())
	}
}

// TestChangeThatCannotBeCommitted: a leader whose voters fall silent proposes to vote alone. Who has that in its log, and no
// more, knows that the leader decides nothing by it.
func TestChangeThatCannotBeCommitted(t *testing.T) {
	g, _ := newGroup(t, 5)
	g.tick(1)
	g.down[2], g.down[3], g.down[4] = true, true, true
	leader, other := g.nodes[1], g.nodes[5]
	leader.SetVoters([]Voter{1}, g.now)
	g.carry()
	if len(other.log.unapplied()) == 0 {
		t.Fatal("the change has not arrived")
	}
	if other.MayDecide([]Voter{1}) || !other.MayDecide([]Voter{1, 2, 3}) {
		t.Errorf("voters %+v", other.Voters())
	}
}

// TestAddedUnheard: one of two voters agrees to a third, and is cut off before it hears that this is so: the two others
// may decide without it.
func TestAddedUnheard(t *testing.T) {
	g, _ := newGroup(t, 3)
	g.tick(1)
	leader, cut := g.nodes[1], g.nodes[2]
	leader.SetVoters([]Voter{1, 2}, g.now)
	g.carry()
	g.lose = func(m Message) bool { return m.To == 2 && leader.Voters().Has(3) }
	leader.SetVoters([]Voter{1, 2, 3}, g.now)
	g.carry()
	if !leader.Voters().Has(3) || cut.Voters().Has(3) {
		t.Fatalf("the leader's voters are %v, those of the other %v", leader.Voters(), cut.Voters())
	}
	if !slices.Contains(cut.MayVote(), 3) || !cut.MayDecide([]Voter{1, 3}) || cut.MayDecide([]Voter{3}) {
		t.Errorf("%v may vote", cut.MayVote())
	}
}

// TestFounderDiesAddingVoters: wherever in its first change of voters the founder dies, those that know by
// then that they vote elect one of themselves.
func TestFounderDiesAddingVoters(t *testing.T) {
	for delivered, voting := 0, 0; voting < 2; delivered++ {
		g := &group{t: t, nodes: map[Voter]*Node{}, down: map[Voter]bool{}}
		ids := []Voter{1, 2, 3}
		for _, id := range ids {
			g.nodes[id] = New(id, lease, 0, nil)
		}
		g.nodes[1].Begin("e", 0, ids[:1], []byte("facts"), 0)
		g.nodes[1].SetVoters(ids, 0)
		count := 0
		g.lose = func(Message) bool { count++; return count > delivered }
		g.carry()
		if g.lose, g.down[1] = nil, true; count <= delivered {
			t.Fatal("the change ends, and not both others vote")
		}
		g.nodes[2].LeaderEnded(0)
		g.nodes[3].LeaderEnded(0)
		voting = 0
		elected := false
		for _, id := range ids[1:] {
			if n := g.nodes[id]; n.Campaign(0) {
				voting++
				g.carry()
				_, leads := n.Leads()
				value, _, _ := n.Value()
				elected = elected || leads && string(value) == "facts"
			}
		}
		if voting > 0 && !elected {
			t.Fatalf("after %d messages %d of the others vote, and elect nobody", delivered, voting)
		}
	}
}

// TestSilentLeader: voters that hear their leader no more elect another one within a lease; the old one,
// which they do not reach, says nothing by then.
func TestSilentLeader(t *testing.T) {
	for range 50 {
		g, _ := newGroup(t, 3)
		g.tick(3)
		g.down[1] = true
		beats := 0
		for ; g.leader() == 0; beats++ {
			g.tick(1)
			if beats > 20*beatParts { // two that campaign at one moment split the vote, again and again at times
				t.Fatal("nobody leads")
			}
		}
		if g.nodes[1].Majority(g.now) {
			t.Error("the silent leader still speaks")
		}
		delete(g.down, 1)
		g.tick(2)
		if g.leader() == 1 {
			t.Error("the former leader leads")
		}
	}
}

// TestTransfer: the voter that the leader asks to take over leads without a wait.
func TestTransfer(t *testing.T) {
	g, _ := newGroup(t, 3)
	g.tick(3)
	if !g.nodes[1].BeginTransfer(2) || g.nodes[1].Propose(g.now, []byte("x")) != 0 {
		t.Fatal("it does not hand on")
	}
	g.nodes[2].TakeOver(g.now)
	g.carry()
	g.tick(1)
	if g.leader() != 2 {
		t.Error("the next one does not lead")
	}
}

// TestLostSnapshot: a voter whose first snapshot is lost gets another one.
func TestLostSnapshot(t *testing.T) {
	g, _ := newGroup(t, 3)
	g.tick(1)
	late, lost := New(4, lease, g.now, nil), 0
	g.nodes[4] = late
	g.lose = func(m Message) bool {
		snap := decoded(m).GetType() == raftpb.MsgSnap && lost == 0
		if snap {
			lost++
		}
		return snap
	}
	g.nodes[1].SetVoters([]Voter{1, 2, 3, 4}, g.now)
	g.carry()
	g.tick(3 * snapshotTicks)
	if lost != 1 || !late.Founded() {
		t.Errorf("%d snapshots were lost; it knows its voters: %v", lost, late.Founded())
	}
}

// TestClusters: a process takes nothing from another cluster than its own, whatever the term.
func TestClusters(t *testing.T) {
	g, _ := newGroup(t, 3)
	g.tick(1)
	other := New(1, lease, g.now, nil)
	other.Begin("f", 50, []Voter{1}, []byte("others"), g.now)
	other.SetVoters([]Voter{1, 2}, g.now)
	before, _ := g.nodes[2].Leads()
	for _, m := range other.Messages() {
		if m.To == 2 && !g.nodes[2].Receive(m, g.now) {
			t.Error("it is refused")
		}
	}
	if after, _ := g.nodes[2].Leads(); after != before || len(g.nodes[2].Messages()) > 0 {
		t.Errorf("term %d after %d", after, before)
	}
}

// TestProofIsWithdrawn: a voter that was proven dead, and is heard, lives.
func TestProofIsWithdrawn(t *testing.T) {
	g, _ := newGroup(t, 3)
	g.tick(1)
	n := g.nodes[1]
	n.Dead(2, g.now)
	if !n.ProvenDead(2) {
		t.Fatal("it is not noted")
	}
	if g.tick(1); n.ProvenDead(2) {
		t.Error("it answers, and is dead")
	}
}

// TestOneEndsNoTerms: a process that says, again and again, that the leader has asked it to take over does
// not end one term after the other.
func TestOneEndsNoTerms(t *testing.T) {
	g, _ := newGroup(t, 3)
	g.tick(30)
	began, _ := g.nodes[2].Leads()
	for range 20 {
		g.nodes[3].TakeOver(g.now)
		g.carry()
		g.nodes[1].TakeOver(g.now)
		g.carry()
	}
	if now, _ := g.nodes[2].Leads(); now > began+2 {
		t.Errorf("term %d after term %d", now, began)
	}
}

// TestImpossible: what no process that follows the protocol can say is refused, and changes nothing: raft would
// not go on.
func TestImpossible(t *testing.T) {
	g, _ := newGroup(t, 3)
	g.tick(3)
	follower := g.nodes[2]
	term := follower.term
	conf := &raftpb.ConfState{Voters: []uint64{1, 2, 3}}
	for what, m := range map[string]*raftpb.Message{
		"a commit of what is not there":   {Type: raftpb.MsgHeartbeat.Enum(), Term: new(term), Commit: new(uint64(1 << 20))},
		"a term that is far ahead":        {Type: raftpb.MsgVote.Enum(), Term: new(term + maxAhead + 1)},
		"no term":                         {Type: raftpb.MsgVote.Enum()},
		"a local message":                 {Type: raftpb.MsgHup.Enum(), Term: new(term)},
		"a proposal":                      {Type: raftpb.MsgProp.Enum(), Term: new(term), Entries: []*raftpb.Entry{{}}},
		"a snapshot without voters":       {Type: raftpb.MsgSnap.Enum(), Term: new(term), Snapshot: snapshot(1<<20, term, &raftpb.ConfState{}, nil)},
		"a snapshot of a later term":      {Type: raftpb.MsgSnap.Enum(), Term: new(term), Snapshot: snapshot(1<<20, term+1, conf, nil)},
		"a snapshot with one voter twice": {Type: raftpb.MsgSnap.Enum(), Term: new(term), Snapshot: snapshot(1<<20, term, &raftpb.ConfState{Voters: []uint64{2, 2}}, nil)},
		"entries with a gap":              {Type: raftpb.MsgApp.Enum(), Term: new(term), Index: new(follower.lastIndex()), Entries: []*raftpb.Entry{{Index: new(follower.lastIndex() + 2), Term: new(term)}}},
		"another entry than is committed": {Type: raftpb.MsgApp.Enum(), Term: new(term), Index: new(follower.lastIndex() - 1), Entries: []*raftpb.Entry{{Index: new(follower.lastIndex()), Term: new(term - 1)}}},
	} {
		m.From, m.To = new(uint64(1)), new(uint64(2))
		data, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if follower.Receive(Message{Cluster: "e", From: 1, To: 2, Data: data}, g.now) {
			t.Errorf("%s is taken", what)
		}
		if follower.Lost() {
			t.Fatalf("after %s it cannot go on", what)
		}
	}
	g.tick(3)
	if g.leader() != 1 {
		t.Error("the leader leads no more")
	}
}

// TestLateTerm: a process that knows nothing is asked for its vote first, in a late term, and then takes part.
func TestLateTerm(t *testing.T) {
	g := &group{t: t, nodes: map[Voter]*Node{1: New(1, lease, 0, nil), 2: New(2, lease, 0, nil)}, down: map[Voter]bool{}}
	g.nodes[1].Begin("e", 2*maxAhead, []Voter{1}, nil, 0)
	ask := &raftpb.Message{Type: raftpb.MsgPreVote.Enum(), From: new(uint64(3)), To: new(uint64(2)), Term: new(g.nodes[1].term + 1)}
	data, err := proto.Marshal(ask)
	if err != nil {
		t.Fatal(err)
	}
	if !g.nodes[2].Receive(Message{Cluster: "e", From: 3, To: 2, Data: data}, 0) {
		t.Fatal("it is refused")
	}
	g.nodes[1].SetVoters([]Voter{1, 2}, 0)
	g.carry()
	g.tick(1)
	if !g.nodes[2].Votes() {
		t.Error("it does not take part")
	}
}

// FuzzReceive: whatever comes, a process goes on, or says that its memory is of no use.
func FuzzReceive(f *testing.F) {
	m, _ := proto.Marshal(&raftpb.Message{Type: raftpb.MsgApp.Enum(), From: new(uint64(1)), To: new(uint64(2)), Term: new(uint64(2)), Index: new(uint64(3)), Entries: []*raftpb.Entry{{Index: new(uint64(4)), Term: new(uint64(2))}}})
	f.Add(m)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		g, _ := newGroup(t, 3)
		g.tick(1)
		g.nodes[2].Receive(Message{Cluster: "e", From: 1, To: 2, Data: data}, g.now)
		if !g.nodes[2].Lost() {
			g.nodes[2].Tick(g.now)
			g.nodes[2].Messages()
		}
	})
}
