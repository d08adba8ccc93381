package standby

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/core/succession"
	"rallypoint/internal/host"
	"rallypoint/internal/testkit"
)

// inbox keeps what is sent to a node or a standby.
type inbox struct{ frames []wire.Frame }

func (i *inbox) Send(f wire.Frame) bool {
	i.frames = append(i.frames, f)
	return true
}

// last is the last list that was sent, and how many were.
func (i *inbox) last() (f wire.Standbys, n int) {
	for _, frame := range i.frames {
		if s, ok := frame.(wire.Standbys); ok {
			f, n = s, n+1
		}
	}
	return f, n
}

func (i *inbox) liveness(t *testing.T) wire.Liveness {
	t.Helper()
	for _, frame := range slices.Backward(i.frames) {
		if l, ok := frame.(wire.Liveness); ok {
			return l
		}
	}
	t.Fatal("nothing was said")
	return wire.Liveness{}
}

func arrival(i int, addr, machine string) (Arrival, *inbox) {
	box := &inbox{}
	name := fmt.Sprint("n", i)
	return Arrival{
		Session: rendezvous.SessionID(name), Node: name, Label: name, Machine: machine, Remote: netip.MustParseAddr(addr),
		Follows: true, Stands: true, Out: box,
	}, box
}

// TestRegistry: the first five nodes are asked, the list has those that listen, another
// takes the place of one that goes, and later ones hear of it.
func TestRegistry(t *testing.T) {
	g := NewGroup("run", "host", time.Second, false)
	g.Found(time.Now())
	r := NewRegistry(g)
	var boxes []*inbox
	for i := range 7 {
		a, box := arrival(i, fmt.Sprint("10.0.0.", i+1), fmt.Sprint("m", i))
		r.Arrive(a)
		boxes = append(boxes, box)
		if f, _ := box.last(); f.Invited != (i < succession.MaxStandbys) {
			t.Errorf("node %d is invited: %v", i, f.Invited)
		}
	}
	for i := range 7 {
		wrong := r.Listens(rendezvous.SessionID(fmt.Sprint("n", i)), wire.Standby{Addr: fmt.Sprintf("10.0.0.%d:29400", i+1)})
		if (wrong == "") != (i < succession.MaxStandbys) {
			t.Errorf("node %d: %q", i, wrong)
		}
	}
	names := func(list []wire.StandbyNode) (names []string) {
		for _, s := range list {
			names = append(names, s.Node)
		}
		return names
	}
	if f, _ := boxes[6].last(); strings.Join(names(f.List), " ") != "n0 n1 n2 n3 n4" || len(g.Report().Standbys) != 5 {
		t.Errorf("the list is %v", f.List)
	}
	r.Gone("n1")
	if f, _ := boxes[5].last(); !f.Invited || strings.Join(names(f.List), " ") != "n0 n2 n3 n4" {
		t.Errorf("after one has gone: %+v", f)
	}
	if session, out, node := r.First(); session != "n0" || out == nil || node != "n0" {
		t.Errorf("the first is %s at %s", session, node)
	}
	if wrong := r.Listens("n5", wire.Standby{Why: "no port"}); wrong != "" || !strings.Contains(strings.Join(r.Whys(), ""), "no port") {
		t.Errorf("%q, %v", wrong, r.Whys())
	}
}

// TestRegistryRefuses what a listener's address must not be.
func TestRegistryRefuses(t *testing.T) {
	g := NewGroup("run", "host", time.Second, false)
	g.Found(time.Now())
	r := NewRegistry(g)
	a, _ := arrival(1, "10.0.0.1", "m")
	r.Arrive(a)
	for _, addr := range []string{"10.0.0.2:1", "127.0.0.1:1", "0.0.0.0:1", "10.0.0.1:0", "10.0.0.1", "host:1", "[::1]:1"} {
		if r.Listens("n1", wire.Standby{Addr: addr}) == "" {
			t.Errorf("%s was taken", addr)
		}
	}
	if wrong := r.Listens("stranger", wire.Standby{Addr: "10.0.0.1:1"}); wrong == "" {
		t.Error("a node that is not known was taken")
	}
	if len(g.Report().Standbys) != 0 {
		t.Errorf("the list is %v", g.Report().Standbys)
	}
}

