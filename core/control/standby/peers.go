package standby

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/core/succession"
	"rallypoint/internal/wording"
)

// Peers is a Group of servers that are named by configuration and serve many runs
// (docs/decisions/0139).
type Peers struct {
	*Group
	places []string // their names, in one order everywhere
	ledger ledger

	last     succession.Voter  // the host that was known last
	proven   time.Duration     // since when that one is proven dead; 0: it is not
	entry    [2]uint64         // term and number of the entry that the name below is of
	name     string            // of the group, as nodes know it
	refusing map[string]string // by peer: why it is none, and has been more than once
	refused  map[string]string // the same, as it was last
	orphan   time.Duration     // since when there has been no host, though enough servers are up
	ticked   time.Duration     // when that was looked at
	gaveUp   bool              // and told to nobody yet
	sure     time.Duration     // when the server here had a majority last, or did not host
	deposed  bool              // another server has hosted since the one here began to
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
	p.vote = newVote(p.clock, p.lease)
	p.vote.voter = succession.Voter(strconv.Itoa(slices.Index(p.places, p.node)) + "-" + rand.Text())
	p.vote.ballot = succession.NewBallot(p.vote.voter, p.lease, 0).Of(len(p.places))
	p.last, p.proven, p.entry, p.name = "", 0, [2]uint64{}, ""
	p.orphan, p.ticked, p.sure = 0, 0, 0
	p.deposed = p.hosting
}

