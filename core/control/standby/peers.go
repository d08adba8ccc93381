package standby

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"rallypoint/core/control/journal"
	"rallypoint/core/control/wire"
	"rallypoint/core/election/raft"
	"rallypoint/core/rendezvous"
	"rallypoint/core/succession"
)

// Peers is a Group of servers that are named by configuration and serve many runs. Each has a replica of all that
// the others know, and the leader tells nodes only what a majority has (docs/decisions/0151, 0154).
type Peers struct {
	*Group
	Replica *journal.Replica
	places  []string // their names, in one order everywhere
	pieces  pieces

	past       []string          // the clusters before this one in which this process has voted, the last ones
	refusing   map[string]string // by peer: why it is none, and has been more than once
	refused    map[string]string // the same, as it was last
	since      time.Duration     // since when this process could begin a cluster
	majorityAt time.Duration     // when the server here had a majority last, or did not host
}

// NewPeers makes the view of a server of many runs that knows nothing yet. names are those of
// all servers, own among them; a server that has another list, or another lease, is of another
// group. The replica has at most so many bytes. An error is about what it remembers.
func NewPeers(names []string, own string, lease time.Duration, replica *journal.Replica, most int64) (*Peers, error) {
	places := slices.Sorted(slices.Values(names))
	p := &Peers{
		Group:  NewGroup(peersID(names, lease), own, lease, false),
		places: places, Replica: replica, pieces: newPieces(most), refusing: map[string]string{}, refused: map[string]string{},
	}
	p.members, p.inside, p.maxFrame, p.self = p, p.runID, wire.MaxVoteFrame, own
	for _, name := range places {
		p.list = append(p.list, wire.StandbyNode{Node: name, Label: name, Votes: true})
	}
	memory := replica.Memory()
	if memory.Record == nil {
		p.forgetLocked()
		return p, nil
	}
	id := raft.VoterOf(memory.Record)
	if memory.Copied { // the file that this is a copy of may have promised more since
		id = raft.NewVoter(p.placeOf(own))
	}
	p.voteAsLocked(id)
	err := p.vote.node.Recover(memory.Record, memory.Entries, id)
	if err == nil && memory.Copied {
		if memory.Record, err = p.vote.node.Record(); err == nil {
			err = replica.Own(memory.Record)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("data file %s: %w; move it away: the other servers of --peers know what was in it", replica.Path(), err)
	}
	return p, nil
}

// peersID names the group of servers of a list and a lease among themselves.
func peersID(names []string, lease time.Duration) string {
	sum := sha256.Sum256([]byte(strings.Join(slices.Sorted(slices.Values(names)), ",") + " " + lease.String()))
	return "peers-" + hex.EncodeToString(sum[:16])
}

// forgetLocked gives this process an empty memory, and a name that has not voted.
func (p *Peers) forgetLocked() {
	_ = p.Replica.Save(raft.Change{Replace: true})
	p.voteAsLocked(raft.NewVoter(p.placeOf(p.node)))
}

// voteAsLocked begins a memory of the vote. What the replica has stays.
func (p *Peers) voteAsLocked(id raft.Voter) {
	names := p.vote.names
	if p.vote.node != nil && p.vote.node.Cluster() != "" {
		p.past = append(p.past[max(0, len(p.past)-maxPast):], p.vote.node.Cluster())
	}
	p.vote = newVote(p.clock, p.lease, id, p.Replica)
	p.vote.names = names
	p.since, p.majorityAt, p.reign = 0, 0, 0
}

// placeOf is a server's place in the list, from 1 on.
func (p *Peers) placeOf(name string) int { return slices.Index(p.places, name) + 1 }

func (p *Peers) nodeOfLocked(id raft.Voter) string {
	if i := id.Place(); i >= 1 && i <= len(p.places) {
		return p.places[i-1]
	}
	return ""
}

// Others returns the names of the other servers.
func (p *Peers) Others() []string {
	return slices.DeleteFunc(slices.Clone(p.places), func(name string) bool { return name == p.node })
}

// Reached notes at which address a peer was reached.
func (p *Peers) Reached(name string, addr netip.AddrPort) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.list {
		if s := &p.list[i]; s.Node == name && s.Addr != addr.String() {
			s.Addr = addr.String()
			p.wakeLocked()
		}
	}
}