// TestLoopbackStandsByAmongLoopbackOnly: with the first node of another machine, those
// that are reached by loopback are not in the list any more.
func TestLoopbackStandsByAmongLoopbackOnly(t *testing.T) {
	g := NewGroup("run", "host", time.Second, false)
	g.Found(time.Now())
	r := NewRegistry(g)
	a, box := arrival(1, "127.0.0.1", host.Boot())
	r.Arrive(a)
	if f, _ := box.last(); !f.Invited {
		t.Error("it is not invited")
	}
	r.Listens("n1", wire.Standby{Addr: "127.0.0.1:1"})
	b, _ := arrival(2, "10.0.0.2", "m")
	b.Stands = false
	r.Arrive(b)
	if f, _ := box.last(); f.Invited || len(f.List) != 0 {
		t.Errorf("beside a node of another machine: %+v", f)
	}
	r.Gone("n2")
	if f, _ := box.last(); !f.Invited {
		t.Error("it is not invited again")
	}
}

// TestManyNodesCostLittle: nodes behind the first ones change no list.
func TestManyNodesCostLittle(t *testing.T) {
	g := NewGroup("run", "host", time.Second, false)
	g.Found(time.Now())
	r := NewRegistry(g)
	first, box := arrival(0, "10.0.0.1", "m0")
	r.Arrive(first)
	for i := 1; i < 5; i++ {
		a, _ := arrival(i, "10.0.0.1", fmt.Sprint("m", i))
		r.Arrive(a)
	}
	_, before := box.last()
	for i := 5; i < 10_000; i++ {
		a, _ := arrival(i, "10.0.0.1", "m")
		r.Arrive(a)
	}
	for i := 5; i < 10_000; i++ {
		r.Gone(rendezvous.SessionID(fmt.Sprint("n", i)))
	}
	if _, after := box.last(); after != before {
		t.Errorf("%d lists instead of %d", after, before)
	}
}

// standing makes a node that stands by as the second of three.
func standing(t *testing.T) *Group {
	t.Helper()
	g := NewGroup("run", "b", 10*time.Second, false)
	g.Follow(wire.Welcome{Group: "g", Term: 3, HostNode: "h", Addr: "10.0.0.9:1"}, "10.0.0.9:1")
	g.SetSelf("10.0.0.2:1", "")
	g.SetList([]wire.StandbyNode{{Node: "a", Addr: "10.0.0.1:1"}, {Node: "b", Addr: "10.0.0.2:1"}, {Node: "c", Addr: "10.0.0.3:1"}})
	return g
}

var proof = succession.Evidence{Ended: true, Direct: true, Refused: succession.Dials}

// TestStatesMakeTheInput: what other standbys say is in the view, and what no standby can
// say of itself is not believed.
func TestStatesMakeTheInput(t *testing.T) {
	g := standing(t)
	box := &inbox{}
	link := g.Accept(wire.Liveness{RunID: "run", Group: "g", Node: "c", State: uint64(succession.Follows), Term: 3}, box)
	if link == nil || box.liveness(t).State != uint64(succession.Follows) {
		t.Fatalf("%v, %+v", link, box.frames)
	}
	g.Lost(proof, "g", 3)
	if box.liveness(t).State != uint64(succession.Lost) {
		t.Errorf("it says %+v", box.liveness(t))
	}
	for said, want := range map[succession.State]succession.State{
		succession.Follows: succession.Follows, succession.Lost: succession.Lost, succession.Abstains: succession.Abstains,
		succession.Dead: succession.Abstains, succession.Unconnected: succession.Abstains, succession.Asked: succession.Abstains,
		99: succession.Left,
	} {
		g.Hear(link, wire.Liveness{RunID: "run", Group: "g", Node: "c", State: uint64(said), Term: 3})
		v, ok := g.Input(proof, 3, 0)
		if !ok || len(v.Before) != 1 || len(v.Behind) != 1 || v.Behind[0].State != want || v.Before[0].State != succession.Unconnected {
			t.Errorf("said %d: %+v", said, v)
		}
	}
	g.Ask()
	if v, _ := g.Input(proof, 3, 0); v.Behind[0].State != succession.Asked || !box.liveness(t).Ask {
		t.Errorf("asked: %+v", v)
	}
	g.Hear(link, wire.Liveness{RunID: "run", Group: "other", Node: "c", State: uint64(succession.Lost)})
	if v, _ := g.Input(proof, 3, 0); v.Behind[0].State != succession.Asked {
		t.Error("the state of another group counts")
	}
	g.Drop(link)
	if v, _ := g.Input(proof, 3, 0); v.Behind[0].State != succession.Unconnected {
		t.Error("a connection that is gone has a state")
	}
}

