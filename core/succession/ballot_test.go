package succession

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"
)

// group are processes between which messages need no time.
type group struct {
	t       *testing.T
	now     time.Duration
	members map[Voter]*Ballot
	names   []Voter
	deaf    map[Voter]bool       // nothing reaches them
	lost    func(m Message) bool // what the network drops; nil: nothing
	seen    []Message            // what arrived since the last call
}

// newGroup has a host, the first, and voters beside it that know that they vote.
func newGroup(t *testing.T, names ...Voter) *group {
	g := &group{t: t, now: time.Second, members: map[Voter]*Ballot{}, deaf: map[Voter]bool{}}
	g.add(names...)
	g.members[names[0]].Lead(1, g.now)
	g.members[names[0]].Wish(names, g.now)
	g.flow()
	g.pass(lease)
	return g
}

func (g *group) add(names ...Voter) {
	for _, id := range names {
		g.members[id] = NewBallot(id, lease, g.now)
		g.names = append(g.names, id)
	}
}

// flow delivers until nobody says anything more.
func (g *group) flow() {
	for again := true; again; {
		again = false
		for _, id := range g.names {
			for _, m := range g.members[id].Messages() {
				to := g.members[m.To]
				if to == nil || g.deaf[id] || g.deaf[m.To] || g.lost != nil && g.lost(m) {
					continue
				}
				g.seen = append(g.seen, m)
				to.Receive(m, g.now)
				again = true
			}
		}
	}
}

// pass lets time pass, in beats.
func (g *group) pass(d time.Duration) {
	for end := g.now + d; g.now < end; {
		g.now += Beat(lease)
		for _, id := range g.names {
			if !g.deaf[id] {
				g.members[id].Tick(g.now)
				g.flow()
			}
		}
	}
}

// kill takes processes away, and the others see it.
func (g *group) kill(dead ...Voter) {
	for _, id := range dead {
		g.deaf[id] = true
	}
	for _, id := range g.names {
		if b := g.members[id]; !g.deaf[id] {
			host := b.host
			if slices.Contains(dead, host) {
				b.HostEnded()
			}
		}
	}
	for _, id := range g.names {
		if b := g.members[id]; !g.deaf[id] {
			host := b.host
			for _, x := range dead {
				b.Dead(x, g.now)
			}
			if slices.Contains(dead, host) {
				b.Stand(false, g.now)
			}
			g.flow()
		}
	}
}

// host returns the one that hosts, of those that are not deaf.
func (g *group) host() (found Voter, term uint64) {
	for _, id := range g.names {
		if t, hosts := g.members[id].Hosts(); hosts && !g.deaf[id] {
			if found != "" {
				g.t.Errorf("both %s and %s host", found, id)
			}
			found, term = id, t
		}
	}
	return found, term
}

func (g *group) wantHost(id Voter, term uint64) {
	g.t.Helper()
	if got, t := g.host(); got != id || t != term {
		g.t.Fatalf("%q hosts in term %d, want %q in term %d", got, t, id, term)
	}
	if b := g.members[id]; id != "" && (b.Confirmed() == 0 || !b.Majority(g.now)) {
		g.t.Fatalf("%s confirms %d, majority %v", id, b.Confirmed(), b.Majority(g.now))
	}
}

func TestProposalsAreConfirmed(t *testing.T) {
	g := newGroup(t, "a", "b", "c")
	a := g.members["a"]
	g.deaf["c"] = true
	n := a.Propose([]byte("x"), g.now)
	if a.Confirmed() >= n {
		t.Error("confirmed without a majority")
	}
	g.flow()
	if a.Confirmed() < n || string(g.members["b"].Accepted().Value) != "x" {
		t.Errorf("confirmed %d of %d, b has %q", a.Confirmed(), n, g.members["b"].Accepted().Value)
	}
	if g.members["b"].Propose([]byte("y"), g.now) != 0 {
		t.Error("one that does not host proposes")
	}
	g.deaf["b"] = true
	n = a.Propose([]byte("y"), g.now)
	g.pass(lease)
	if a.Confirmed() >= n || a.Majority(g.now) {
		t.Error("a host alone confirms, and has a majority")
	}
	g.deaf["b"] = false
	g.pass(2 * Beat(lease))
	if a.Confirmed() < n || !a.Majority(g.now) {
		t.Error("a host that is heard again does not confirm")
	}
}

