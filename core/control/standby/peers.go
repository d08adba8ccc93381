package standby

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/election/raft"
	"rallypoint/core/rendezvous"
	"rallypoint/core/succession"
	"rallypoint/internal/wording"
)

// Peers is a Group of servers that are named by configuration and serve many runs
// (docs/decisions/0151).
type Peers struct {
	*Group
	places []string // their names, in one order everywhere
	ledger ledger

	last       raft.Voter        // the host that was known last
	proven     time.Duration     // since when that one is proven dead; 0: it is not
	entry      [2]uint64         // term and number of the entry that the name below is of
	name       string            // of the group, as nodes know it
	refusing   map[string]string // by peer: why it is none, and has been more than once
	refused    map[string]string // the same, as it was last
	since      time.Duration     // since when this process could begin an epoch
	ticked     time.Duration     // when that was looked at
	began      uint64            // the term before the epoch that this process has begun with what it remembered; 0: it has not
	majorityAt time.Duration     // when the server here had a majority last, or did not host
	deposed    bool              // another server has hosted since the one here began to
}

// NewPeers makes the view of a server of many runs that knows nothing yet. names are those of
// all servers, own among them; a server that has another list, or another lease, is of another
// group.
func NewPeers(names []string, own string, lease time.Duration) *Peers {
	places := slices.Sorted(slices.Values(names))
	sum := sha256.Sum256([]byte(strings.Join(places, ",") + " " + lease.String()))
	p := &Peers{
		Group:  NewGroup("peers-"+hex.EncodeToString(sum[:16]), own, lease, false),
		places: places, ledger: ledger{facts: map[string][]byte{}}, refusing: map[string]string{}, refused: map[string]string{},
	}
	p.members, p.inside, p.maxFrame, p.self = p, p.runID, wire.MaxFrame, own
	p.forgetLocked()
	for _, name := range places {
		p.list = append(p.list, wire.StandbyNode{Node: name, Label: name, Votes: true})
	}
	return p
}