// linkTo makes a connection that a process has opened to a node that votes.
func linkTo(g *Group, node string, linked ...string) *Link {
	l := g.Dial(node)
	g.Opened(l, &inbox{})
	g.Hear(l, wire.Liveness{RunID: "run", Group: g.Current().Group, Node: node, Voter: node, Linked: linked})
	return l
}

// TestVotersAreLinked: a host has nodes vote that have opened connections to each other, and waits
// for that at most a lease.
func TestVotersAreLinked(t *testing.T) {
	const lease = 100 * time.Millisecond
	host := func(lease time.Duration, b ...string) *Group {
		g := NewGroup("run", "a", lease, false)
		g.Found(time.Now())
		linkTo(g, "b", b...)
		g.SetEligible([]string{"b", "c"})
		return g
	}
	for what, linked := range map[string][2][]string{
		"voters without connections to each other": {}, "to another node": {{"a", "x"}, {"a", "b"}}, "in one direction": {{}, {"a", "b"}},
	} {
		g := host(time.Hour, linked[0]...)
		linkTo(g, "c", linked[1]...)
		if g.tick(); g.Votes() {
			t.Error(what)
		}
	}
	g := host(time.Hour, "a", "c")
	g.Accept(wire.Liveness{RunID: "run", Group: g.Current().Group, Node: "c", Voter: "c", Linked: []string{"a", "b"}}, &inbox{})
	if g.Votes() {
		t.Error("the host has opened no connection to a voter")
	}
	if linkTo(g, "c", "a", "b"); !g.Votes() {
		t.Error("no voters")
	}
	g = host(lease)
	linkTo(g, "c")
	testkit.Eventually(t, "those vote that have no connection to each other", func() bool { g.tick(); return g.Votes() })
}

// TestAnotherListens: a voter whose address another process answers at is gone: it gave its vote up
// before another could listen there.
func TestAnotherListens(t *testing.T) {
	g := NewGroup("run", "a", time.Hour, false)
	g.Found(time.Now())
	b := linkTo(g, "b", "a", "c")
	g.SetEligible([]string{"b", "c"})
	if linkTo(g, "c", "a", "b"); !g.Votes() {
		t.Fatal("no voters")
	}
	g.Ended(b, succession.Unconnected)
	g.Opened(b, &inbox{})
	g.Hear(b, wire.Liveness{RunID: "run", Group: g.Current().Group, Node: "new", Voter: "new"})
	g.tick()
	if awaited := g.Awaited(); slices.Contains(awaited, "b") {
		t.Errorf("it awaits the votes of %q", awaited)
	}

	s := standing(t)
	voted := s.Liveness().Voter
	if s.SetSelf("10.0.0.2:2", ""); s.Liveness().Voter != voted {
		t.Error("it gives its vote up when it listens elsewhere as well")
	}
	if s.SetSelf("", "closed"); s.Liveness().Voter == voted {
		t.Error("it votes under the name that it had while it listened")
	}
}

