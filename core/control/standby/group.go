package standby

import (
	"cmp"
	"crypto/rand"
	"net/netip"
	"slices"
	"sync"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/election/raft"
	"rallypoint/core/rendezvous"
	"rallypoint/core/succession"
	"rallypoint/internal/host"
)

// HoldHello is how long a server that does not host keeps a hello while it finds out who does.
const HoldHello = time.Second

// Group is this process's view of the servers of its run. Its methods are safe for concurrent use
// and do not block.
type Group struct {
	runID    string
	node     string // this process's node
	clock    Clock
	lease    time.Duration
	noQuorum bool // a host continues alone, and nobody votes
	members  members
	inside   string // the group's name among its servers; "": the one that nodes know
	maxFrame int

	mu        sync.Mutex
	changed   chan struct{} // closed at the next change
	hosting   bool
	reign     uint64 // in which this process leads, or begins to; 0: none, or another one has led since
	reigns    uint64 // how many there were
	closed    bool
	listening []netip.AddrPort // of the own server
	self      string           // address of the own listener; "": none
	target    wire.Redirect    // who hosts as far as is known
	round     bool             // the server here has formed or adopted a round
	link      succession.State // what this process's client knows about the host
	certain   bool             // target hosts, as far as is known
	list      []wire.StandbyNode
	before    []wire.StandbyNode // the list of the host before
	parted    []wire.StandbyNode // those that vote and are not in the list, the host before among them
	why       string             // why this node does not stand by though it was asked to
	links     map[*Link]struct{}
	direct    bool     // the host is where this process has dialled it: its death can be proven
	deposed   bool     // this process hosted with voters, stepped down before another host, and has followed none since
	settled   bool     // a beat has passed since this process has had a list of standbys
	died      []string // nodes whose processes were proven dead since Died was called
	takeover  Takeover
	vote      vote
	start     rendezvous.Succession // what the server here begins with
}

// members is what differs between a group of nodes, which come and go and serve one run, and Peers. A Group
// itself is the former. The caller holds Group.mu.
type members interface {
	// heardLocked returns by which name the process at the other end of a connection votes, and whether
	// this one has to step down before it.
	heardLocked(l *Link, said wire.Liveness) (voter raft.Voter, superseded bool)
	// setVotersLocked makes the processes vote, and this process a candidate, that should according to the
	// present connections.
	setVotersLocked()
	// voteLocked sends raft's messages, and wakes those that wait for its decisions.
	voteLocked()
	sendLocked(m raft.Message)
	// leaveLocked is for StepDown: this process follows another server.
	leaveLocked(to wire.Redirect)
	// livenessLocked returns this process's message about itself to the others.
	livenessLocked() wire.Liveness
	// nodeOfLocked returns the node of a voter; "" if it is not known.
	nodeOfLocked(id raft.Voter) string
	// assembleLocked returns the message of a frame, if that, or all of it that came before, is whole. It reports
	// as impossible what no process that follows the protocol can have sent.
	assembleLocked(l *Link, f wire.Vote) (m raft.Message, whole, possible bool)
	// adoptLocked takes part in the cluster of a message, if this process may.
	adoptLocked(m raft.Message)
	// forgetLocked gives this process an empty memory, and another name as a voter.
	forgetLocked()
	// votersLocked is for Voters.
	votersLocked() []string
	// waitsLocked returns why a server that hears of no host waits; "" if it can name no reason.
	waitsLocked() string
}

// Takeover is how this process came to host.
type Takeover struct {
	Since time.Time     // it hosts; zero: it does not
	From  string        // the node that hosted before; "": this process founded the group
	Took  time.Duration // from the end of the connection to the host before
	Total uint64        // takeovers of this process
	Spent time.Duration // by all of them
}

// NewGroup makes the view of a process that knows nothing yet.
func NewGroup(runID, node string, lease time.Duration, noQuorum bool) *Group {
	return newGroup(runID, node, lease, noQuorum, host.Uptime)
}

