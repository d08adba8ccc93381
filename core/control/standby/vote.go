package standby

import (
	"context"
	"fmt"
	"slices"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/election/raft"
	"rallypoint/core/rendezvous"
	"rallypoint/core/succession"
	"rallypoint/internal/wording"
)

// vote is this process's part in the vote about who hosts. Group.mu guards it, and each group of
// servers has a new one.
type vote struct {
	clock    Clock
	origin   time.Duration
	voter    raft.Voter // this process; a memory that is lost votes under another name
	node     *raft.Node
	eligible []string                 // nodes that may vote beside this host, in order
	listed   map[string]time.Duration // since when each of them is
	names    map[string]raft.Voter    // by node, as they have said
	replaced []raft.Voter             // in the place of which another process has answered

	recovery recovery

	turn     time.Duration // since when it is this process's turn, or another's before it, to campaign; 0: nobody has to
	proposed time.Duration // when the last proposal was made
	took     time.Duration // from the last one that was confirmed to its confirmation

	next  raft.Voter // this host hands on to it as soon as it has accepted all; 0: it does not
	asked bool       // it was asked to host, and counts this process no more: see resignedLocked

	// The last values that wakeLocked has reported.
	confirmed uint64
	majority  bool
	votes     bool
}

// Clock is the time that a vote lives by. It must go on while the machine is suspended: a host that counts
// that time as none believes that its voters heard it just now, though they have elected another since.
type Clock func() time.Duration

func newVote(clock Clock, lease time.Duration, voter raft.Voter, storage raft.Storage) vote {
	return vote{clock: clock, origin: clock(), voter: voter, names: map[string]raft.Voter{}, node: raft.New(voter, lease, 0, storage)}
}

func (v *vote) now() time.Duration { return v.clock() - v.origin }

// Quorum reports whether nodes of this group may vote.
func (g *Group) Quorum() bool { return !g.noQuorum }

// Beat is how often tick is called. However long the lease is, voters find each other within a second.
func (g *Group) Beat() time.Duration { return min(raft.Beat(g.lease), time.Second) }

// TakePart drives the vote's clock until ctx ends, and carries its decisions out: it calls obey
// at each change, and beat each Beat.
func (g *Group) TakePart(ctx context.Context, obey, beat func()) {
	next := time.NewTimer(g.Beat())
	defer next.Stop()
	for ctx.Err() == nil {
		changed := g.Changed()
		obey()
		select {
		case <-next.C:
			g.tick()
			next.Reset(g.Beat())
			beat()
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// tick lets time pass for the vote.
func (g *Group) tick() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.recoverLocked()
	if g.closed || g.resignedLocked() || g.placeLocked() < 0 && !g.hosting && !g.desertedLocked() {
		return // it neither hosts nor stands by
	}
	if !g.settled && len(g.list) > 0 {
		g.settled = true
		g.wakeLocked()
	}
	g.countDeadLocked()
	g.members.setVotersLocked()
	g.vote.node.Tick(g.vote.now())
	g.members.voteLocked()
}

// desertedLocked reports whether this process was the leader, as Deserted says, and knows of none since. It still stands
// for election: if one of its voters lives after all, and knows less, nobody else can be elected.
func (g *Group) desertedLocked() bool {
	return !g.hosting && !g.certain && len(g.list) == 0 && g.vote.node.Votes() && (g.self != "" || len(g.listening) > 0)
}

// countDeadLocked notes which voters are proven dead, or vote no more.
func (g *Group) countDeadLocked() {
	for l := range g.links {
		if l.voter != 0 && (l.state == succession.Dead || l.state == succession.Left) {
			g.vote.node.Dead(l.voter, g.vote.now())
		}
	}
	g.vote.replaced = slices.DeleteFunc(g.vote.replaced, func(id raft.Voter) bool {
		g.vote.node.Dead(id, g.vote.now())
		return g.vote.node.ProvenDead(id) // else this process may be told later that it votes
	})
	g.vote.replaced = g.vote.replaced[max(0, len(g.vote.replaced)-maxLinks/2):]
}

// HearVote takes a message of the vote from the standby that a connection belongs to. It reports
// false, and drops it, if it is of another group or voter, or cannot be.
func (g *Group) HearVote(l *Link, f wire.Vote) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed, g.resignedLocked():
		return true
	case f.Group != g.groupLocked(), f.From != l.voter, l.voter == 0:
		return false
	}
	l.heard = g.vote.now()
	m, whole, possible := g.members.assembleLocked(l, f)
	if !whole {
		return possible
	}
	g.members.adoptLocked(m)
	if m.To != g.vote.voter {
		return true // to a memory that is lost
	}
	if !g.vote.node.Receive(m, g.vote.now()) {
		return false
	}
	g.members.voteLocked()
	if l.voter == g.vote.next {
		g.wakeLocked() // it may have accepted all by now
	}
	return true
}

