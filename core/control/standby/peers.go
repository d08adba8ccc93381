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

// peers is the part of a Group whose servers are named by configuration and serve many runs
// (docs/decisions/0139). It is guarded by Group.mu.
type peers struct {
	places []string // their names, in one order everywhere
	ledger ledger

	last     succession.Voter  // the host that was known last
	proven   time.Duration     // since when that one is proven dead; 0: it is not
	entry    [2]uint64         // term and number of the entry that the name below is of
	name     string            // of the group, as nodes know it
	refusing map[string]string // by peer: why it is none, and has been more than once
	refused  map[string]string // the same, as it was last
	orphan   time.Duration     // since when there has been no host, though enough servers are there
	ticked   time.Duration     // when that was looked at
	gaveUp   bool              // and told to nobody yet
	sure     time.Duration     // when the server here had a majority last, or did not host
	deposed  bool              // another server has hosted since the one here began to
}

// NewPeers makes the view of a server of many runs that knows nothing yet. names are those of
// all servers, own among them; a server that has another list, or another lease, is of another
// group.
func NewPeers(names []string, own string, lease time.Duration) *Group {
	places := slices.Sorted(slices.Values(names))
	sum := sha256.Sum256([]byte(strings.Join(places, ",") + " " + lease.String()))
	g := NewGroup("peers-"+hex.EncodeToString(sum[:16]), own, lease, false)
	g.peers = &peers{places: places, ledger: ledger{facts: map[string][]byte{}}, refusing: map[string]string{}, refused: map[string]string{}}
	g.self = own
	g.forgetLocked()
	for _, name := range places {
		g.list = append(g.list, wire.StandbyNode{Node: name, Label: name, Votes: true})
	}
	return g
}

// forgetLocked gives this process an empty memory, and a name that has not voted.
func (g *Group) forgetLocked() {
	p := g.peers
	g.vote = newVote(g.lease)
	g.vote.voter = succession.Voter(strconv.Itoa(slices.Index(p.places, g.node)) + "-" + rand.Text())
	g.vote.ballot = succession.NewBallot(g.vote.voter, g.lease, 0).Of(len(p.places))
	p.last, p.proven, p.entry, p.name = "", 0, [2]uint64{}, ""
	p.orphan, p.ticked, p.sure = 0, 0, 0
	p.deposed = g.hosting
}

// yieldLocked has a process that remembers another group join the one that a majority has founded
// since, without it.
func (g *Group) yieldLocked(l *Link) {
	if p := g.peers; l.word == succession.Hosts && p.name != "" && l.target.Group != p.name && !g.vote.ballot.Majority(g.vote.now()) {
		g.forgetLocked()
		g.tellLocked()
	}
}

// Peers reports whether the servers are named by configuration, and serve many runs.
func (g *Group) Peers() bool { return g.peers != nil }

// Serves reports whether the servers of the group serve a run.
func (g *Group) Serves(run string) bool { return g != nil && (g.peers != nil || run == g.runID) }

// MaxFrame bounds what is read from a liveness connection that has been accepted.
func (g *Group) MaxFrame() int {
	if g.peers != nil {
		return wire.MaxFrame
	}
	return wire.MaxHelloFrame
}

// groupLocked names the group among its servers.
func (g *Group) groupLocked() string {
	if g.peers != nil {
		return g.runID
	}
	return g.target.Group
}

// placeOf returns the name of the peer whose process a voter is; "" if it is none.
func (p *peers) placeOf(id succession.Voter) string {
	number, _, _ := strings.Cut(string(id), "-")
	if i, err := strconv.Atoi(number); err == nil && i >= 0 && i < len(p.places) {
		return p.places[i]
	}
	return ""
}

// Others returns the names of the other servers.
func (g *Group) Others() []string {
	return slices.DeleteFunc(slices.Clone(g.peers.places), func(name string) bool { return name == g.node })
}

// Reached notes at which address a peer was reached.
func (g *Group) Reached(name string, addr netip.AddrPort) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.list {
		if s := &g.list[i]; s.Node == name && s.Addr != addr.String() {
			s.Addr = addr.String()
			g.wakeLocked()
		}
	}
}

// Refused notes why a peer is none; "": it is one. It reports whether that is news: one that is just
// ending refuses once.
func (g *Group) Refused(name, why string) (news bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.peers
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

// Redial notes who has voted in a peer's place until now, before its address is dialled.
func (g *Group) Redial(l *Link) {
	g.mu.Lock()
	defer g.mu.Unlock()
	l.before = nil
	for _, id := range g.vote.ballot.Accepted().Voters.All() {
		if g.peers.placeOf(id) == l.node {
			l.before = append(l.before, id)
		}
	}
}

// heardPeerLocked takes the name of the process at the other end of a connection. One that answers a
// dial has taken the place of those before it, which are dead.
func (g *Group) heardPeerLocked(l *Link, said succession.Voter) succession.Voter {
	p := g.peers
	if p.placeOf(said) != l.node {
		return ""
	}
	g.vote.replaced = append(g.vote.replaced, slices.DeleteFunc(l.before, func(id succession.Voter) bool { return id == said })...)
	l.before = nil
	return said
}

// EndedByPeer notes that the other side has ended a connection.
func (g *Group) EndedByPeer(l *Link) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l.voter != "" && l.voter == g.vote.ballot.Host() {
		g.vote.ballot.HostEnded()
	}
}