// Refused notes why a peer is none; "": it is one. It reports whether that is news: one that is just
// ending refuses once.
func (p *Peers) Refused(name, why string) (news bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if why == "" {
		delete(p.refused, name)
		delete(p.refusing, name)
		return false
	}
	news = p.refused[name] == why && p.refusing[name] != why
	if p.refused[name] == why {
		p.refusing[name] = why
	}
	p.refused[name] = why
	return news
}

// Redial records which process has voted in a peer's place until now, before its address is dialled. What was
// under way to and from that is given up, unless it goes on by a connection that the peer has opened.
func (p *Peers) Redial(l *Link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.linkTo(l.node) == nil {
		p.pieces.drop(l.voter)
	}
	l.before = nil
	for _, id := range p.vote.node.Voters().All() {
		if p.nodeOfLocked(id) == l.node {
			l.before = append(l.before, id)
		}
	}
}

// heardLocked: a process that answers a dial has taken the place of those before it, which are
// dead. One that remembers another group joins the one that a majority has founded since, without
// it. The voters decide which of two hosts continues.
func (p *Peers) heardLocked(l *Link, said wire.Liveness) (voter raft.Voter, superseded bool) {
	if id := raft.ParseVoter(said.Voter); p.nodeOfLocked(id) == l.node {
		voter = id
		p.vote.replaced = append(p.vote.replaced, slices.DeleteFunc(l.before, func(id raft.Voter) bool { return id == voter })...)
		l.before = nil
	}
	if l.dialed { // its opener need not be at the peer's address
		p.noteVoterLocked(l, voter)
	}
	if voter != l.voter {
		p.since = p.vote.now() // the process before it may have told a leader that it hears it
	}
	if own := p.vote.node.Cluster(); said.State == uint64(succession.Leads) && own != "" && said.Cluster != own && !p.vote.node.Majority(p.vote.now()) {
		p.forgetLocked()
		p.tellLocked()
	}
	return voter, false
}

// linkTo returns an open connection to a peer, one that was opened from here if there is one.
func (p *Peers) linkTo(node string) (best *Link) {
	for l := range p.links {
		if l.node == node && l.out != nil && l.voter != 0 && (best == nil || l.dialed) {
			best = l
		}
	}
	return best
}

// beginLocked begins a cluster if this process may: a majority of the servers is connected to it, they have heard
// no leader for a while, and none of them knows more. One that knows nothing waits until it would
// have heard of a leader, and one that remembers a cluster until that can elect nobody: those that voted
// in it are gone. It begins with what it remembers. Its runs' next rounds then leave a gap.
func (p *Peers) beginLocked() {
	n, now := p.vote.node, p.vote.now()
	_, term, number := n.Value()
	own, theirs := [2]uint64{term, number}, [2]uint64{}
	free := !n.Majority(now) && (n.Cluster() == "" || now-n.Heard() >= p.lease/4)
	near, before, first, new := 1, 0, true, n.Cluster() == ""
	for i, name := range p.places {
		l := p.linkTo(name)
		if name == p.node || l == nil {
			continue
		}
		near++
		theirs = l.last
		new = new && l.cluster == ""
		free = free && l.state != succession.Leads
		first = first && slices.Compare(own[:], theirs[:]) >= 0
		if theirs == own && i < p.placeOf(p.node)-1 {
			before++
		}
	}
	if near <= len(p.places)/2 || !free || p.vote.recovery.paused >= 2*p.Beat() {
		p.since = now
		return
	}
	new = new && near == len(p.places)
	if !first || !(new && before == 0) && now-p.since < p.patienceLocked()+time.Duration(before)*p.lease/4 {
		return
	}
	if n.Settle() != nil {
		p.forgetLocked()
		return
	}
	cluster := after(n.Cluster())
	var voters []raft.Voter
	for i, name := range p.places { // every place counts, or two leaders could each have a majority
		switch l := p.linkTo(name); {
		case name == p.node:
			voters = append(voters, p.vote.voter)
		case l != nil:
			voters = append(voters, l.voter)
		default:
			voters = append(voters, raft.NewVoter(i+1)) // nobody, until the leader knows the process there
		}
	}
	p.voteAsLocked(p.vote.voter)
	p.vote.node.Begin(cluster, max(term, 1)-1, voters, nil, p.vote.now())
	p.tellLocked()
}