func (g *Group) adoptLocked(raft.Message) {}

func (g *Group) assembleLocked(_ *Link, f wire.Vote) (m raft.Message, whole, possible bool) {
	whole = f.Piece == wire.Piece{}
	return f.Message, whole, whole
}

func (g *Group) voteLocked() {
	v := &g.vote
	for _, m := range v.node.Messages() {
		g.members.sendLocked(m)
	}
	if votes := v.node.Votes(); votes != v.votes {
		v.votes = votes
		g.tellLocked()
	}
	if v.node.Lost() && !g.hosting {
		g.members.forgetLocked()
		g.tellLocked()
	}
	if other := v.node.Leader(); g.reign != 0 && other != 0 && other != v.voter {
		g.reign = 0
		g.wakeLocked()
	}
	majority := v.node.Majority(v.now())
	term, leads := v.node.Leads()
	if leads && g.hosting && g.reign != 0 && term > g.target.Term {
		g.target.Term = term // nobody has hosted between
	}
	if confirmed := v.node.Committed(); confirmed != v.confirmed || majority != v.majority || leads != g.hosting {
		if confirmed > v.confirmed {
			v.took = v.now() - v.proposed
		}
		v.confirmed, v.majority = confirmed, majority
		g.wakeLocked()
	}
}

func (g *Group) sendLocked(m raft.Message) {
	f := wire.Vote{Group: g.groupLocked(), Message: m}
	for l := range g.links {
		if l.voter == m.To && l.out != nil {
			l.out.Send(f)
		}
	}
}

// SetEligible notes which nodes may vote besides this host, in order: those that listen, one on
// each machine.
func (g *Group) SetEligible(nodes []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	v, listed := &g.vote, map[string]time.Duration{}
	for _, node := range nodes {
		listed[node] = v.now()
		if since, was := v.listed[node]; was {
			listed[node] = since
		}
	}
	v.eligible, v.listed = nodes, listed
	g.members.setVotersLocked()
	g.members.voteLocked()
}

// standLocked campaigns once the leader is proven dead, or needless tells that nobody has to be waited for: the first
// voter of the list at once, and each other one a beat later for each one before it that it hears.
func (g *Group) standLocked(needless bool) {
	v, now := &g.vote, g.vote.now()
	leader, last := v.node.Leader(), v.node.HeardLast()
	dead := v.node.ProvenDead(last) && (leader == 0 || leader == last)
	if g.closed || g.resignedLocked() || !dead && !needless {
		v.turn = 0
		return
	}
	if v.turn == 0 {
		v.turn = now
	}
	turn, voters := v.turn, v.node.Voters()
	for _, s := range g.list {
		if s.Node == g.node {
			break
		}
		if g.anyLink(func(l *Link) bool { return l.node == s.Node && l.out != nil && voters.Has(l.voter) }) != nil {
			turn += g.Beat()
		}
	}
	if now >= turn {
		v.node.Campaign(now)
	}
}