// TestOldAnswers: what was accepted in an earlier term of the same host counts no more.
func TestOldAnswers(t *testing.T) {
	g := newGroup(t, "a", "b", "c")
	a := g.members["a"]
	g.deaf["b"], g.deaf["c"] = true, true
	for range 5 {
		a.Propose([]byte("x"), g.now)
	}
	old := Message{Kind: MessageAccept, From: "b", To: "a", Term: 1, Number: a.accepted.Number}
	a.Receive(Message{Kind: MessageAppend, From: "b", To: "a", Term: 2, Entry: &Entry{Term: 2, Number: a.accepted.Number - 4, Voters: a.accepted.Voters}}, g.now)
	a.accepted.Term, a.votes = 3, map[Voter]bool{}
	a.promised = 3
	a.lead(g.now)
	for range 5 {
		a.Propose([]byte("y"), g.now)
	}
	if a.Receive(old, g.now); a.Confirmed() != 0 {
		t.Errorf("it confirms %d", a.Confirmed())
	}
}

// TestSilentHost: the voters elect the first of them after half a lease, and it has what was
// confirmed; the old host learns it.
func TestSilentHost(t *testing.T) {
	for size := 3; size <= MaxVoters; size += 2 {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			g := newGroup(t, []Voter{"a", "b", "c", "d", "e"}[:size]...)
			g.members["a"].Propose([]byte("x"), g.now)
			g.flow()
			g.deaf["a"] = true
			g.pass(lease/standParts - Beat(lease))
			g.wantHost("", 0)
			g.pass(2 * Beat(lease))
			g.wantHost("b", 2)
			if v := string(g.members["b"].Accepted().Value); v != "x" {
				t.Errorf("it has %q", v)
			}
			if e := g.members["b"].Elections(); e != 1 {
				t.Errorf("%d elections", e)
			}
			a := g.members["a"]
			if a.Majority(g.now) {
				t.Error("the old host has a majority")
			}
			g.deaf["a"] = false
			g.pass(2 * Beat(lease))
			g.wantHost("b", 2)
			if a.Confirmed() != 0 || a.host != "b" {
				t.Errorf("the old host confirms %d, and knows %q", a.Confirmed(), a.host)
			}
		})
	}
}

// TestPatience: each voter stands a beat later than the one before it.
func TestPatience(t *testing.T) {
	g := newGroup(t, "a", "b", "c", "d", "e")
	g.deaf["a"], g.deaf["b"], g.deaf["c"] = true, true, true
	for i, id := range []Voter{"b", "c", "d", "e"} {
		if got, want := g.members[id].patience(), lease/standParts+time.Duration(i)*Beat(lease); got != want {
			t.Errorf("%s waits for %v, want %v", id, got, want)
		}
	}
	g.seen = nil
	g.pass(lease)
	g.wantHost("", 0) // two of five
	if m := g.seen[0]; m.From != "d" || m.Kind != MessageAskVote || !m.Pre || m.Term != 2 {
		t.Errorf("the first word is %v", m)
	}
	if p := g.members["d"].promised; p != 1 {
		t.Errorf("one that no majority would elect is in term %d", p)
	}
}

// ask is what a candidate says that knows all.
func ask(g *group, from, to Voter, change func(*Message)) Message {
	e := g.members["a"].Accepted()
	m := Message{Kind: MessageAskVote, From: from, To: to, Term: 2, Number: e.Number, Entered: e.Term}
	if change != nil {
		change(&m)
	}
	return m
}