func newGroup(runID, node string, lease time.Duration, noQuorum bool, clock Clock) *Group {
	g := &Group{
		runID: runID, node: node, lease: lease, noQuorum: noQuorum, clock: clock, maxFrame: wire.MaxHelloFrame,
		changed: make(chan struct{}), links: map[*Link]struct{}{}, vote: newVote(clock, lease, raft.NewVoter(0), nil),
	}
	g.members = g
	return g
}

// wakeLocked tells all that wait that something has changed.
func (g *Group) wakeLocked() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// Changed returns a channel that is closed at the next change.
func (g *Group) Changed() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changed
}

// Found makes this process the founder of a group, in term 1.
func (g *Group) Found(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.foundLocked(now)
}

func (g *Group) foundLocked(now time.Time) {
	g.hosting, g.round = true, false
	g.target = wire.Redirect{Group: rand.Text(), Term: 1, Host: g.self, Node: g.node}
	g.takeover.Since, g.takeover.From, g.takeover.Took = now, "", 0
	g.start = rendezvous.Succession{Term: 1}
	g.list = nil
	g.beginLocked(1, nil)
	g.beginReignLocked()
	g.members.voteLocked()
	g.wakeLocked()
}

func (g *Group) beginReignLocked() {
	g.reigns++
	g.reign = g.reigns
}

// beginLocked begins a cluster in which this process is the only voter.
func (g *Group) beginLocked(term uint64, value []byte) {
	g.voteAsLocked(raft.NewVoter(0))
	g.vote.node.Begin(rand.Text(), term-1, []raft.Voter{g.vote.voter}, value, g.vote.now())
}

// Lead makes this process the host in a term, as the successor of a node that has left, is
// silent, or whose process is dead. s says which, and has that node's last facts. It reports
// false, and changes nothing, if this process votes and was not elected in that term, or if a
// later term has begun.
func (g *Group) Lead(s rendezvous.Succession, now time.Time, took time.Duration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	from, at, term := g.target.Node, g.target.Host, s.Term
	switch elected, leads := g.vote.node.Leads(); {
	case leads && elected == term:
	case leads, g.vote.node.Votes(), g.target.Term >= term:
		return false
	default:
		value, _, _ := g.vote.node.Value()
		g.beginLocked(term, value)
	}
	g.before, g.parted = g.list, append(slices.Clone(g.list), wire.StandbyNode{Node: from, Addr: at})
	g.beginReignLocked()
	g.hosting, g.round = true, false
	g.target = wire.Redirect{Group: g.target.Group, Term: term, Host: g.self, Node: g.node}
	t := &g.takeover
	t.Since, t.From, t.Took, g.start = now, cmp.Or(s.From, from), took, s
	t.Total++
	t.Spent += took
	g.list, g.died = nil, nil // who died before has no session here
	g.vote.eligible, g.vote.listed = nil, nil
	if s.Left {
		g.vote.node.Dead(g.vote.names[from], g.vote.now())
	}
	g.members.setVotersLocked()
	g.wakeLocked()
	g.tellLocked()
	g.members.voteLocked()
	return true
}

// Follow notes which server this process's client is connected to, by its welcome.
func (g *Group) Follow(w wire.Welcome, dialled string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.hosting {
		if w.Group != g.target.Group { // whose standbys say nothing of this one's host
			g.list = nil
		}
		g.renewVoteLocked(w.Group)
		g.partLocked(w.Group, w.HostNode)
		g.target = wire.Redirect{Group: w.Group, Term: w.Term, Host: dialled, Node: w.HostNode, Servers: w.Servers}
		g.direct = w.Addr == dialled
	}
	g.link, g.certain, g.deposed = succession.Follows, true, false
	g.newClusterLocked()
	g.wakeLocked()
	g.tellLocked()
}