// after names the cluster that follows another one without a majority's word: the name of the group, by which nodes
// know it; how many clusters it has had before; and a random text.
func after(cluster string) string {
	name, before := rand.Text(), 0
	if cluster != "" {
		name, before = nameOf(cluster), clustersBefore(cluster)+1
	}
	return name + "." + strconv.Itoa(before) + "." + rand.Text()
}

// nameOf is the name of the group of a cluster.
func nameOf(cluster string) string {
	name, _, _ := strings.Cut(cluster, ".")
	return name
}

// clustersBefore is how many clusters the group had before one.
func clustersBefore(cluster string) int {
	_, rest, _ := strings.Cut(cluster, ".")
	count, _, _ := strings.Cut(rest, ".")
	n, _ := strconv.Atoi(count)
	return max(n, 0)
}

// patienceLocked is how long this process waits before it begins a cluster, or takes part in one that another
// begins. Where the present process of each server is connected, and none of them knows of a cluster, nobody waits.
func (p *Peers) patienceLocked() time.Duration {
	if p.vote.node.Cluster() == "" {
		return p.lease * 2 / 5 // longer than a leader believes that a majority hears it
	}
	return giveUp * p.lease
}

// maxPast is how many earlier clusters a process keeps in mind. Each costs giveUp leases at least.
const maxPast = 64

// giveUp is for how many leases a server keeps a memory by which nobody is elected, though enough servers are up.
const giveUp = 2

// adoptLocked forgets a cluster in which nobody can be elected, to take part in the one that another process begins. It
// has never taken part in that: what it had said there it would not know.
func (p *Peers) adoptLocked(m raft.Message) {
	own := p.vote.node.Cluster()
	if m.To != p.vote.voter || own == "" || m.Cluster == own || slices.Contains(p.past, m.Cluster) || p.vote.now()-p.since < p.patienceLocked() {
		return
	}
	if p.Replica.Durable() { // its name outlives what this process knows of the past
		p.forgetLocked()
	} else {
		_ = p.Replica.Save(raft.Change{Replace: true})
		p.voteAsLocked(p.vote.voter)
	}
	p.tellLocked()
}

// idleLocked reports whether this process, which remembers a cluster, has heard of no leader since it was started, nor has
// any of a majority that is connected to it: nobody has to be waited for.
func (p *Peers) idleLocked() bool {
	n, near := p.vote.node, 1
	if !n.Votes() || n.Leader() != 0 || n.HeardLast() != 0 {
		return false
	}
	for _, name := range p.places {
		if l := p.linkTo(name); name != p.node && l != nil {
			if l.state == succession.Leads {
				return false
			}
			near++
		}
	}
	return near > len(p.places)/2
}