func (p *Peers) nodeOfLocked(id succession.Voter) string {
	number, _, _ := strings.Cut(string(id), "-")
	if i, err := strconv.Atoi(number); err == nil && i >= 0 && i < len(p.places) {
		return p.places[i]
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
	for _, id := range p.vote.ballot.Accepted().Voters.All() {
		if p.nodeOfLocked(id) == l.node {
			l.before = append(l.before, id)
		}
	}
}

// heardLocked: a process that answers a dial has taken the place of those before it, which are
// dead. One that remembers another group joins the one that a majority has founded since, without
// it. The voters decide which of two hosts continues.
func (p *Peers) heardLocked(l *Link, said wire.Liveness) (voter succession.Voter, superseded bool) {
	if id := succession.Voter(said.Voter); p.nodeOfLocked(id) == l.node {
		voter = id
		p.vote.replaced = append(p.vote.replaced, slices.DeleteFunc(l.before, func(id succession.Voter) bool { return id == voter })...)
		l.before = nil
	}
	if l.dialed { // its opener need not be at the peer's address
		p.noteVoterLocked(l, voter)
	}
	if said.Word == uint64(succession.Hosts) && p.name != "" && said.Target.Group != p.name && !p.vote.ballot.Majority(p.vote.now()) {
		p.forgetLocked()
		p.tellLocked()
	}
	return voter, false
}

// EndedByPeer notes that the other side has ended a connection.
func (p *Peers) EndedByPeer(l *Link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.voter != "" && l.voter == p.vote.ballot.Host() {
		p.vote.ballot.HostEnded()
	}
}

// linkTo returns an open connection to a peer, one that was opened from here if there is one.
func (p *Peers) linkTo(node string) (best *Link) {
	for l := range p.links {
		if l.node == node && l.out != nil && l.voter != "" && (best == nil || l.dialed) {
			best = l
		}
	}
	return best
}

// standLocked founds the group among servers that know none, and stands at once when the
// host is proven dead: the first server of the list that is connected, or the next one after a beat.
func (p *Peers) standLocked() {
	b := p.vote.ballot
	if !b.Founded() {
		var voters []succession.Voter
		for _, name := range p.places {
			switch l := p.linkTo(name); {
			case name == p.node:
				voters = append(voters, p.vote.voter)
			case l != nil && l.votes:
				return // it knows the group, and takes this process in
			case l != nil:
				voters = append(voters, l.voter)
			}
		}
		b.Found(voters)
		return
	}
	if p.orphanedLocked() {
		p.gaveUp = true
		p.forgetLocked()
		p.tellLocked()
		return
	}
	host := b.Host()
	if host != "" && host != p.last {
		p.last, p.proven = host, 0
	}
	if !b.ProvenDead(p.last) || host != "" && host != p.last {
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
		b.Stand(false, now)
	}
}

// orphanedLocked reports whether this process reaches a majority of the servers, and has had no host for
// so long that by what they remember there is none.
func (p *Peers) orphanedLocked() bool {
	b, now := p.vote.ballot, p.vote.now()
	near := 0
	for _, name := range p.places {
		if name == p.node || p.linkTo(name) != nil {
			near++
		}
	}
	late := now-p.ticked > 2*p.Beat()
	p.ticked = now
	if near <= len(p.places)/2 || late || b.Majority(now) || !p.hosting && now-b.Heard() < p.lease/4 {
		p.orphan = now
	}
	return now-p.orphan >= succession.GiveUp*p.lease
}

// GaveUp reports, once, whether this process has given up what it remembered, since no host could be
// elected by it.
func (p *Peers) GaveUp() (gave bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	gave, p.gaveUp = p.gaveUp, false
	return gave
}

// wishLocked has the present process of each peer vote: the one that is connected, or else
// the one that votes already.
func (p *Peers) wishLocked() {
	p.standLocked()
	b := p.vote.ballot
	if _, leads := b.Hosts(); !leads {
		return
	}
	now := map[string]succession.Voter{}
	for _, id := range b.Accepted().Voters.All() {
		now[p.nodeOfLocked(id)] = id
	}
	for _, id := range b.Accepted().Voters.Incoming { // of two of one place the later one
		now[p.nodeOfLocked(id)] = id
	}
	var voters []succession.Voter
	for _, name := range p.places {
		id := now[name]
		if l := p.linkTo(name); l != nil && l.dialed {
			id = l.voter
		}
		if name == p.node {
			id = p.vote.voter
		}
		if id != "" {
			voters = append(voters, id)
		}
	}
	b.Wish(voters, p.vote.now())
}

func (p *Peers) voteLocked() {
	b, now := p.vote.ballot, p.vote.now()
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
// more.
func (p *Peers) sendLocked(m succession.Message) {
	if l := p.linkTo(p.nodeOfLocked(m.To)); !p.closed && l != nil && l.voter == m.To {
		l.out.Send(wire.Ballot{Group: p.inside, Message: m})
	}
}

func (p *Peers) proposeLocked(run string, f rendezvous.Facts) (number uint64, whole bool) {
	if _, leads := p.vote.ballot.Hosts(); !leads {
		return 0, true
	}
	return p.ledger.set(run, f)
}

// saidLocked reports false after the last word: the others may have elected the next host already.
func (p *Peers) saidLocked(number uint64) bool { return !p.closed && p.ledger.said >= number }

func (p *Peers) leaveLocked(wire.Redirect) {} // the list stays, and so does the vote

func (p *Peers) livenessLocked() wire.Liveness {
	f, b := p.Group.livenessLocked(), p.vote.ballot
	f.Votes = b.Founded() // else another that knows nothing may found the group with it
	if f.Word == uint64(succession.Hosts) && !b.Majority(p.vote.now()) {
		f.Word = uint64(succession.Abstains)
	}
	return f
}

func (p *Peers) votersLocked() (nodes []string) {
	if !p.hosting {
		return p.Group.votersLocked()
	}
	for _, id := range p.vote.ballot.Accepted().Voters.All() {
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
	b := p.vote.ballot
	if _, leads := b.Hosts(); !p.hosting || !p.deposed && (leads || b.Host() == "") {
		return to, false
	}
	to = p.nextLocked()
	to.Node = p.nodeOfLocked(b.Host())
	to.Host = p.addrLocked(to.Node)
	return to, true
}

// targetLocked notes which peer hosts, as the voters know, and was heard lately.
func (p *Peers) targetLocked() {
	b := p.vote.ballot
	entry := b.Accepted()
	if at := [2]uint64{entry.Term, entry.Number}; at != p.entry {
		p.entry, p.name = at, nameOf(entry.Value)
	}
	if p.hosting {
		p.deposed = p.deposed || b.Host() != "" && b.Host() != p.vote.voter
		return
	}
	host := p.nodeOfLocked(b.Host())
	p.certain = host != "" && host != p.node && p.name != "" && p.linkTo(host) != nil && p.vote.now()-b.Heard() <= p.lease/4
	if !p.certain {
		return
	}
	term, _ := b.Hosts()
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
	b := p.vote.ballot
	term, leads := b.Hosts()
	if !leads || p.hosting || p.closed || !b.Majority(p.vote.now()) {
		return nil, false, nil
	}
	p.ledger, err = decodeLedger(b.Accepted().Value)
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
	p.start = rendezvous.Succession{Term: term, From: from, Silent: silent && from != ""}
	p.hosting, p.round, p.deposed = true, false, false
	p.target = wire.Redirect{Group: p.ledger.name, Term: term, Node: p.node, Host: p.self}
	p.wishLocked()
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
	if !p.hosting || p.vote.ballot.Majority(now) {
		p.sure = now
	}
	return now-p.sure >= p.lease
}

// proposeLocked proposes the changes to the voters, once they have accepted the previous
// proposal.
func (l *ledger) proposeLocked(b *succession.Ballot, now time.Duration) {
	if l.number > 0 && b.Confirmed() >= l.number {
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
	if p.vote.ballot.Founded() {
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
	b := p.vote.ballot
	switch {
	case p.waitsLocked() != "":
		return p.waitsLocked()
	case p.hosting && !b.Majority(p.vote.now()):
		return "it leads without a majority"
	case !slices.Contains(b.Accepted().Voters.Incoming, p.vote.voter), b.Changing(), b.Young(p.vote.now()):
		return "it does not vote yet"
	}
	return ""
}