// Lost notes that the connection to the host of a term has ended, with this process's evidence
// about the host.
func (g *Group) Lost(e succession.Evidence, group string, term uint64) {
	state := succession.Abstains
	if e.Ended && e.Direct {
		state = succession.Lost
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	newer := g.target.Group != group || g.target.Term > term // it was named meanwhile
	changed := g.link != state || g.certain && !newer
	g.link, g.certain = state, g.certain && newer
	if state == succession.Lost {
		g.vote.node.LeaderEnded(g.vote.now())
	}
	if changed {
		g.wakeLocked()
		g.tellLocked()
	}
}

// StepDown makes a server that hosts one in waiting, or a server in waiting follow another
// server. It reports whether this process has hosted until now.
func (g *Group) StepDown(to wire.Redirect) (hosted bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	hosted = g.hosting
	g.members.leaveLocked(to)
	g.hosting, g.reign, g.target, g.direct = false, 0, to, false
	g.link, g.certain = succession.Abstains, to.Host != ""
	g.takeover.Since = time.Time{}
	g.wakeLocked()
	if g.resignedLocked() {
		g.tellLocked()
	}
	return hosted
}

func (g *Group) leaveLocked(to wire.Redirect) {
	if g.hosting {
		g.parted = g.partedLocked(append(slices.Clone(g.list), g.parted...), nil)
	} else {
		g.partLocked(to.Group, to.Node)
	}
	if g.hosting || g.target.Group != to.Group {
		g.list = nil
	}
	g.renewVoteLocked(to.Group)
	superseded := g.hosting && g.reign == 0
	if _, leads := g.vote.node.Leads(); leads && !g.vote.asked && !superseded {
		g.deposed = g.hosting && g.vote.node.Votes()
		g.forgetLocked() // it has met another leader, which these voters have not elected
	}
}

// partLocked keeps in mind where the host listens that another one succeeds.
func (g *Group) partLocked(group, next string) {
	if group == g.target.Group && next != g.target.Node {
		g.parted = g.partedLocked(append(g.parted, wire.StandbyNode{Node: g.target.Node, Addr: g.target.Host}), nil)
	}
}

// renewVoteLocked has this process begin without a memory in another group.
func (g *Group) renewVoteLocked(group string) {
	if group != g.target.Group {
		g.vote = newVote(g.clock, g.lease, raft.NewVoter(0), nil)
	}
}

func (g *Group) forgetLocked() { g.voteAsLocked(raft.NewVoter(0)) }

// voteAsLocked gives this process another name as a voter, and a memory that is empty.
func (g *Group) voteAsLocked(id raft.Voter) {
	names := g.vote.names
	g.vote = newVote(g.clock, g.lease, id, nil)
	g.vote.names = names
}

// newClusterLocked has this process forget a cluster in whose place the leader that it follows has begun another
// one: it can vote in the latter only if it brings nothing along.
func (g *Group) newClusterLocked() {
	own := g.vote.node.Cluster()
	if own != "" && !g.hosting && g.anyLink(func(l *Link) bool {
		return l.state == succession.Leads && l.node == g.target.Node && l.term >= g.target.Term && l.cluster != "" && l.cluster != own
	}) != nil {
		g.members.forgetLocked()
		g.tellLocked()
	}
}

// Admit decides what a server does with a hello: it serves or redirects the node. known is false
// until it is known who hosts.
func (g *Group) Admit() (to wire.Redirect, serve, known bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	to = g.target
	to.Servers = g.servers()
	return to, g.hosting, g.certain && to.Host != "" && to.Host != g.self
}

// Newer returns where a server of the group hosts in a later term, as it has said itself;
// "" if none has.
func (g *Group) Newer(group string, term uint64) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.hosting || !g.certain || g.target.Group != group || g.target.Term <= term || g.target.Host == g.self {
		return ""
	}
	return g.target.Host
}

// Hosting reports whether the server here hosts.
func (g *Group) Hosting() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.hosting
}

// Current returns the host, as far as it is known, and the standbys.
func (g *Group) Current() wire.Redirect {
	g.mu.Lock()
	defer g.mu.Unlock()
	to := g.target
	to.Servers = g.servers()
	return to
}

func (g *Group) servers() []string {
	var list []string
	for _, s := range g.list {
		if s.Addr != "" {
			list = append(list, s.Addr)
		}
	}
	if list == nil {
		return slices.Clone(g.target.Servers)
	}
	return list
}