// setVotersLocked has the present process of each peer vote: the one that is connected, or else
// the one that votes already.
func (p *Peers) setVotersLocked() {
	p.beginLocked()
	p.standLocked(p.idleLocked())
	b := p.vote.node
	if _, leads := b.Leads(); !leads {
		return
	}
	now := map[string]raft.Voter{}
	for _, id := range b.Voters().All() {
		now[p.nodeOfLocked(id)] = id
	}
	for _, id := range b.Voters().Incoming { // of two of one place the later one
		now[p.nodeOfLocked(id)] = id
	}
	var voters []raft.Voter
	for _, name := range p.places {
		id := now[name]
		if l := p.linkTo(name); l != nil && l.dialed && (l.cluster == "" || l.cluster == b.Cluster()) {
			id = l.voter
		}
		if name == p.node {
			id = p.vote.voter
		}
		if id != 0 {
			voters = append(voters, id)
		}
	}
	b.SetVoters(voters, p.vote.now())
}

func (p *Peers) voteLocked() {
	p.targetLocked()
	if p.vote.node.Majority(p.vote.now()) != p.vote.majority {
		p.tellLocked()
	}
	p.Group.voteLocked()
}

// sendLocked sends a message once, which may be long, and none after the last word: this process votes no
// more.
func (p *Peers) sendLocked(m raft.Message) {
	l := p.linkTo(p.nodeOfLocked(m.To))
	if !p.closed && l != nil && l.voter == m.To {
		l.out.Send(p.pieces.first(wire.Vote{Group: p.inside, Message: m}))
	}
}

// Quorum reports that nothing is told before a majority has it: Commit returns only then.
func (p *Peers) Quorum() bool { return false }

// ErrDeposed is Commit's where another server may lead.
var ErrDeposed = errors.New("this server does not lead any more")

// Commit has a majority of the servers accept entries, in order, of a reign that Elected has returned. It returns nil when
// they have, and otherwise ErrDeposed, also once ctx ends: the next leader may know them, or not.
func (p *Peers) Commit(ctx context.Context, reign uint64, entries [][]byte) error {
	number := uint64(0)
	for {
		p.mu.Lock()
		if p.closed || p.reign != reign {
			p.mu.Unlock()
			return ErrDeposed
		}
		if number == 0 {
			p.vote.proposed = p.vote.now()
			number = p.vote.node.Propose(p.vote.now(), entries...)
			p.members.voteLocked()
		}
		changed := p.changed
		done := number > 0 && p.vote.node.Committed() >= number
		p.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed: // also by the end of the reign, and by Close
		case <-ctx.Done():
			return ErrDeposed
		}
	}
}

// leaveLocked: the list stays, and so does the vote. A leader that no majority hears may be elected still, and begins
// again once one does.
func (p *Peers) leaveLocked(wire.Redirect) {}

func (p *Peers) livenessLocked() wire.Liveness {
	f, b := p.Group.livenessLocked(), p.vote.node
	if f.State == uint64(succession.Leads) && !b.Majority(p.vote.now()) {
		f.State = uint64(succession.Abstains)
	}
	return f
}

func (p *Peers) votersLocked() (nodes []string) {
	if !p.hosting {
		return p.Group.votersLocked()
	}
	for _, id := range p.vote.node.Voters().All() {
		if id != p.vote.voter {
			nodes = append(nodes, p.nodeOfLocked(id))
		}
	}
	return nodes
}

// Deposed returns where to go, if another server leads, or has led, since this one began to and has not
// stepped down yet.
func (p *Peers) Deposed() (to wire.Redirect, deposed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.vote.node
	if !p.hosting || p.reign != 0 && !b.Lost() {
		return to, false
	}
	to = p.nextLocked()
	to.Node = p.nodeOfLocked(b.Leader())
	to.Host = p.addrLocked(to.Node)
	return to, true
}

// targetLocked notes which peer hosts, as the voters know, and was heard lately.
func (p *Peers) targetLocked() {
	b := p.vote.node
	if p.hosting {
		return
	}
	host := p.nodeOfLocked(b.Leader())
	p.certain = host != "" && host != p.node && p.linkTo(host) != nil && p.vote.now()-b.Heard() <= p.lease/4
	if !p.certain {
		return
	}
	term, _ := b.Leads()
	to := wire.Redirect{Group: nameOf(b.Cluster()), Term: term, Node: host, Host: p.addrLocked(host)}
	if p.target.Term != to.Term || p.target.Host != to.Host || p.target.Group != to.Group {
		p.target = to
		p.wakeLocked()
	}
}