func TestVotes(t *testing.T) {
	const never = MessageKind(0)
	for name, test := range map[string]struct {
		silent  time.Duration // of the host
		prepare func(b *Ballot, now time.Duration)
		ask     func(*Message)
		want    MessageKind
		term    uint64 // promised then
	}{
		"heard lately":              {0, nil, nil, never, 1},
		"heard lately, pre":         {0, nil, func(m *Message) { m.Pre = true }, never, 1},
		"heard 0.35 leases ago":     {lease * 35 / 100, nil, nil, never, 1},
		"heard 0.4 leases ago":      {lease * 4 / 10, nil, nil, MessageVote, 2},
		"pre-vote":                  {lease * 4 / 10, nil, func(m *Message) { m.Pre = true }, MessageVote, 1},
		"the host asked for it":     {0, nil, func(m *Message) { m.Forced = true }, MessageVote, 2},
		"the host ended":            {0, func(b *Ballot, _ time.Duration) { b.HostEnded() }, nil, MessageVote, 2},
		"an older entry":            {lease * 4 / 10, nil, func(m *Message) { m.Number-- }, never, 1},
		"an entry of an older term": {lease * 4 / 10, nil, func(m *Message) { m.Entered, m.Number = 0, 1000 }, never, 1},
		"a later entry":             {lease * 4 / 10, nil, func(m *Message) { m.Entered, m.Number = 2, 1 }, MessageVote, 2},
		"a term that is over":       {lease * 4 / 10, nil, func(m *Message) { m.Term = 1 }, MessageTermOver, 1},
		"no term":                   {lease * 4 / 10, nil, func(m *Message) { m.Term = MaxTerm + 1 }, never, 1},
		"the last term":             {lease * 4 / 10, nil, func(m *Message) { m.Term = MaxTerm }, MessageVote, MaxTerm},
		"after a stop": {lease * 4 / 10, func(b *Ballot, now time.Duration) {
			b.ticked = now - lease/5
		}, nil, never, 1},
		"after a vote for another": {lease * 4 / 10, func(b *Ballot, now time.Duration) {
			b.promised, b.granted, b.host, b.waits = 2, "d", "", now
		}, nil, MessageTermOver, 2},
		"after a vote for it": {lease * 4 / 10, func(b *Ballot, now time.Duration) {
			b.promised, b.granted, b.host, b.waits = 2, "b", "", now
		}, nil, MessageVote, 2},
		"a term just after a vote": {lease * 4 / 10, func(b *Ballot, now time.Duration) {
			b.promised, b.granted, b.host, b.waits = 2, "d", "", now
		}, func(m *Message) { m.Term = 3 }, never, 2},
		"a term that it has heard of": {lease * 4 / 10, func(b *Ballot, _ time.Duration) {
			b.promised, b.granted, b.host = 2, "", ""
		}, nil, MessageVote, 2},
		"a term that it has heard of, and its host lately": {0, func(b *Ballot, _ time.Duration) {
			b.promised, b.granted, b.host = 2, "", ""
		}, nil, never, 2},
		"just after a vote, which the end of the host brought": {0, func(b *Ballot, now time.Duration) {
			b.HostEnded()
			b.Receive(Message{Kind: MessageAskVote, From: "d", To: "c", Term: 2, Number: b.accepted.Number, Entered: 1}, now)
			b.Messages()
		}, func(m *Message) { m.Term = 3 }, never, 2},
		"the term of a host": {lease * 4 / 10, func(b *Ballot, _ time.Duration) {
			b.promised, b.granted, b.host = 2, "", "d"
		}, nil, MessageTermOver, 2},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGroup(t, "a", "b", "c", "d", "e")
			c := g.members["c"]
			g.deaf["a"], g.deaf["b"], g.deaf["d"], g.deaf["e"] = true, true, true, true
			g.now += test.silent
			c.ticked = g.now // it has run, and nobody stands
			if test.prepare != nil {
				test.prepare(c, g.now)
			}
			c.Receive(ask(g, "b", "c", test.ask), g.now)
			kind := never
			for _, m := range c.Messages() {
				if kind = m.Kind; m.To != "b" {
					t.Errorf("it speaks to %s", m.To)
				}
			}
			if kind != test.want || c.promised != test.term {
				t.Errorf("it says %d in term %d, want %d in term %d", kind, c.promised, test.want, test.term)
			}
			if kind == MessageVote && c.promised == 2 && (c.waits != g.now || c.granted != "b") {
				t.Error("a vote does not restart the clock")
			}
		})
	}
}