// TestLeadershipTransfer: a host that leaves tells the voters that it votes no more, and keeps its connections
// to them until they have heard it.
func TestLeadershipTransfer(t *testing.T) {
	g := NewGroup("run", "a", time.Hour, false)
	g.Found(time.Now())
	list := []wire.StandbyNode{{Node: "b", Addr: "10.0.0.2:1"}, {Node: "c", Addr: "10.0.0.3:1"}}
	g.SetList(list)
	links, boxes := map[string]*Link{}, map[string]*inbox{}
	for node, other := range map[string]string{"b": "c", "c": "b"} {
		links[node], boxes[node] = g.Dial(node), &inbox{}
		g.Opened(links[node], boxes[node])
		g.Hear(links[node], wire.Liveness{RunID: "run", Group: g.Current().Group, Node: node, Voter: node, Linked: []string{other}})
	}
	g.SetEligible([]string{"b", "c"})
	votersOf(g, links).carry()
	if !g.BeginTransfer("b") {
		t.Fatal("it cannot hand on")
	}
	g.StepDown(wire.Redirect{Group: g.Current().Group, Term: 2, Host: "10.0.0.2:1", Node: "b"})
	for node, box := range boxes {
		if word := box.liveness(t).State; word != uint64(succession.Left) {
			t.Errorf("%s hears %d", node, word)
		}
	}
	if wanted := g.Wanted(); !slices.Equal(wanted, list) {
		t.Errorf("it keeps connections to %v", wanted)
	}
}

// TestInherited: the host h is dead, and c was elected and is heard no more before this process was
// connected to it, though its probe may have come. The proof is of h: c is dead only if that is proven, whose
// facts the voters keep or not. Facts that c has begun with may be of a host between the two.
func TestInherited(t *testing.T) {
	for _, c := range []struct {
		wrote string // whose facts the voters keep, one after the other
		dead  succession.State
		want  Inheritance
	}{
		{"h", succession.Unconnected, Inheritance{From: "h", Missing: true}},
		{"h c", succession.Unconnected, Inheritance{From: "c", Missing: true, Silent: true}},
		{"x", succession.Unconnected, Inheritance{Missing: true, Silent: true}},
		{"x c", succession.Unconnected, Inheritance{From: "c", Missing: true, Silent: true}},
		{"h", succession.Dead, Inheritance{From: "h"}},
		{"h c", succession.Dead, Inheritance{From: "c"}},
		{"x", succession.Dead, Inheritance{Missing: true, Silent: true}},
		{"x c", succession.Dead, Inheritance{From: "c"}},
	} {
		for _, probed := range []bool{false, true} {
			g := standing(t)
			before := g.Current()
			link := linkTo(g, "c")
			voters := votersOf(g, map[string]*Link{"c": link})
			wrote := strings.Fields(c.wrote)
			last := "of " + wrote[0]
			voters.lead(t, "c", before.Term+1, rendezvous.EncodeFacts(rendezvous.Facts{Generation: last}))
			if len(wrote) > 1 {
				last = "of " + wrote[1]
				voters.nodes["c"].Propose(g.vote.now(), rendezvous.EncodeFacts(rendezvous.Facts{Generation: last}))
				voters.carry()
			}
			if probed {
				g.StepDown(wire.Redirect{Group: before.Group, Term: before.Term + 1, Host: "10.0.0.3:1", Node: "c"})
			}
			g.Ended(link, c.dead)
			in, err := g.Inherited("h", "of h", true)
			c.want.Facts, c.want.Silence = in.Facts, in.Silence
			if err != nil || in.Facts.Generation != last || fmt.Sprint(in) != fmt.Sprint(c.want) {
				t.Errorf("%+v, probed %v: %+v, %v", c, probed, in, err)
			}
		}
	}
}

// TestNamesOfManyVoters: of however many nodes that come and go, the names of those that vote stay known,
// and no others: without a name nobody's death would count.
func TestNamesOfManyVoters(t *testing.T) {
	g := NewGroup("run", "a", time.Hour, false)
	g.Found(time.Now())
	linkTo(g, "b", "a", "c")
	linkTo(g, "c", "a", "b")
	g.SetEligible([]string{"b", "c"})
	for i := range 5 * maxLinks {
		g.Drop(linkTo(g, fmt.Sprint("n", i)))
	}
	last := linkTo(g, "last")
	for _, node := range []string{"b", "c", "last"} {
		if g.vote.names[node] == 0 {
			t.Errorf("%s has no name among %v", node, g.vote.names)
		}
	}
	if g.Drop(last); len(g.vote.names) > maxLinks+3 {
		t.Errorf("%d names", len(g.vote.names))
	}
}