// Began implements election.Elector.
func (g *Group) Began() (s rendezvous.Succession, since time.Time, took time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.start, g.takeover.Since, g.takeover.Took
}

// SetRound notes that the server here has formed or adopted a round.
func (g *Group) SetRound() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.round = true
}

// Identity is this process's answer to another server of its run.
func (g *Group) Identity() succession.Identity {
	g.mu.Lock()
	defer g.mu.Unlock()
	return succession.Identity{Group: g.target.Group, Term: g.target.Term, Node: g.node, Round: g.round}
}

// SetSelf notes where the own server listens; "" and why not. A process that listens no more gives
// its vote up: another one may listen there, and that proves it gone.
func (g *Group) SetSelf(addr, why string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if addr == "" && g.self != "" && !g.hosting {
		g.members.forgetLocked()
		g.tellLocked()
	}
	g.self, g.why = addr, why
	if g.hosting {
		g.target.Host = addr
	}
	g.wakeLocked()
}

// Self is the address of this process's server; "" if there is none.
func (g *Group) Self() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.self
}

// SetList takes the host's list of standbys. While that is empty the one before stays: a new
// host has no standby for a moment, and may die in it.
func (g *Group) SetList(list []wire.StandbyNode) {
	list = slices.DeleteFunc(slices.Clone(list), func(s wire.StandbyNode) bool {
		_, err := netip.ParseAddrPort(s.Addr)
		return err != nil
	})
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(list) == 0 && !g.hosting {
		return
	}
	g.parted = g.partedLocked(append(slices.Clone(g.list), g.parted...), list)
	g.list = list
	g.wakeLocked()
}

// partedLocked returns those that vote and are not in a list, once each.
func (g *Group) partedLocked(from, list []wire.StandbyNode) (parted []wire.StandbyNode) {
	seen := slices.Clone(list)
	for _, s := range from {
		listed := slices.ContainsFunc(seen, func(t wire.StandbyNode) bool { return t.Node == s.Node })
		if s.Node != g.node && !listed && g.vote.node.Voters().Has(g.vote.names[s.Node]) {
			parted, seen = append(parted, s), append(seen, s)
		}
	}
	return parted
}

// Passed returns where the other standbys of the host before listen: one of them may have
// taken over as well, or wake up and do so.
func (g *Group) Passed() (addrs []netip.AddrPort) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range g.before {
		if addr, err := netip.ParseAddrPort(s.Addr); err == nil && s.Node != g.node {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// addrBefore returns where a node listened that stood by for the host before this one, if it
// still has that address; "" if it did not.
func (g *Group) addrBefore(node string, remote netip.Addr) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range g.before {
		if addr, err := netip.ParseAddrPort(s.Addr); err == nil && s.Node == node && addr.Addr().Unmap() == remote {
			return s.Addr
		}
	}
	return ""
}

// Wanted returns the servers to which this process keeps a connection: as the host or a standby to all
// other standbys, or, where nobody votes and in the first beat, as a standby to those that succeed before
// it: nobody votes before these connections are open, and a job's first milliseconds are its workers'. A
// voter keeps one to each other voter as well, which may not have come to the host yet, or have left the
// run: without a majority nobody is told so. So it does to the host, which it may leave because that is
// silent, and which may die then.
func (g *Group) Wanted() (list []wire.StandbyNode) {
	g.mu.Lock()
	defer g.mu.Unlock()
	own := g.placeLocked()
	switch alone := g.noQuorum || !g.settled && !g.vote.node.Votes(); {
	case alone && (g.hosting || own < 0):
		return nil
	case alone:
		return slices.Clone(g.list[:own])
	case g.hosting || own >= 0:
		list = slices.DeleteFunc(slices.Clone(g.list), func(s wire.StandbyNode) bool { return s.Node == g.node })
	}
	if g.vote.node.Votes() {
		list = append(list, g.partedLocked(g.parted, g.list)...)
		if !g.hosting && g.direct && !slices.ContainsFunc(list, func(s wire.StandbyNode) bool { return s.Node == g.target.Node }) {
			list = append(list, wire.StandbyNode{Node: g.target.Node, Addr: g.target.Host})
		}
	}
	return list
}

// SetListening notes the addresses of the own server's listeners.
func (g *Group) SetListening(list []netip.AddrPort) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.listening = list
}