// TestStops: a voter that was stopped waits anew, whether a message or the tick comes first.
func TestStops(t *testing.T) {
	g := newGroup(t, "a", "b", "c")
	b := g.members["b"]
	g.now += 2 * lease
	b.HostEnded()
	b.Tick(g.now)
	if len(b.Messages()) != 0 || b.waits != g.now || b.ended {
		t.Error("it stands at once")
	}
}

// TestTransfer: the host asks a voter to host, whose words and those of the host cross.
func TestTransfer(t *testing.T) {
	g := newGroup(t, "a", "b", "c")
	a, b := g.members["a"], g.members["b"]
	a.Propose([]byte("x"), g.now)
	g.flow()
	crossing := Message{Kind: MessageAppend, From: "a", To: "b", Term: 1}
	if !b.Stand(true, g.now) {
		t.Fatal("it does not vote")
	}
	b.Receive(crossing, g.now)
	g.flow()
	g.wantHost("b", 2)
	if g.members["a"].Stand(true, g.now); g.members["b"].Stand(true, g.now) {
		t.Error("a host stands")
	}
	g.flow()
	if _, term := g.host(); term != 2 {
		t.Error("a term that has just begun is ended")
	}
	if NewBallot("x", lease, g.now).Stand(false, g.now) {
		t.Error("one that does not vote stands")
	}
}

// TestKills: one after the other, and several at once.
func TestKills(t *testing.T) {
	t.Run("the host of three", func(t *testing.T) {
		g := newGroup(t, "a", "b", "c")
		n := g.members["b"].Accepted().Number
		g.kill("a")
		g.wantHost("b", 2)
		for _, id := range []Voter{"b", "c"} { // only what the host wrote itself is confirmed by its number
			if e := g.members[id].Accepted(); e.Term != 2 || e.Number <= n {
				t.Errorf("%s has accepted %d/%d after 1/%d", id, e.Term, e.Number, n)
			}
		}
	})
	t.Run("two of three", func(t *testing.T) { // whom the third takes for dead may have elected another
		g := newGroup(t, "a", "b", "c")
		g.kill("a", "b")
		g.pass(3 * lease)
		g.wantHost("", 0)
		if place, stranded, proven := g.members["c"].Stranded(nobody, nobody); place != 0 || !stranded || !proven {
			t.Errorf("place %d, stranded %v, proven %v", place, stranded, proven)
		}
	})
	t.Run("two of three, the host is left", func(t *testing.T) {
		g := newGroup(t, "a", "b", "c")
		a := g.members["a"]
		g.kill("b", "c")
		a.Wish([]Voter{"a"}, g.now)
		n := a.Propose(nil, g.now)
		g.pass(lease)
		if _, stranded, _ := a.Stranded(nobody, nobody); a.Confirmed() >= n || a.Majority(g.now) || !stranded {
			t.Errorf("confirmed %d of %d, majority %v, stranded %v", a.Confirmed(), n, a.Majority(g.now), stranded)
		}
	})
	t.Run("one after the other", func(t *testing.T) { // down to one, which nobody has to agree with
		g := newGroup(t, "a", "b", "c", "d", "e")
		left := []Voter{"a", "b", "c", "d", "e"}
		for term := uint64(2); len(left) > 1; term++ {
			g.kill(left[0])
			left = left[1:]
			host := g.members[left[0]]
			if len(left) < 2 {
				break // the one before was the only voter
			}
			g.wantHost(left[0], term)
			wish := left
			if len(wish) == 2 {
				wish = wish[:1]
			}
			host.Wish(wish, g.now)
			g.flow()
			if v := host.Accepted().Voters; v.changing() || !sameSet(v.Incoming, wish) {
				t.Fatalf("voters %v, want %v", v, wish)
			}
		}
		if e := g.members["e"]; e.Votes() || e.Accepted().Voters.Has("e") {
			t.Errorf("the last one does not know that it votes no more: %v", e.Accepted().Voters)
		}
	})
	t.Run("the host, while one is silent", func(t *testing.T) {
		g := newGroup(t, "a", "b", "c")
		g.deaf["c"] = true
		g.pass(2 * lease)
		g.kill("a")
		g.pass(lease)
		g.wantHost("", 0)
		g.deaf["c"] = false
		g.pass(lease)
		g.wantHost("b", 2)
	})
}