// TestFormerHostVotes: a voter keeps a connection to the host before, which votes and may not have come
// to the next one: should that die, the two elect another.
func TestFormerHostVotes(t *testing.T) {
	g := standing(t)
	former := wire.StandbyNode{Node: "h", Addr: "10.0.0.9:1"}
	link := g.Accept(wire.Liveness{RunID: "run", Group: "g", Node: "h", Voter: "h", State: uint64(succession.Leads), Term: 3}, &inbox{})
	votersOf(g, map[string]*Link{"h": link}).lead(t, "h", 3, nil)
	g.Drop(link)
	g.Follow(wire.Welcome{Group: "g", Term: 4, HostNode: "a"}, "10.0.0.1:1")
	list := []wire.StandbyNode{{Node: "b", Addr: "10.0.0.2:1"}, {Node: "c", Addr: "10.0.0.3:1"}}
	g.SetList(list)
	if wanted := g.Wanted(); !slices.Equal(wanted, []wire.StandbyNode{list[1], former}) {
		t.Errorf("it keeps connections to %v", wanted)
	}
	g.SetList(append(list, former)) // it has come
	if wanted := g.Wanted(); !slices.Equal(wanted, []wire.StandbyNode{list[1], former}) {
		t.Errorf("it keeps connections to %v", wanted)
	}
}

// TestLinkedIsTold: a standby tells the others about each connection that it opens.
func TestLinkedIsTold(t *testing.T) {
	g := standing(t)
	box := &inbox{}
	g.Accept(wire.Liveness{RunID: "run", Group: "g", Node: "c", State: uint64(succession.Follows), Term: 3}, box)
	g.Opened(g.Dial("a"), &inbox{})
	if got := box.liveness(t).Linked; !slices.Contains(got, "a") || len(got) != 1 {
		t.Errorf("%q", got)
	}
}

// TestAcceptIsBounded: strangers and too many find no place.
func TestAcceptIsBounded(t *testing.T) {
	g := standing(t)
	for _, f := range []wire.Liveness{{RunID: "other", Group: "g"}, {RunID: "run", Group: "other"}, {RunID: "run"}} {
		if g.Accept(f, &inbox{}) != nil {
			t.Errorf("%+v was let in", f)
		}
	}
	n := 0
	for range 1000 {
		if g.Accept(wire.Liveness{RunID: "run", Group: "g", Node: "x"}, &inbox{}) != nil {
			n++
		}
	}
	if n != maxLinks {
		t.Errorf("%d connections", n)
	}
}

// TestHostOfALaterTermSupersedes: a host hears of another one of its group.
func TestHostOfALaterTermSupersedes(t *testing.T) {
	g := standing(t)
	g.Lead(rendezvous.Succession{Term: 4}, time.Now(), 0)
	link := g.Accept(wire.Liveness{RunID: "run", Group: "g", Node: "c"}, &inbox{})
	target := wire.Redirect{Group: "g", Term: 5, Host: "10.0.0.3:1"}
	for term, want := range map[uint64]bool{3: false, 5: true, 1<<64 - 1: false} {
		to, superseded := g.Hear(link, wire.Liveness{RunID: "run", Group: "g", Node: "c", State: uint64(succession.Leads), Term: term, Target: target})
		if superseded != want || want && to.Host != target.Host {
			t.Errorf("term %d: %v, %+v", term, superseded, to)
		}
	}
	if !g.StepDown(target) || g.Hosting() || g.StepDown(target) {
		t.Error("it does not step down once")
	}
	if to, serve, known := g.Admit(); serve || !known || to.Host != target.Host {
		t.Errorf("%+v, %v, %v", to, serve, known)
	}
}