// Listening returns the addresses of the own server's listeners.
func (g *Group) Listening() []netip.AddrPort {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.listening
}

// placeLocked is this node's place in the list, -1 if it has none.
func (g *Group) placeLocked() int {
	if g.self == "" {
		return -1
	}
	return slices.IndexFunc(g.list, func(s wire.StandbyNode) bool { return s.Node == g.node })
}

// Input is what this standby knows when it decides after losing its connection to the host of a term;
// false if it is not a standby.
func (g *Group) Input(e succession.Evidence, lost uint64, waited time.Duration) (v succession.Input, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	own := g.placeLocked()
	if own < 0 || g.hosting || g.closed {
		return v, false
	}
	v = succession.Input{Lost: lost, Term: max(lost, g.target.Term), Evidence: e, Waited: waited, Lease: g.lease, Votes: g.vote.node.Votes()}
	for i, s := range g.list {
		p := succession.Peer{Node: s.Node, Votes: s.Votes || g.vote.node.Voters().Has(g.vote.names[s.Node])}
		for l := range g.links {
			if l.node == s.Node {
				p.State, p.Term = l.state, l.term
				if l.voter != 0 { // it knows what it has accepted, and the list what the host has proposed
					p.Votes = l.votes
				}
				if l.state != succession.Unconnected && l.state != succession.Dead {
					break // the other direction's connection knows less
				}
			}
		}
		switch {
		case i < own:
			v.Before = append(v.Before, p)
		case i > own:
			v.Behind = append(v.Behind, p)
		}
	}
	return v, true
}

// AddrOf returns where the server of a standby listens, or where it says the host does.
func (g *Group) AddrOf(node string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l := g.anyLink(func(l *Link) bool { return l.node == node && l.state == succession.Leads && l.target.Host != "" }); l != nil {
		return l.target.Host
	}
	return g.addrLocked(node)
}

// StandsWithoutVote reports whether a standby that does not vote listens at an address.
func (g *Group) StandsWithoutVote(addr string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.ContainsFunc(g.list, func(s wire.StandbyNode) bool { return s.Addr == addr && !s.Votes })
}

func (g *Group) addrLocked(node string) string {
	for _, s := range g.list {
		if s.Node == node {
			return s.Addr
		}
	}
	return ""
}

// Serves reports whether this is the group of a run's nodes.
func (g *Group) Serves(run string) bool { return run == g.runID }

// MaxFrame limits the frames from an accepted liveness connection.
func (g *Group) MaxFrame() int { return g.maxFrame }

// groupLocked names the group among its servers.
func (g *Group) groupLocked() string { return cmp.Or(g.inside, g.target.Group) }

// Close ends the view: no takeover follows, and the others count this process no more.
func (g *Group) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.closed = true
		g.tellLocked()
		g.wakeLocked()
	}
}

// Report describes a group for status and metrics.
type Report struct {
	Node      string // of this process
	Term      uint64
	Hosting   bool
	Takeover  Takeover
	Standbys  []wire.StandbyNode
	Connected []string // nodes with a liveness connection to or from here
	Why       string   // this node does not stand by
}

// Report describes the group.
func (g *Group) Report() Report {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := Report{
		Node: g.node, Term: g.target.Term, Hosting: g.hosting, Takeover: g.takeover, Standbys: slices.Clone(g.list), Why: g.why,
	}
	for l := range g.links {
		if l.out != nil && !slices.Contains(r.Connected, l.node) {
			r.Connected = append(r.Connected, l.node)
		}
	}
	slices.Sort(r.Connected)
	return r
}

// PlainAddr is an address as the two ends of a connection compare it: without a zone.
func PlainAddr(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}