// TestRejected: a firewall rejects what one process sends to all others, so that it takes them, and they
// take it, for dead. Whether it hosts, or votes: it decides nothing, the others elect the next host, and it
// follows that one when the network is whole.
func TestRejected(t *testing.T) {
	for size := 3; size <= MaxVoters; size++ {
		names := []Voter{"a", "b", "c", "d", "e"}[:size]
		for _, one := range []Voter{"a", "c"} {
			t.Run(fmt.Sprintf("%s of %d", one, size), func(t *testing.T) {
				g := newGroup(t, names...)
				g.lost = func(m Message) bool { return m.From == one || m.To == one }
				others := slices.DeleteFunc(slices.Clone(names), func(id Voter) bool { return id == one })
				lone := g.members[one]
				lone.HostEnded()
				for _, id := range others {
					lone.Dead(id, g.now)
					if one == "a" {
						g.members[id].HostEnded()
					}
					g.members[id].Dead(one, g.now)
				}
				lone.Stand(false, g.now)
				if one == "a" {
					g.members["b"].Stand(false, g.now)
				}
				lone.Wish([]Voter{one}, g.now)
				n := lone.Propose(nil, g.now)
				g.pass(lease)
				if _, hosts := lone.Hosts(); lone.Majority(g.now) || n > 0 && lone.Confirmed() >= n || hosts && one != "a" {
					t.Errorf("the one: hosts %v, majority %v, confirms %d of %d", hosts, lone.Majority(g.now), lone.Confirmed(), n)
				}
				if place, stranded, _ := lone.Stranded(nobody, nobody); !stranded {
					t.Errorf("the one does not know that it can decide nothing: %d", place)
				}
				host := map[Voter]Voter{"a": "b", "c": "a"}[one]
				h := g.members[host]
				if n := h.Propose([]byte("x"), g.now); n == 0 {
					t.Errorf("%s does not host", host)
				}
				g.flow()
				if h.Confirmed() < h.Accepted().Number || !h.Majority(g.now) {
					t.Errorf("the others: %s confirms %d of %d, majority %v", host, h.Confirmed(), h.Accepted().Number, h.Majority(g.now))
				}
				g.lost = nil
				g.pass(lease)
				if lone.Host() != host || string(lone.Accepted().Value) != "x" || lone.ProvenDead(host) || h.ProvenDead(one) {
					t.Errorf("the network is whole: the one follows %q with %q; dead %v, %v", lone.Host(), lone.Accepted().Value, lone.dead, h.dead)
				}
				g.host() // one alone
			})
		}
	}
}