// TestLostDoesNotForgetASuccessor that was named while the connection's end was on its way.
func TestLostDoesNotForgetASuccessor(t *testing.T) {
	g := standing(t)
	g.StepDown(wire.Redirect{Group: "g", Term: 4, Host: "10.0.0.1:1"})
	g.Lost(proof, "g", 3)
	if to := g.Newer("g", 3); to != "10.0.0.1:1" {
		t.Errorf("the successor is %q", to)
	}
	g.Lost(proof, "g", 4)
	if to := g.Newer("g", 3); to != "" {
		t.Errorf("a host that is lost as well is %q", to)
	}
}

// TestListOutlivesItsHost: a host of a later term that has no standby yet, and may die so,
// does not make those of the host before forget each other.
func TestListOutlivesItsHost(t *testing.T) {
	g := standing(t)
	want := g.Report().Standbys
	g.StepDown(wire.Redirect{Group: "g", Term: 4, Host: "10.0.0.1:1"}) // a probe tells of it
	g.SetList(nil)                                                     // its first list
	if got := g.Report().Standbys; !slices.Equal(got, want) {
		t.Errorf("the list is %v", got)
	}
	if v, ok := g.Input(proof, 4, 0); !ok || len(v.Before) != 1 || len(v.Behind) != 1 {
		t.Errorf("it does not stand by: %+v", v)
	}
	g.StepDown(wire.Redirect{Group: "other", Term: 1, Host: "10.0.0.1:1"})
	if got := g.Report().Standbys; len(got) != 0 {
		t.Errorf("the list of another group: %v", got)
	}
}

// TestAnotherGroupIsFollowed: a node whose host is silent joins another job at its endpoint. That the silent host has
// led in a later term, by a connection that has not ended yet, is no reason to leave.
func TestAnotherGroupIsFollowed(t *testing.T) {
	g := standing(t)
	host := wire.Redirect{Group: "g", Term: 4, Host: "10.0.0.1:1", Node: "a"}
	link := g.Accept(wire.Liveness{RunID: "run", Group: "g", Node: "a", State: uint64(succession.Leads), Term: 4, Target: host}, &inbox{})
	if to, found := g.Elsewhere("g", 3); link == nil || !found || to.Host != host.Host {
		t.Fatalf("a successor is at %+v, %v", to, found)
	}
	g.Follow(wire.Welcome{Group: "other", Term: 1, HostNode: "f", Addr: "10.0.0.8:1"}, "10.0.0.8:1")
	if to, found := g.Elsewhere("other", 1); found {
		t.Errorf("it leaves for %+v", to)
	}
	if got := g.Report().Standbys; len(got) != 0 {
		t.Errorf("it looks for the standbys %v", got)
	}
}

// TestStandbysStayWhereTheyListen: those of the host before are on the list at once, without
// an invitation and its answer.
func TestStandbysStayWhereTheyListen(t *testing.T) {
	g := standing(t)
	g.Lead(rendezvous.Succession{Term: 4}, time.Now(), 0)
	r := NewRegistry(g)
	for i, x := range []struct {
		node, addr string
		follower   bool
		want       string
	}{
		{"c", "10.0.0.3", true, "10.0.0.3:1"}, {"a", "10.0.0.7", true, ""}, {"new", "10.0.0.8", true, ""},
		{"a", "10.0.0.1", false, ""}, // another process, started since
	} {
		a, box := arrival(i, x.addr, "elsewhere")
		a.Node, a.Follower = x.node, x.follower
		r.Arrive(a)
		f, _ := box.last()
		stands := slices.ContainsFunc(f.List, func(s wire.StandbyNode) bool { return s.Node == x.node })
		if !f.Invited || stands != (x.want != "") || len(f.List) != 1 || f.List[0].Addr != "10.0.0.3:1" {
			t.Errorf("%s got %+v", x.node, f)
		}
	}
}

// ordered checks that a state is queued before another one can follow from a later state.
type ordered struct {
	t *testing.T
	g *Group
}

func (o ordered) Send(f wire.Frame) bool {
	if o.g.mu.TryLock() {
		o.g.mu.Unlock()
		o.t.Errorf("%+v may be passed by a newer state", f)
	}
	return true
}