// setVotersLocked chooses the voters: those that vote and may continue, and of the others the first
// ones that this host and they themselves have opened connections to, two or four beside the host:
// of one that it has opened no connection to, a voter could never prove the death. Nobody waits
// for these longer than a lease. One that votes does so until it is proven dead, has left, or was
// not heard for a lease.
func (g *Group) setVotersLocked() {
	g.standLocked(false)
	v := &g.vote
	if !g.hosting || g.noQuorum {
		return
	}
	gone := map[raft.Voter]bool{}
	linked := map[string]raft.Voter{}
	for l := range g.links {
		switch {
		case l.voter == 0:
		case l.state == succession.Dead, l.state == succession.Left:
			gone[l.voter] = true
		case l.out != nil && l.dialed && (l.cluster == "" || l.cluster == v.node.Cluster()):
			linked[l.node] = l.voter
		}
	}
	voters, nodes := []raft.Voter{v.voter}, []string{}
	answered := v.node.Answered()
	for _, id := range v.node.Voters().Incoming {
		gone[id] = gone[id] || v.node.ProvenDead(id)
		if id != v.voter && !gone[id] && v.now()-max(answered[id], v.node.Began()) < g.lease {
			voters = append(voters, id)
			if node := g.nodeOfLocked(id); node != "" {
				nodes = append(nodes, node)
			}
		}
	}
	most := 2
	if len(v.eligible) > 3 {
		most = raft.MaxVoters - 1
	}
	for _, node := range v.eligible {
		if id := linked[node]; id != 0 && len(voters) <= most && !gone[id] && !slices.Contains(voters, id) && (v.now()-v.listed[node] >= g.lease || g.linkedLocked(node, nodes)) {
			voters, nodes = append(voters, id), append(nodes, node)
		}
	}
	if len(voters) < 3 {
		voters = voters[:1] // of two no majority is left when one is silent
	}
	v.node.SetVoters(voters, v.now())
}

// linkedLocked reports whether a node and each of others have opened connections to each other, by
// what they say.
func (g *Group) linkedLocked(node string, others []string) bool {
	told := map[[2]string]bool{}
	for l := range g.links {
		for _, other := range l.linked {
			told[[2]string{l.node, other}] = true
		}
	}
	return !slices.ContainsFunc(others, func(other string) bool {
		return !told[[2]string{node, other}] || !told[[2]string{other, node}]
	})
}

// Propose tells the voters what nodes are about to be told. The result is for Committed.
func (g *Group) Propose(f rendezvous.Facts) (number uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.vote.proposed = g.vote.now()
	number = g.vote.node.Propose(g.vote.now(), rendezvous.EncodeFacts(f))
	g.members.voteLocked()
	return number
}

// Committed reports whether this host may tell nodes what it has proposed up to a number: a
// majority of the voters has accepted that, and was heard lately. A host alone always may, and none
// after its last word: the others may have elected the next one already.
func (g *Group) Committed(number uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.reign != 0 && !g.closed && g.vote.node.Committed() >= number && g.vote.node.Majority(g.vote.now())
}