// TestVotersChange: in two entries, with the majorities of both; those that vote no more are told so, for a
// lease at most.
func TestVotersChange(t *testing.T) {
	t.Run("with the old majority", func(t *testing.T) {
		g := newGroup(t, "a", "b", "c")
		g.add("x", "y")
		a := g.members["a"]
		g.deaf["b"], g.deaf["c"] = true, true
		n := a.accepted.Number
		a.Wish([]Voter{"a", "x", "y"}, g.now)
		g.flow()
		if v := a.Accepted().Voters; !v.changing() || a.Confirmed() > n {
			t.Errorf("voters %v, confirmed %d", v, a.Confirmed())
		}
		g.deaf["b"] = false
		g.pass(lease * 6 / 10)
		if v := a.Accepted().Voters; v.changing() || !slices.Equal(v.Incoming, []Voter{"a", "x", "y"}) {
			t.Errorf("voters %v", v)
		}
		if g.members["b"].Votes() || !g.members["x"].Votes() || !g.members["c"].Votes() {
			t.Error("b votes, or x does not, or c knows what it cannot")
		}
		if a.former["b"] || !a.former["c"] {
			t.Errorf("former voters %v", a.former)
		}
		a.Wish([]Voter{"a", "x", "y", "b"}, g.now)
		g.flow()
		if !a.Accepted().Voters.Has("b") {
			t.Error("the next change waits for one that votes no more")
		}
		if g.pass(lease); len(a.former) > 0 {
			t.Error("a silent one is told for ever that it votes no more")
		}
		g.deaf["c"] = false
		g.pass(lease)
		if g.members["c"].Votes() {
			t.Error("one that was removed while it was silent does not learn it")
		}
		g.wantHost("a", 1)
	})
	t.Run("the host dies between the two entries", func(t *testing.T) {
		g := newGroup(t, "a", "b", "c")
		g.add("x")
		n := g.members["a"].accepted.Number + 1
		g.lost = func(m Message) bool { return m.Entry != nil && m.Entry.Number > n }
		g.members["a"].Wish([]Voter{"a", "b", "x"}, g.now)
		g.flow()
		if !g.members["b"].Accepted().Voters.changing() {
			t.Fatal("no change is under way")
		}
		g.lost = nil
		g.kill("a")
		g.wantHost("b", 2)
		if v := g.members["b"].Accepted().Voters; v.changing() || !v.Has("x") {
			t.Errorf("voters %v", v)
		}
	})
	t.Run("a voter that missed a change elects one that it does not know", func(t *testing.T) {
		g := newGroup(t, "a", "b", "c")
		g.add("x")
		g.lost = func(m Message) bool { return m.To == "c" }
		g.members["a"].Wish([]Voter{"a", "x", "c"}, g.now)
		g.pass(lease * 6 / 10)
		g.deaf["a"], g.deaf["b"], g.lost = true, true, nil
		if g.members["c"].Accepted().Voters.Has("x") {
			t.Fatal("it knows it")
		}
		g.pass(lease)
		g.wantHost("x", 2)
	})
	t.Run("impossible voters", func(t *testing.T) {
		g := newGroup(t, "a", "b", "c")
		a := g.members["a"]
		n := a.accepted.Number
		for _, wish := range [][]Voter{nil, {"b", "c"}, {"a", "b", "b"}, {"a", ""}, {"a", "b", "c", "d", "e", "f"}, {"c", "b", "a"}} {
			a.Wish(wish, g.now)
			if a.accepted.Number != n {
				t.Errorf("%v", wish)
			}
		}
	})
}

// TestLoneHost: a host whose vote is the only one is not deposed, and one that has just begun
// is not.
func TestLoneHost(t *testing.T) {
	b := NewBallot("a", lease, 0)
	b.Lead(1, 0)
	for _, m := range []Message{
		{Kind: MessageTermOver, Term: 9}, {Kind: MessageAskVote, Term: 9, Entered: 9, Forced: true},
		{Kind: MessageAppend, Term: 9, Entry: &Entry{Term: 9, Number: 9, Voters: Voters{Incoming: []Voter{"b"}}}},
	} {
		m.From, m.To = "b", "a"
		b.Receive(m, lease)
		if _, hosts := b.Hosts(); !hosts {
			t.Errorf("%v deposes it", m)
		}
	}
	if n := b.Propose([]byte("x"), lease); b.Confirmed() != n || b.Votes() || !b.Majority(3*lease) {
		t.Error("it waits for others")
	}
}

