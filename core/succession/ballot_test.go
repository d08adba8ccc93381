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
	a.accepted.Term, a.votes = 3, map[Voter]time.Duration{}
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
	t.Run("two of three", func(t *testing.T) {
		g := newGroup(t, "a", "b", "c")
		g.kill("a", "b")
		g.wantHost("c", 1+2*termsOfOne)
	})
	t.Run("the host, and then a voter that was asked", func(t *testing.T) {
		g := newGroup(t, "a", "b", "c")
		b, c := g.members["b"], g.members["c"]
		g.deaf["a"] = true
		b.HostEnded()
		c.HostEnded()
		g.lost = func(m Message) bool { return m.Kind == MessageVote && !m.Pre }
		c.Dead("a", g.now)
		c.Stand(false, g.now)
		g.flow()
		g.wantHost("", 0)
		g.deaf["b"] = true
		c.Dead("b", g.now)
		g.wantHost("c", 2+2*termsOfOne)
	})
	t.Run("one after the other", func(t *testing.T) {
		g := newGroup(t, "a", "b", "c", "d", "e")
		g.kill("a")
		g.wantHost("b", 2)
		g.kill("b")
		g.wantHost("c", 3)
		g.kill("d")
		g.wantHost("c", 3)
		g.kill("c")
		if host, _ := g.host(); host != "e" {
			t.Errorf("%q hosts", host)
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
	t.Run("a voter, and then the other falls silent and is killed", func(t *testing.T) {
		g := newGroup(t, "a", "b", "c")
		g.kill("b")
		g.deaf["c"] = true
		n := g.members["a"].Propose(nil, g.now)
		g.pass(2 * lease)
		if g.members["a"].Confirmed() >= n || g.members["a"].Majority(g.now) {
			t.Error("the silence of a voter counts as its death")
		}
		g.kill("c")
		if g.members["a"].Confirmed() < n || !g.members["a"].Majority(g.now) {
			t.Error("the host waits for the dead")
		}
	})
}

// TestChangeAndProof: a voter that a change of voters has not reached, and one that the change
// adds, do not take each other's place by the deaths of all others that they know.
func TestChangeAndProof(t *testing.T) {
	changing := func(t *testing.T) *group {
		g := newGroup(t, "a", "b", "c")
		g.add("d", "e")
		g.lost = func(m Message) bool { return m.From == "c" || m.To == "c" }
		g.members["a"].Wish([]Voter{"a", "b", "c", "d", "e"}, g.now)
		g.flow()
		return g
	}
	t.Run("the change waits for one that may decide alone", func(t *testing.T) {
		g := changing(t)
		if a := g.members["a"]; !a.Accepted().Voters.changing() || a.Confirmed() < a.Accepted().Number {
			t.Errorf("%+v, confirmed %d", a.Accepted(), a.Confirmed())
		}
		g.pass(lease * 6 / 10)
		if v := g.members["a"].Accepted().Voters; v.changing() || len(v.Incoming) != 5 {
			t.Errorf("the change does not end: %+v", v)
		}
		c := g.members["c"]
		c.Dead("a", g.now)
		c.Dead("b", g.now)
		if c.ProvenDead("a") || c.ProvenDead("b") {
			t.Error("it may decide alone")
		}
	})
	t.Run("not longer than until it knows", func(t *testing.T) {
		g := changing(t)
		g.lost = nil
		g.pass(2 * Beat(lease))
		if v := g.members["c"].Accepted().Voters; v.changing() || len(v.Incoming) != 5 {
			t.Errorf("the change does not end: %+v", v)
		}
	})
	t.Run("one that it adds", func(t *testing.T) {
		g := changing(t)
		g.pass(2 * Beat(lease)) // d and the host hear each other
		d := g.members["d"]
		g.deaf["a"], g.deaf["b"] = true, true
		d.Dead("a", g.now)
		d.Dead("b", g.now)
		if !d.ProvenDead("a") || !d.ProvenDead("b") {
			t.Fatal("deaths do not count")
		}
		g.now += 5 * lease
		d.Tick(g.now)
		d.Dead("c", g.now)
		d.Dead("e", g.now)
		d.Stand(false, g.now)
		g.wantHost("", 0)
	})
}

// TestProofIsBounded: a voter counts the dead for half a lease after a host with a majority has
// heard it, and for longer only if nothing can be decided without it.
func TestProofIsBounded(t *testing.T) {
	cutOff := func(t *testing.T, silent time.Duration, names ...Voter) (*group, *Ballot) {
		g := newGroup(t, names...)
		last := names[len(names)-1]
		g.lost = func(m Message) bool { return m.From == last || m.To == last }
		g.pass(silent)
		for _, id := range names[:len(names)-1] {
			g.deaf[id] = true
		}
		g.lost = nil
		return g, g.members[last]
	}
	t.Run("lately", func(t *testing.T) {
		g, c := cutOff(t, lease*3/10, "a", "b", "c")
		c.Dead("a", g.now)
		c.Dead("b", g.now)
		c.Stand(false, g.now)
		g.wantHost("c", 1+2*termsOfOne)
	})
	t.Run("long ago", func(t *testing.T) {
		g, c := cutOff(t, lease*6/10, "a", "b", "c")
		c.Dead("a", g.now)
		if _, stranded, _ := c.Stranded(nobody, nobody); stranded {
			t.Error("stranded while one other voter may live")
		}
		if _, stranded, proven := c.Stranded(nobody, func(id Voter) bool { return id == "b" }); !stranded || proven {
			t.Errorf("the other voter is only gone: stranded %v, proven %v", stranded, proven)
		}
		c.Dead("b", g.now)
		c.Stand(false, g.now)
		g.pass(3 * lease)
		g.wantHost("", 0)
		if place, stranded, proven := c.Stranded(nobody, nobody); !stranded || !proven || place != 0 {
			t.Errorf("the last of three: place %d, stranded %v", place, stranded)
		}
	})
	t.Run("the second death later", func(t *testing.T) {
		g, c := cutOff(t, lease*3/10, "a", "b", "c")
		c.Dead("a", g.now)
		g.now += 5 * lease
		c.Tick(g.now)
		c.Dead("b", g.now)
		c.Stand(false, g.now)
		g.wantHost("c", 1+2*termsOfOne)
	})
	t.Run("the second of five later: three others may have elected a host", func(t *testing.T) {
		g, e := cutOff(t, lease*3/10, "a", "b", "c", "d", "e")
		e.Dead("a", g.now)
		g.now += 5 * lease
		e.Tick(g.now)
		for _, id := range []Voter{"b", "d"} {
			e.Dead(id, g.now)
		}
		if place, stranded, proven := e.Stranded(func(id Voter) bool { return id == "c" }, nobody); !stranded || !proven || place != 1 {
			t.Errorf("one other is alive: place %d, stranded %v", place, stranded)
		}
		e.Dead("c", g.now)
		e.Stand(false, g.now)
		g.pass(3 * lease)
		g.wantHost("", 0)
	})
	t.Run("a host without a majority keeps none", func(t *testing.T) {
		g := newGroup(t, "a", "b", "c", "d", "e")
		g.lost = func(m Message) bool { // a and e on one side
			in := func(id Voter) bool { return id == "a" || id == "e" }
			return in(m.From) != in(m.To)
		}
		g.pass(2 * lease)
		e := g.members["e"]
		if g.now-e.heard > Beat(lease) || g.now-e.sure < lease {
			t.Fatalf("heard %v ago, sure %v ago", g.now-e.heard, g.now-e.sure)
		}
		for _, id := range []Voter{"a", "b", "c", "d"} {
			g.deaf[id] = true
			e.Dead(id, g.now)
		}
		e.Stand(false, g.now)
		g.pass(3 * lease)
		g.wantHost("", 0)
	})
	t.Run("a word that was held up keeps none", func(t *testing.T) {
		g := newGroup(t, "a", "b", "c")
		g.members["a"].Tick(g.now + Beat(lease))
		held := g.members["a"].Messages()
		g.deaf["a"], g.deaf["b"] = true, true
		c := g.members["c"]
		for range 60 {
			g.now += Beat(lease)
			c.Tick(g.now)
		}
		for _, m := range held {
			c.Receive(m, g.now)
		}
		if c.heard != g.now {
			t.Fatal("it was not heard")
		}
		c.Dead("a", g.now)
		c.Dead("b", g.now)
		c.Stand(false, g.now)
		g.pass(lease)
		g.wantHost("", 0)
	})
}

// TestVotersChange: in two entries, with the majorities of both; the next change waits until
// those that vote no more know it, for a lease at most.
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
		if a.Accepted().Voters.Has("b") {
			t.Error("the next change does not wait")
		}
		g.pass(lease)
		if !a.Accepted().Voters.Has("b") || len(a.former) > 0 {
			t.Error("the next change waits for a silent one")
		}
		if g.deaf["c"] = false; a.Answered()["c"] != 0 {
			t.Error("it is known for ever")
		}
		g.pass(lease)
		if g.members["c"].Votes() {
			t.Error("one that was removed while it was silent does not learn it")
		}
		g.wantHost("a", 1)
	})
	t.Run("the host dies between the two entries", func(t *testing.T) {
		g := newGroup(t, "a", "b", "c")
		g.add("x")
		g.kill("c")
		n := g.members["a"].accepted.Number + 1
		g.lost = func(m Message) bool { return m.Entry != nil && m.Entry.Number > n }
		g.members["a"].Wish([]Voter{"a", "b", "x"}, g.now)
		g.flow()
		if !g.members["b"].Accepted().Voters.changing() {
			t.Fatal("no change is under way")
		}
		g.lost = nil
		g.kill("a")
		g.wantHost("b", 1+2*termsOfOne)
		if v := g.members["b"].Accepted().Voters; v.changing() || !v.Has("x") {
			t.Errorf("voters %v", v)
		}
	})
	t.Run("a silent voter dies in it, late", func(t *testing.T) { // without the host no process can decide anything
		g := newGroup(t, "a", "b", "c")
		g.add("x")
		a := g.members["a"]
		g.deaf["b"] = true
		g.kill("c")
		a.Wish([]Voter{"a", "b", "x"}, g.now)
		g.pass(lease)
		if v := a.Accepted().Voters; !v.changing() || a.Majority(g.now) {
			t.Fatalf("the change does not need the silent one: %v", v)
		}
		g.kill("b")
		g.pass(lease / 10)
		if v := a.Accepted().Voters; v.changing() || !a.Majority(g.now) || !a.ProvenDead("b") {
			t.Errorf("it waits for the dead: %v, dead %v", v, a.dead)
		}
	})
	t.Run("and all that were to stay are dead", func(t *testing.T) {
		g := newGroup(t, "a", "b", "c")
		g.kill("c")
		n := g.members["a"].accepted.Number + 1
		g.lost = func(m Message) bool { return m.Entry != nil && m.Entry.Number > n }
		g.members["a"].Wish([]Voter{"a"}, g.now)
		g.flow()
		g.lost = nil
		g.kill("a")
		if host, _ := g.host(); host != "b" {
			t.Fatalf("%q hosts", host)
		}
		b := g.members["b"]
		b.Wish([]Voter{"b"}, g.now)
		if v := b.Accepted().Voters; b.Votes() || !v.Has("b") || v.Has("a") {
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

// TestHandedOnAndProof: a host has asked another one to host, and hears no answer. That one may have
// been elected at once, and have confirmed something: its death and that of its voter do not let the
// host decide alone, also when it has given the transfer up.
func TestHandedOnAndProof(t *testing.T) {
	g := newGroup(t, "a", "b", "c")
	a, b := g.members["a"], g.members["b"]
	if !a.HandOn("b") {
		t.Fatal("it cannot hand on")
	}
	g.lost = func(m Message) bool { return m.To == "a" }
	b.Stand(true, g.now)
	g.flow()
	number := b.Propose([]byte("new"), g.now)
	g.flow()
	if b.Confirmed() != number {
		t.Fatal("the next host confirms nothing")
	}
	a.KeepOn()
	a.Dead("b", g.now)
	a.Dead("c", g.now)
	before := a.Confirmed()
	a.Propose([]byte("old"), g.now)
	g.pass(lease)
	if a.Confirmed() > before || a.Majority(g.now) {
		t.Error("a host that has handed on decides alone")
	}
}

// TestLateProofInAChange: to a voter that is not the host a change may be over, so that the others decide by
// the majority of those after it: a late death does not count while these may live.
func TestLateProofInAChange(t *testing.T) {
	a := NewBallot("a", lease, 0)
	a.Receive(Message{Kind: MessageAppend, From: "h", To: "a", Term: 1, Clock: 1, Entry: &Entry{
		Term: 1, Number: 2, Voters: Voters{Incoming: []Voter{"a", "h", "x"}, Outgoing: []Voter{"a", "h", "c"}},
	}}, 1)
	a.Heeded(1, 1)
	a.Dead("c", 2)
	a.Dead("h", lease)
	if !a.ProvenDead("c") || a.ProvenDead("h") || !a.DeadLate("h") {
		t.Errorf("dead %v, too late %v", a.dead, a.tooLate)
	}
}