// TestStatesLeaveInOrder: an old state that arrives last would stay, and hold up a takeover
// for a whole lease.
func TestStatesLeaveInOrder(t *testing.T) {
	g := standing(t)
	box := ordered{t, g}
	g.Accept(wire.Liveness{RunID: "run", Group: "g", Node: "c", Ask: true}, box)
	g.Opened(g.Dial("a"), box)
	g.Ask()
	g.Lost(proof, "g", 3)
	g.Follow(wire.Welcome{Group: "g", Term: 4, HostNode: "a"}, "10.0.0.1:1")
	g.Lead(rendezvous.Succession{Term: 5}, time.Now(), 0)
}

// TestDesertedHostIsElectedAgain: a firewall resets the connections of a host to its voters, so that it takes them for
// dead, and proposes to do without them. One of them is back after half a lease, and the other has died. The host knows
// more than the one that is left, which nobody can elect, so that it has to be the host again.
func TestDesertedHostIsElectedAgain(t *testing.T) {
	const lease = 10 * time.Second
	g, b, c, voters := hostWithMajority(t, lease)
	g.Ended(b, succession.Dead)
	g.Ended(c, succession.Dead)
	pass(g, lease)
	to, why := g.Deserted()
	if why == "" {
		t.Fatal("it hosts on")
	}
	g.StepDown(to)
	delete(voters.nodes, "c")
	g.Opened(b, &inbox{})
	g.Hear(b, wire.Liveness{RunID: "run", Group: g.Current().Group, Node: "b", Voter: "b", State: uint64(succession.Lost)})
	for range 4 * lease / g.Beat() {
		pass(g, g.Beat())
		voters.nodes["b"].Tick(g.vote.now())
		voters.carry()
	}
	if _, leads := voters.nodes["b"].Leads(); !leads && g.Elected() == 0 {
		t.Error("nobody is elected, though two of three voters are connected")
	}
}

// TestAttempted: three dials that are refused in a row prove that a process is dead whose side has ended its last
// connection, however many others have failed before.
func TestAttempted(t *testing.T) {
	type attempt struct {
		opened bool
		err    error
	}
	const refused, reset, silent = syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ETIMEDOUT
	ended := attempt{true, io.EOF}
	for what, c := range map[string]struct {
		attempts []attempt
		dead     bool
	}{
		"refused from the beginning":     {[]attempt{{false, refused}, {false, refused}, {false, refused}}, false},
		"ended here":                     {[]attempt{{true, net.ErrClosed}, {false, refused}, {false, refused}, {false, refused}}, false},
		"refused twice":                  {[]attempt{ended, {false, refused}, {false, refused}}, false},
		"refused three times":            {[]attempt{ended, {false, refused}, {false, refused}, {false, refused}}, true},
		"the listener outlives it":       {[]attempt{ended, {false, refused}, {false, refused}, {false, reset}, {false, refused}}, false},
		"twice before a cut":             {[]attempt{ended, {false, refused}, {false, refused}, {false, silent}, {false, refused}}, false},
		"cut off for a while":            {[]attempt{ended, {false, refused}, {false, silent}, {false, refused}, {false, refused}, {false, refused}}, true},
		"another connection stands":      {[]attempt{ended, {false, refused}, {true, net.ErrClosed}, {false, refused}, {false, refused}, {false, refused}}, false},
		"ended before a second had word": {[]attempt{{true, net.ErrClosed}, {false, reset}, {false, refused}, {false, refused}, {false, refused}}, true},
	} {
		g := standing(t)
		l := linkTo(g, "a")
		for i, a := range c.attempts {
			pause, soon := g.Attempted(l, a.opened, a.err)
			if last := i == len(c.attempts)-1; !last && a.err == refused && l.end.Ended && (!soon || pause != succession.DialEvery) {
				t.Errorf("%s: the next attempt is after %s, soon %v", what, pause, soon)
			}
		}
		if died := g.Died(); slices.Contains(died, "a") != c.dead {
			t.Errorf("%s: %v died", what, died)
		}
	}
}