// TestHostWithoutAVote: one that was elected while a change took its vote away needs the others.
func TestHostWithoutAVote(t *testing.T) {
	g := newGroup(t, "a", "b", "c")
	a := g.members["a"]
	a.accepted.Voters = Voters{Incoming: []Voter{"b", "c"}}
	if !a.Majority(g.now) {
		t.Error("the others do not count")
	}
	g.deaf["b"], g.deaf["c"] = true, true
	g.pass(lease)
	if a.Majority(g.now) {
		t.Error("it has a majority alone")
	}
	if a.Receive(Message{Kind: MessageTermOver, From: "b", To: "a", Term: 5}, g.now); a.role == leader {
		t.Error("it is not deposed")
	}
}

// TestOneBadVoter ends a host's term once each quarter of a lease at most, and one that does
// not vote ends none.
func TestOneBadVoter(t *testing.T) {
	for name, say := range map[string]func(a *Ballot) Message{
		"over": func(a *Ballot) Message { return Message{Kind: MessageTermOver, Term: a.promised + 1} },
		"ask": func(a *Ballot) Message {
			return Message{Kind: MessageAskVote, Term: a.promised + 1, Entered: a.promised, Number: 1 << 40, Forced: true}
		},
		"append": func(a *Ballot) Message { return Message{Kind: MessageAppend, Term: a.promised + 1} },
	} {
		for _, from := range []Voter{"c", "z"} {
			t.Run(fmt.Sprintf("%s of %s", name, from), func(t *testing.T) {
				g := newGroup(t, "a", "b", "c")
				g.deaf["c"] = true
				a, ended := g.members["a"], 0
				for range 4 * beatParts {
					term, hosted := a.Hosts()
					for range 3 {
						m := say(a)
						m.From, m.To = from, "a"
						a.Receive(m, g.now)
						a.Messages()
					}
					if now, hosts := a.Hosts(); hosted && (!hosts || now != term) {
						ended++
						a.Lead(a.promised+1, g.now) // at once, by a vote
						a.accepted.Voters = Voters{Incoming: []Voter{"a", "b", "c"}}
						a.since = 0
					}
					g.now += Beat(lease)
					a.Tick(g.now)
					g.members["b"].Tick(g.now)
					g.flow()
				}
				if limit := 4 * deposeParts; ended > limit || from == "z" && name != "append" && ended > 0 {
					t.Errorf("%d terms ended in four leases", ended)
				}
			})
		}
	}
}

func TestImpossibleMessages(t *testing.T) {
	entry := func(change func(*Entry)) *Entry {
		e := &Entry{Term: 2, Number: 9, Voters: Voters{Incoming: []Voter{"a", "b"}}}
		change(e)
		return e
	}
	long := string(make([]byte, maxName+1))
	for name, m := range map[string]Message{
		"no term":          {Term: 0},
		"a large term":     {Term: MaxTerm + 1},
		"a large number":   {Term: 2, Number: maxNumber + 1},
		"a large entry":    {Term: 2, Entered: MaxTerm + 1},
		"another term":     {Term: 2, Entry: entry(func(e *Entry) { e.Term = 1 })},
		"number 0":         {Term: 2, Entry: entry(func(e *Entry) { e.Number = 0 })},
		"the last number":  {Term: 2, Entry: entry(func(e *Entry) { e.Number = maxNumber + 1 })},
		"no voters":        {Term: 2, Entry: entry(func(e *Entry) { e.Voters = Voters{} })},
		"a voter twice":    {Term: 2, Entry: entry(func(e *Entry) { e.Voters.Incoming = []Voter{"a", "a"} })},
		"before, twice":    {Term: 2, Entry: entry(func(e *Entry) { e.Voters.Outgoing = []Voter{"a", "a"} })},
		"a voter, no name": {Term: 2, Entry: entry(func(e *Entry) { e.Voters.Incoming = []Voter{""} })},
		"a long name":      {Term: 2, Entry: entry(func(e *Entry) { e.Voters.Incoming = []Voter{Voter(long)} })},
		"six voters":       {Term: 2, Entry: entry(func(e *Entry) { e.Voters.Incoming = []Voter{"a", "b", "c", "d", "e", "f"} })},
	} {
		b := NewBallot("c", lease, 0)
		m.Kind, m.From, m.To = MessageAppend, "a", "c"
		if b.Receive(m, 1); m.possible() || len(b.Messages()) > 0 || b.host != "" {
			t.Errorf("%s is believed", name)
		}
	}
	m := Message{Kind: MessageAppend, From: "a", To: "c", Term: MaxTerm, Entry: &Entry{Term: MaxTerm, Number: maxNumber, Voters: Voters{Incoming: []Voter{"a", "c"}}}}
	b := NewBallot("c", lease, 0)
	b.Receive(m, 1)
	if b.Stand(false, lease); len(b.Messages()) != 1 {
		t.Error("it stands in a term that is none")
	}
}