// Elected begins a reign where the others have elected this server, and its replica has all that a majority
// has accepted, and what it has proposed in a reign before, which the majority accepts yet. alone tells that no majority
// could be asked whether there was more. It reports false if this server was not elected, has no majority, or leads already.
func (p *Peers) Elected() (reign uint64, alone, elected bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.vote.node
	_, _, last := n.Value()
	if p.hosting || p.closed || !n.Majority(p.vote.now()) || n.Committed() < last {
		return 0, false, false
	}
	p.beginReignLocked()
	return p.reign, clustersBefore(n.Cluster()) > 0 && n.Fresh(), true
}

// Lead makes this server host in a reign, which has begun the runs. It reports false if that is over.
func (p *Peers) Lead(reign uint64, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.vote.node
	term, leads := n.Leads()
	if !leads || p.hosting || p.closed || p.reign != reign {
		return false
	}
	from, silent := p.target.Node, !n.ProvenDead(n.HeardLast())
	t := &p.takeover
	t.Since, t.From, t.Took = now, from, 0
	if from != "" {
		t.Took = p.vote.now() - n.Heard()
		t.Total++
		t.Spent += t.Took
	}
	p.start = rendezvous.Succession{Term: term, From: from, Silent: silent && from != ""}
	p.hosting, p.round = true, false
	p.target = wire.Redirect{Group: nameOf(n.Cluster()), Term: term, Node: p.node, Host: p.self}
	p.setVotersLocked()
	p.voteLocked()
	p.tellLocked()
	p.wakeLocked()
	return true
}

// Began returns no succession: a run's machine begins new, or is restored.
func (p *Peers) Began() (s rendezvous.Succession, since time.Time, took time.Duration) {
	_, since, took = p.Group.Began()
	return s, since, took
}

// Serves reports whether the leader of a run is elected here: of every one.
func (p *Peers) Serves(string) bool { return true }

// Lame reports whether this server hosts and has had no majority for a lease. Nodes that wait for
// it should then look elsewhere.
func (p *Peers) Lame() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.vote.now()
	if !p.hosting || p.vote.node.Majority(now) {
		p.majorityAt = now
	}
	return now-p.majorityAt >= p.lease
}

// waitsLocked says which servers are missing for a majority.
func (p *Peers) waitsLocked() string {
	if p.hosting || p.certain {
		return ""
	}
	var silent []string
	for _, name := range p.places {
		if name != p.node && p.linkTo(name) == nil {
			silent = append(silent, name)
		}
	}
	all, which := strings.Join(p.places, ", "), "first"
	if p.vote.node.Founded() {
		which = "next"
	}
	text := "waits until the servers " + all + " have elected their " + which + " leader"
	if last := len(silent) - 1; 2*len(silent) >= len(p.places) {
		text = "waits for a majority of " + all + ": " + strings.Join(silent[:last], ", ") + " and " + silent[last] + " do not answer"
	}
	for _, name := range p.places {
		if why := p.refusing[name]; why != "" {
			text += "; " + why
		}
	}
	return text
}

// Ready says why the others cannot use this server yet; "": it votes, and one hosts.
func (p *Peers) Ready() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.vote.node
	switch {
	case b.Stalled() != nil:
		return "its data directory cannot be written"
	case p.waitsLocked() != "":
		return p.waitsLocked()
	case p.hosting && !b.Majority(p.vote.now()):
		return "it leads without a majority"
	case !slices.Contains(b.Voters().Incoming, p.vote.voter), len(b.Voters().Outgoing) > 0:
		return "it does not vote yet"
	}
	return ""
}