// Awaited returns the nodes that vote and are not proven dead, beside this one.
func (g *Group) Awaited() (nodes []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.vote.node
	for node, id := range g.vote.names {
		if node != g.node && b.Voters().Has(id) && !b.ProvenDead(id) {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// TakeOver makes this process, which votes, a candidate because the host wants it to host.
func (g *Group) TakeOver() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.countDeadLocked()
	g.vote.node.TakeOver(g.vote.now())
	g.members.voteLocked()
}

// Votes reports whether this process is one of several that vote.
func (g *Group) Votes() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.vote.node.Votes()
}

// BeginTransfer has this host say nothing more until EndTransfer, so that a node which it asks to host can be
// elected. It reports false while that node has not accepted all. A node that does not vote
// needs nothing. From then on this process votes no more when it does not host: the next host
// counts it as dead, and need not be connected to it.
func (g *Group) BeginTransfer(node string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.vote.node.Votes() {
		return true
	}
	g.vote.next = g.vote.names[node]
	handed := g.vote.node.BeginTransfer(g.vote.next)
	g.vote.asked = g.vote.asked || handed
	return handed
}

// resignedLocked reports whether this process has handed on, or was to, and hosts no more: it votes no more.
func (g *Group) resignedLocked() bool {
	_, leads := g.vote.node.Leads()
	return g.vote.asked && !(leads && g.hosting)
}

// EndTransfer ends BeginTransfer: this host continues.
func (g *Group) EndTransfer() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.vote.next = 0
	g.vote.node.EndTransfer()
	g.wakeLocked()
}

// expects reports whether a voter at the other end of a connection has to answer this host.
func (g *Group) expects(l *Link) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.hosting && l.voter != 0 && g.vote.node.Voters().Has(l.voter)
}

// Proven notes that a node that has hosted is proven dead.
func (g *Group) Proven(node string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.vote.node.Dead(g.vote.names[node], g.vote.now())
	g.members.setVotersLocked()
	g.members.voteLocked()
}

// Elected returns the term for which this process has been elected, and does not host yet; 0:
// it has not.
func (g *Group) Elected() (term uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if term, leads := g.vote.node.Leads(); leads && !g.hosting && !g.closed && !g.resignedLocked() {
		return term
	}
	return 0
}

// Deposed returns where to go, if another process hosts, or has hosted, in a later term than the server here,
// which has not stepped down yet. A term that has ended without another host is none: the
// server says nothing until a majority hears it again.
func (g *Group) Deposed() (to wire.Redirect, deposed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.hosting || g.reign != 0 {
		return to, false
	}
	return g.nextLocked(), true
}

// nextLocked is where the host of the present term is, which succeeds this process.
func (g *Group) nextLocked() wire.Redirect {
	term, _ := g.vote.node.Leads()
	to := wire.Redirect{Group: g.target.Group, Term: term, Servers: g.servers()} // one of these knows where it is
	leads := func(l *Link) bool {
		return l.voter == g.vote.node.Leader() && l.state == succession.Leads && l.term >= term
	}
	if l := g.anyLink(leads); l != nil {
		to = l.target
	}
	return to
}

// Elsewhere returns where another standby says that it hosts, in a later term.
func (g *Group) Elsewhere(group string, term uint64) (to wire.Redirect, found bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.hosting || group == "" || group != g.target.Group {
		return to, false
	}
	for l := range g.links {
		if l.state == succession.Leads && l.target.Group == group && l.term > term && l.target.Host != "" && (!found || l.term > to.Term) && succession.Believable(l.term) {
			to, found = l.target, true
		}
	}
	return to, found
}

// Inheritance is what an elected process begins with.
type Inheritance struct {
	Facts   rendezvous.Facts // that the voters keep
	From    string           // the node whose control plane has told them; "": it is not known
	Silent  bool             // that node may live
	Missing bool             // the host that was heard last may live
	Silence time.Duration    // for how long it was not heard
}

// Inherited returns that. last, the node of this process's last connection, has told it facts of a
// generation, and is dead or not. The voters may keep those of a later host, to which this process has
// never been connected: what is known of the one says nothing of the other.
func (g *Group) Inherited(last, generation string, dead bool) (in Inheritance, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.vote.node
	value, _, _ := b.Value()
	in.Facts, err = rendezvous.DecodeFacts(value)
	in.From, in.Silence = last, g.vote.now()-b.Heard()
	if in.Facts.Generation != generation {
		in.From = g.nodeOfLocked(b.Author())
	}
	lives := func(node string) bool {
		id := g.vote.names[node]
		died := func(l *Link) bool { return l.node == node && l.voter == id && l.state == succession.Dead } // though its vote may count
		return g.anyLink(died) == nil && !b.ProvenDead(id) && !(dead && node == last)
	}
	in.Silent = in.From == "" || lives(in.From)
	in.Missing = in.Silent
	if node := g.nodeOfLocked(b.HeardLast()); node != "" {
		in.Missing = in.Missing || lives(node)
	}
	return in, err
}