// FuzzReceive: whatever a process is told, it keeps to a few names, says little, and hosts no
// term that is none.
func FuzzReceive(f *testing.F) {
	f.Add([]byte("\x01\x01\x02\x00\x05\x01"), uint8(0))
	f.Add([]byte("\x03\x02\x04\x09\x01\x07\x04\x02\x04\x09\x01\x07"), uint8(1))
	f.Fuzz(func(t *testing.T, data []byte, part uint8) {
		g := newGroup(t, "p0", "p1", "p2", "p3", "p4")
		id := Voter("p" + strconv.Itoa(int(part%2)))
		b := g.members[id]
		terms := []uint64{0, 1, 2, 3, 4, MaxTerm - 1, MaxTerm, MaxTerm + 1}
		numbers := []uint64{0, 1, 5, 9, 20, maxNumber - 1, maxNumber, maxNumber + 1}
		for len(data) >= 6 {
			x := data[:6]
			data = data[6:]
			m := Message{
				Kind: MessageKind(x[0] % 7), From: Voter("p" + strconv.Itoa(int(x[1]))), To: id, Term: terms[x[2]%8], Number: numbers[x[3]%8],
				Entered: terms[x[4]%8], Pre: x[5]&1 > 0, Forced: x[5]&2 > 0, Clock: time.Duration(x[3]-9) * lease / 9, Echo: time.Duration(x[2]-9) * lease / 9,
			}
			if x[5]&4 > 0 {
				m.Entry = &Entry{Term: m.Term, Number: m.Number}
				for k := range x[4] % 8 {
					m.Entry.Voters.Incoming = append(m.Entry.Voters.Incoming, Voter("p"+strconv.Itoa(int(k*(x[4]>>5)))))
				}
			}
			b.Receive(m, g.now)
			switch x[5] >> 3 & 7 {
			case 0:
				g.now += time.Duration(x[3]) * lease / 100
				b.Tick(g.now)
			case 1:
				b.Dead(m.From, g.now)
			case 2:
				b.Stand(m.Forced, g.now)
			case 3:
				b.Wish([]Voter{id, m.From}, g.now)
			case 4:
				b.Propose([]byte("x"), g.now)
			case 5:
				b.HostEnded()
			}
			if n := len(b.Messages()); n > 100 {
				t.Fatalf("%d messages", n)
			}
			for what, n := range map[string]int{"dead": len(b.dead), "former": len(b.former), "peers": len(b.peers), "votes": len(b.votes)} {
				if n > 4*MaxVoters {
					t.Fatalf("%d %s", n, what)
				}
			}
			if term, hosts := b.Hosts(); hosts && !Believable(term) {
				t.Fatalf("it hosts in term %d", term)
			}
			if v := b.Accepted().Voters; !v.possible() {
				t.Fatalf("voters %v", v)
			}
		}
	})
}