// linkTo returns an open connection to a peer, one that was opened from here if there is one.
func (g *Group) linkTo(node string) (best *Link) {
	for l := range g.links {
		if l.node == node && l.out != nil && l.voter != "" && (best == nil || l.dialed) {
			best = l
		}
	}
	return best
}

// standPeersLocked founds the group among servers that know none, and stands at once when the
// host is proven dead: the first server of the list that is connected, or the next one after a beat.
func (g *Group) standPeersLocked() {
	b, p := g.vote.ballot, g.peers
	if !b.Founded() {
		var voters []succession.Voter
		for _, name := range p.places {
			switch l := g.linkTo(name); {
			case name == g.node:
				voters = append(voters, g.vote.voter)
			case l != nil && l.votes:
				return // it knows the group, and takes this process in
			case l != nil:
				voters = append(voters, l.voter)
			}
		}
		b.Found(voters)
		return
	}
	if g.orphanedLocked() {
		p.gaveUp = true
		g.forgetLocked()
		g.tellLocked()
		return
	}
	host := b.Host()
	if host != "" && host != p.last {
		p.last, p.proven = host, 0
	}
	if !b.ProvenDead(p.last) || host != "" && host != p.last {
		return
	}
	now := g.vote.now()
	if p.proven == 0 {
		p.proven = now
	}
	before := 0
	for _, name := range p.places[:slices.Index(p.places, g.node)] {
		if name != p.placeOf(p.last) && g.linkTo(name) != nil {
			before++
		}
	}
	if now-p.proven >= time.Duration(before)*g.Beat() {
		b.Stand(false, now)
	}
}

// orphanedLocked reports whether this process reaches a majority of the servers, and has had no host for
// so long that by what they remember there is none.
func (g *Group) orphanedLocked() bool {
	b, p, now := g.vote.ballot, g.peers, g.vote.now()
	near := 0
	for _, name := range p.places {
		if name == g.node || g.linkTo(name) != nil {
			near++
		}
	}
	late := now-p.ticked > 2*g.Beat()
	p.ticked = now
	if near <= len(p.places)/2 || late || b.Majority(now) || !g.hosting && now-b.Heard() < g.lease/4 {
		p.orphan = now
	}
	return now-p.orphan >= succession.GiveUp*g.lease
}

// GaveUp reports, once, whether this process has given up what it remembered, since no host could be
// elected by it.
func (g *Group) GaveUp() (gave bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	gave, g.peers.gaveUp = g.peers.gaveUp, false
	return gave
}

// wishPeersLocked has the present process of each peer vote: the one that is connected, or else
// the one that votes already.
func (g *Group) wishPeersLocked() {
	b := g.vote.ballot
	if _, leads := b.Hosts(); !leads {
		return
	}
	now := map[string]succession.Voter{}
	for _, id := range b.Accepted().Voters.All() {
		now[g.peers.placeOf(id)] = id
	}
	for _, id := range b.Accepted().Voters.Incoming { // of two of one place the later one
		now[g.peers.placeOf(id)] = id
	}
	var voters []succession.Voter
	for _, name := range g.peers.places {
		id := now[name]
		if l := g.linkTo(name); l != nil && l.dialed {
			id = l.voter
		}
		if name == g.node {
			id = g.vote.voter
		}
		if id != "" {
			voters = append(voters, id)
		}
	}
	b.Wish(voters, g.vote.now())
}

// targetLocked notes which peer hosts, as the voters know.
func (g *Group) targetLocked() {
	b, p := g.vote.ballot, g.peers
	entry := b.Accepted()
	if at := [2]uint64{entry.Term, entry.Number}; at != p.entry {
		p.entry, p.name = at, nameOf(entry.Value)
	}
	if g.hosting {
		p.deposed = p.deposed || b.Host() != "" && b.Host() != g.vote.voter
		return
	}
	host := p.placeOf(b.Host())
	g.certain = host != "" && host != g.node && p.name != "" && g.linkTo(host) != nil
	if !g.certain {
		return
	}
	term, _ := b.Hosts()
	to := wire.Redirect{Group: p.name, Term: term, Node: host, Host: g.addrLocked(host)}
	if g.target.Term != to.Term || g.target.Host != to.Host || g.target.Group != to.Group {
		g.target = to
		g.wakeLocked()
	}
}

// certainLocked reports whether the server that hosts as far as is known was heard lately.
func (g *Group) certainLocked() bool {
	return g.certain && (g.peers == nil || g.vote.now()-g.vote.ballot.Heard() <= g.lease/4)
}