// HasVoters reports whether others may elect a host in the place of one that is silent. A host that has lost its voters
// is still one of them.
func (g *Group) HasVoters() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.deposed || g.vote.node.Votes() || g.members.votersLocked() != nil
}

// Voters returns the nodes that vote, as this process knows; nil: none beside the host.
func (g *Group) Voters() (nodes []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.members.votersLocked()
}

func (g *Group) votersLocked() (nodes []string) {
	if !g.hosting {
		for _, s := range g.list {
			if s.Votes {
				nodes = append(nodes, s.Node)
			}
		}
		return nodes
	}
	voters := g.vote.node.Voters()
	for _, node := range g.vote.eligible {
		if g.anyLink(func(l *Link) bool { return l.node == node && voters.Has(l.voter) }) != nil && !slices.Contains(nodes, node) {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// VoterReport is a voter beside this process.
type VoterReport struct {
	Node      string
	Reachable bool
	Heard     time.Duration // since; 0: not in this term
}

// VoteReport is what status and metrics tell of the vote.
type VoteReport struct {
	Voters    []VoterReport // beside the host, as the host knows them; of another process only their names
	Hosting   bool          // the rest is known
	Majority  bool
	Elections uint64        // that this process has won
	Silent    bool          // it was elected because the host before was silent, and not dead
	Confirm   time.Duration // how long the last confirmation took
	Stalled   error         // why this process takes no part; nil: it does
}

// VoteReport describes the vote.
func (g *Group) VoteReport() VoteReport {
	g.mu.Lock()
	defer g.mu.Unlock()
	v := &g.vote
	r := VoteReport{Hosting: g.hosting, Elections: v.node.Elections(), Stalled: v.node.Stalled()}
	if !g.hosting {
		for _, node := range g.members.votersLocked() {
			r.Voters = append(r.Voters, VoterReport{Node: node})
		}
		return r
	}
	now := v.now()
	r.Majority, r.Silent, r.Confirm = v.node.Majority(now), g.start.Silent, v.took
	answered := v.node.Answered()
	for _, id := range v.node.Voters().All() {
		if id == v.voter {
			continue
		}
		n := VoterReport{Node: g.members.nodeOfLocked(id)}
		if at, ok := answered[id]; ok {
			n.Heard, n.Reachable = now-at, now-at <= g.lease/4
		}
		r.Voters = append(r.Voters, n)
	}
	return r
}

func (g *Group) nodeOfLocked(id raft.Voter) string {
	for node, voter := range g.vote.names {
		if voter == id {
			return node
		}
	}
	return ""
}

func (g *Group) waitsLocked() string { return "" }

// NoMajority says that this host has no majority, and which voters are missing; "" if it has one.
func (g *Group) NoMajority() string {
	r := g.VoteReport()
	switch {
	case r.Stalled != nil:
		return fmt.Sprintf("this server takes no part until its data directory can be written: %v", r.Stalled)
	case !r.Hosting:
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.members.waitsLocked()
	case r.Majority:
		return ""
	}
	here := 1
	var silent []string
	longest := time.Duration(0)
	for _, n := range r.Voters {
		if n.Reachable {
			here++
			continue
		}
		silent, longest = append(silent, rendezvous.MachineOf(n.Node)), max(longest, n.Heard)
	}
	return fmt.Sprintf("no majority: %d of %d voters reachable, %s silent for %s; running workers continue", here, len(r.Voters)+1, wording.Names(silent), wording.Seconds(longest))
}