// forgetLocked gives this process an empty memory, and a name that has not voted.
func (p *Peers) forgetLocked() {
	p.voteAsLocked(raft.NewVoter(p.placeOf(p.node)))
	p.last, p.proven, p.entry, p.name = 0, 0, [2]uint64{}, ""
	p.since, p.ticked, p.majorityAt = 0, 0, 0
	p.deposed = p.hosting
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

// Redial records which process has voted in a peer's place until now, before its address is dialled.
func (p *Peers) Redial(l *Link) {
	p.mu.Lock()
	defer p.mu.Unlock()
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
	if own := p.vote.node.Epoch(); said.State == uint64(succession.Leads) && own != "" && said.Epoch != own && !p.vote.node.Majority(p.vote.now()) {
		p.forgetLocked()
		p.tellLocked()
	}
	return voter, false
}

// EndedByPeer notes that the other side has ended a connection.
func (p *Peers) EndedByPeer(l *Link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.voter != 0 && l.voter == p.vote.node.Leader() {
		p.vote.node.LeaderEnded(p.vote.now())
	}
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

// beginLocked begins an epoch if this process may: a majority of the servers is connected to it, they have heard
// no leader for a while, and none of them knows more. One that knows nothing waits until it would
// have heard of a leader, and one that remembers an epoch until that can elect nobody: those that voted
// in it are gone. It begins with what it remembers. Its runs' next rounds then leave a gap.
func (p *Peers) beginLocked() {
	n, now := p.vote.node, p.vote.now()
	late := now-p.ticked > 2*p.Beat()
	p.ticked = now
	var own, theirs [2]uint64
	value, term, number := n.Value()
	own = [2]uint64{term, number}
	free := !n.Majority(now) && (n.Epoch() == "" || now-n.Heard() >= p.lease/4)
	near, before, first := 1, 0, true
	for i, name := range p.places {
		l := p.linkTo(name)
		if name == p.node || l == nil {
			continue
		}
		near++
		theirs = l.last
		free = free && l.state != succession.Leads
		first = first && slices.Compare(own[:], theirs[:]) >= 0
		if theirs == own && i < p.placeOf(p.node)-1 {
			before++
		}
	}
	if near <= len(p.places)/2 || late || !free {
		p.since = now
		return
	}
	if !first || now-p.since < p.patienceLocked()+time.Duration(before)*p.lease/4 {
		return
	}
	epoch := rand.Text()
	var voters []raft.Voter
	for i := range p.places {
		voters = append(voters, voterOf(epoch, i+1))
	}
	p.voteAsLocked(voterOf(epoch, p.placeOf(p.node)))
	p.since, p.ticked, p.began = 0, 0, term
	p.vote.node.Begin(epoch, max(term, 1)-1, voters, value, p.vote.now())
	p.tellLocked()
}

// patienceLocked is how long this process waits before it begins an epoch, or takes part in one that another
// begins.
func (p *Peers) patienceLocked() time.Duration {
	if p.vote.node.Epoch() == "" {
		return p.lease * 2 / 5 // the process before it in its place may have told a leader that it hears it
	}
	return giveUp * p.lease
}

// giveUp is for how many leases a server keeps a memory by which nobody is elected, though enough servers are up.
const giveUp = 2

// voterOf names the voter of a place in an epoch that begins.
func voterOf(epoch string, place int) raft.Voter {
	sum := sha256.Sum256([]byte(epoch + " " + strconv.Itoa(place)))
	return raft.VoterAt(place, binary.LittleEndian.Uint64(sum[:]))
}

// adoptLocked takes part in an epoch that another process begins, if this one may.
func (p *Peers) adoptLocked(m raft.Message) {
	n, own := p.vote.node, voterOf(m.Epoch, p.placeOf(p.node))
	if m.To != own || m.Epoch == n.Epoch() || p.vote.now()-p.since < p.patienceLocked() {
		return
	}
	p.voteAsLocked(own)
	p.since, p.ticked, p.began = 0, 0, 0
	p.tellLocked()
}

// standLocked campaigns at once when the host is proven dead: the first server of the list that is connected, or
// the next one after a beat.
func (p *Peers) standLocked() {
	p.beginLocked()
	n := p.vote.node
	host := n.Leader()
	if host != 0 && host != p.last {
		p.last, p.proven = host, 0
	}
	if !n.ProvenDead(p.last) || host != 0 && host != p.last {
		return
	}
	now := p.vote.now()
	if p.proven == 0 {
		p.proven = now
	}
	before := 0
	for _, name := range p.places[:slices.Index(p.places, p.node)] {
		if name != p.nodeOfLocked(p.last) && p.linkTo(name) != nil {
			before++
		}
	}
	if now-p.proven >= time.Duration(before)*p.Beat() {
		n.Campaign(now)
	}
}

// setVotersLocked has the present process of each peer vote: the one that is connected, or else
// the one that votes already.
func (p *Peers) setVotersLocked() {
	p.standLocked()
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
		if l := p.linkTo(name); l != nil && l.dialed && (l.epoch == "" || l.epoch == b.Epoch()) {
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
	b, now := p.vote.node, p.vote.now()
	if p.hosting {
		p.ledger.proposeLocked(b, now)
	}
	p.targetLocked()
	if b.Majority(now) != p.vote.majority {
		p.tellLocked()
	}
	p.Group.voteLocked()
}

// sendLocked sends a message once, which may be long, and none after the last word: this process votes no
// more. Those with whom it begins an epoch do not vote in that yet.
func (p *Peers) sendLocked(m raft.Message) {
	l := p.linkTo(p.nodeOfLocked(m.To))
	if !p.closed && l != nil && (l.voter == m.To || l.epoch != m.Epoch && m.To == voterOf(m.Epoch, m.To.Place())) {
		l.out.Send(wire.Vote{Group: p.inside, Message: m})
	}
}

func (p *Peers) proposeLocked(run string, f rendezvous.Facts) (number uint64, whole bool) {
	if _, leads := p.vote.node.Leads(); !leads {
		return 0, true
	}
	return p.ledger.set(run, f)
}

// committedLocked reports false after the last word: the others may have elected the next host already.
func (p *Peers) committedLocked(number uint64) bool { return !p.closed && p.ledger.said >= number }

func (p *Peers) leaveLocked(wire.Redirect) {} // the list stays, and so does the vote

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
	if _, leads := b.Leads(); !p.hosting || !p.deposed && !b.Lost() && (leads || b.Leader() == 0) {
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
	value, term, number := b.Value()
	if at := [2]uint64{term, number}; at != p.entry {
		p.entry, p.name = at, nameOf(value)
	}
	if p.hosting {
		p.deposed = p.deposed || b.Leader() != 0 && b.Leader() != p.vote.voter
		return
	}
	host := p.nodeOfLocked(b.Leader())
	p.certain = host != "" && host != p.node && p.name != "" && p.linkTo(host) != nil && p.vote.now()-b.Heard() <= p.lease/4
	if !p.certain {
		return
	}
	term, _ = b.Leads()
	to := wire.Redirect{Group: p.name, Term: term, Node: host, Host: p.addrLocked(host)}
	if p.target.Term != to.Term || p.target.Host != to.Host || p.target.Group != to.Group {
		p.target = to
		p.wakeLocked()
	}
}

// Succeed makes this server host, which the others have elected, and returns the runs that it begins with,
// in order. It reports false if it was not elected, or has no majority. An error is about
// the list that the voters have kept: the parts that cannot be read are left out.
func (p *Peers) Succeed(now time.Time) (runs []string, led bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.vote.node
	term, leads := b.Leads()
	if !leads || p.hosting || p.closed || !b.Majority(p.vote.now()) {
		return nil, false, nil
	}
	value, _, _ := b.Value()
	p.ledger, err = decodeLedger(value)
	if p.ledger.name == "" {
		p.ledger.name = rand.Text()
	}
	p.ledger.changes = 1 // of a host that begins; the voters keep its name from then on
	from, silent := p.target.Node, !b.ProvenDead(p.last)
	t := &p.takeover
	t.Since, t.From, t.Took, t.Left = now, from, 0, false
	if from != "" {
		t.Took = p.vote.now() - b.Heard()
		t.Total++
		t.Spent += t.Took
	}
	p.start = rendezvous.Succession{Term: term, From: from, Silent: silent && from != "", Alone: p.began > 0}
	p.began = 0
	p.hosting, p.round, p.deposed = true, false, false
	p.target = wire.Redirect{Group: p.ledger.name, Term: term, Node: p.node, Host: p.self}
	p.setVotersLocked()
	p.voteLocked()
	p.tellLocked()
	p.wakeLocked()
	for run := range p.ledger.facts {
		runs = append(runs, run)
	}
	slices.Sort(runs)
	return runs, true, err
}

// SuccessionOf returns the succession with which the machine of a run begins at this server.
func (p *Peers) SuccessionOf(run string) rendezvous.Succession {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept, known := p.ledger.facts[run]
	if !known {
		return rendezvous.Succession{Term: 1} // nobody was told anything of it
	}
	s := p.start
	s.Facts, _ = rendezvous.DecodeFacts(kept)
	s.Term = max(s.Term, 2) // of a group that was founded in its first term no run is kept
	return s
}

// Serves reports whether the leader of a run is elected here: of every one.
func (p *Peers) Serves(string) bool { return true }

// Full says why no run may begin at these servers; "": one may.
func (p *Peers) Full() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ledger.size < fullLedger {
		return ""
	}
	return fmt.Sprintf("what the servers keep of their %s for each other has %d KiB, of at most %d, which is all that new ones may take: wait until some are forgotten (--forget-after), or start other servers for them",
		wording.Count(len(p.ledger.facts), "run", "runs"), p.ledger.size>>10, maxLedger>>10)
}

// Forget removes a run from the ledger.
func (p *Peers) Forget(run string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hosting {
		p.ledger.forget(run)
		p.voteLocked()
	}
}

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

// proposeLocked proposes the changes to the voters, once they have accepted the previous
// proposal.
func (l *ledger) proposeLocked(b *raft.Node, now time.Duration) {
	if l.number > 0 && b.Committed() >= l.number {
		l.said, l.number = l.sent, 0
	}
	if l.number == 0 && l.changes > l.sent {
		if number := b.Propose(l.encode(), now); number > 0 {
			l.sent, l.number = l.changes, number
		}
	}
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
	case p.waitsLocked() != "":
		return p.waitsLocked()
	case p.hosting && !b.Majority(p.vote.now()):
		return "it leads without a majority"
	case !slices.Contains(b.Voters().Incoming, p.vote.voter), len(b.Voters().Outgoing) > 0:
		return "it does not vote yet"
	}
	return ""
}