func (g *Group) addrLocked(node string) string {
	for _, s := range g.list {
		if s.Node == node {
			return s.Addr
		}
	}
	return ""
}

// Succeed makes this server host, which the others have elected, and returns the runs that it
// begins with, in order. It reports false if it was not elected. An error is of what the
// voters have kept: what of it cannot be read is left out.
func (g *Group) Succeed(now time.Time) (runs []string, led bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	b, p := g.vote.ballot, g.peers
	term, leads := b.Hosts()
	if !leads || g.hosting || g.closed {
		return nil, false, nil
	}
	p.ledger, err = decodeLedger(b.Accepted().Value)
	if p.ledger.name == "" {
		p.ledger.name = rand.Text()
	}
	p.ledger.changes = 1 // of a host that begins; the voters keep its name from then on
	from, silent := g.target.Node, !b.ProvenDead(p.last)
	t := &g.takeover
	t.Since, t.From, t.Took, t.Left = now, from, 0, false
	if from != "" {
		t.Took = g.vote.now() - b.Heard()
		t.Total++
		t.Spent += t.Took
	}
	g.start = rendezvous.Succession{Term: term, From: from, Silent: silent && from != ""}
	g.hosting, g.round, p.deposed = true, false, false
	g.target = wire.Redirect{Group: p.ledger.name, Term: term, Node: g.node, Host: g.self}
	g.wishLocked()
	g.voteLocked()
	g.tellLocked()
	g.wakeLocked()
	for run := range p.ledger.facts {
		runs = append(runs, run)
	}
	slices.Sort(runs)
	return runs, true, err
}

// successionOfLocked is what a run begins with at this server.
func (g *Group) successionOfLocked(run string) rendezvous.Succession {
	kept, known := g.peers.ledger.facts[run]
	if !known {
		return rendezvous.Succession{Term: 1} // nobody was told anything of it
	}
	s := g.start
	s.Facts, _ = rendezvous.DecodeFacts(kept)
	s.Term = max(s.Term, 2) // of a group that was founded in its first term no run is kept
	return s
}

// Full says why no run may begin at these servers; "": one may.
func (g *Group) Full() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.peers == nil || g.peers.ledger.size < fullLedger {
		return ""
	}
	return fmt.Sprintf("what the servers keep of their %s for each other has %d KiB, of at most %d, which is all that new ones may take: wait until some are forgotten (--forget-after), or start other servers for them",
		wording.Count(len(g.peers.ledger.facts), "run", "runs"), g.peers.ledger.size>>10, maxLedger>>10)
}

// Kept returns how many bytes the servers keep of all runs for each other.
func (g *Group) Kept() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.peers.ledger.size
}

// Forget takes a run out of what the servers keep.
func (g *Group) Forget(run string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.peers != nil && g.hosting {
		g.peers.ledger.forget(run)
		g.voteLocked()
	}
}

// Lame reports whether this server hosts and has had no majority for a lease: it has nothing to say
// to nodes that wait for its word, and they may look elsewhere.
func (g *Group) Lame() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	p, now := g.peers, g.vote.now()
	if !g.hosting || g.vote.ballot.Majority(now) {
		p.sure = now
	}
	return now-p.sure >= g.lease
}

// proposeLocked gives the voters what has changed, once they have accepted what they were given
// before.
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

// waitsLocked says which servers are missing for a majority, for one that hears of no host; "": it
// hears of one.
func (g *Group) waitsLocked() string {
	p := g.peers
	if g.hosting || g.certainLocked() {
		return ""
	}
	var silent []string
	for _, name := range p.places {
		if name != g.node && g.linkTo(name) == nil {
			silent = append(silent, name)
		}
	}
	text := "waits for a majority of " + strings.Join(p.places, ", ")
	switch {
	case 2*len(silent) < len(p.places) && !g.vote.ballot.Founded():
		text = "waits until the servers " + strings.Join(p.places, ", ") + " have elected their first leader"
	case 2*len(silent) < len(p.places):
		text = "waits until the servers " + strings.Join(p.places, ", ") + " have elected their next leader"
	default:
		text += ": " + strings.Join(silent[:len(silent)-1], ", ") + " and " + silent[len(silent)-1] + " do not answer"
	}
	for _, name := range p.places {
		if why := p.refusing[name]; why != "" {
			text += "; " + why
		}
	}
	return text
}

// Ready says why this server is of no use to the others yet; "": it votes, and one hosts.
func (g *Group) Ready() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.peers == nil {
		return ""
	}
	b := g.vote.ballot
	switch {
	case g.waitsLocked() != "":
		return g.waitsLocked()
	case g.hosting && !b.Majority(g.vote.now()):
		return "it leads without a majority"
	case !slices.Contains(b.Accepted().Voters.Incoming, g.vote.voter), b.Changing(), b.Young(g.vote.now()):
		return "it does not vote yet"
	}
	return ""
}
