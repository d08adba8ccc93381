package standby

import (
	"errors"
	"maps"
	"slices"
	"syscall"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/election/raft"
	"rallypoint/core/store"
	"rallypoint/core/succession"
)

// Outbox is a connection's send queue, which does not block. Frames are queued under Group.mu, or
// an older message could overtake a newer one.
type Outbox interface{ Send(f wire.Frame) bool }

// maxLinks bounds the liveness connections that a process accepts and opens.
const maxLinks = 4 * succession.MaxStandbys

// Link is one liveness connection between this standby and another, or the memory of one that has
// ended. Group.mu guards it.
type Link struct {
	node    string
	voter   raft.Voter    // 0: it has not said yet
	cluster string        // in which it votes
	last    [2]uint64     // the term and the number of the last value that it knows
	votes   bool          // as it says
	linked  []string      // nodes to which it has opened a connection, as it says
	spoke   bool          // the other side has said something on it, or on the one before
	heard   time.Duration // when it did so last, by the vote's clock
	refuses bool          // it has spoken, and the last dial to its address was refused
	dialed  bool          // this process opens it: its end and refused dials prove a death
	before  []raft.Voter  // in the same place, before it was dialed
	out     Outbox        // nil: it is not open
	state   succession.State
	term    uint64
	target  wire.Redirect
	silent  silentConn          // of the goroutine that serves the link
	end     succession.Evidence // that the process is dead whose side has ended the last connection
	tries   int                 // that may follow at once to complete it
}

// anyLink returns one that is so; nil if none is.
func (g *Group) anyLink(is func(l *Link) bool) *Link {
	for l := range g.links {
		if is(l) {
			return l
		}
	}
	return nil
}

// Accept takes a liveness connection that another standby has opened. It returns nil if there are
// too many, or if it is of another group, which it tells the standby.
func (g *Group) Accept(f wire.Liveness, out Outbox) *Link {
	g.mu.Lock()
	if g.closed || len(g.links) >= maxLinks || f.RunID != g.runID || f.Group == "" || f.Group != g.groupLocked() {
		if f.RunID == g.runID && (g.closed || f.Group != g.groupLocked()) {
			out.Send(g.members.livenessLocked())
		}
		g.mu.Unlock()
		return nil
	}
	l := &Link{node: f.Node, out: out}
	g.links[l] = struct{}{}
	out.Send(g.members.livenessLocked())
	g.mu.Unlock()
	g.Hear(l, f)
	return l
}

// Dial adds a liveness connection that this standby opens.
func (g *Group) Dial(node string) *Link {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := &Link{node: node, dialed: true}
	g.links[l] = struct{}{}
	return l
}

// Opened records that the connection is open, and sends the other side this process's knowledge.
func (g *Group) Opened(l *Link, out Outbox) {
	g.mu.Lock()
	defer g.mu.Unlock()
	l.out, l.state = out, succession.Asked
	g.wakeLocked()
	g.tellLocked() // of this connection; and what this side knows may have changed since it was opened
}

// Attempted notes how an attempt to reach the other side has ended; opened tells that something came on the
// connection. Once that side has ended one, fresh dials that are refused prove that its process is dead. The result is
// the pause before the next attempt; false: the caller's own.
func (g *Group) Attempted(l *Link, opened bool, err error) (pause time.Duration, soon bool) {
	byPeer := store.EndedByPeer(err)
	silentEnded := l.silent.endedByPeer()
	g.mu.Lock()
	defer g.mu.Unlock()
	if l.spoke && l.state != succession.Dead && !l.end.Ended {
		opened = opened || byPeer // a process that was stopped takes connections, and its death ends them
	}
	refused := errors.Is(err, syscall.ECONNREFUSED)
	l.refuses = refused && l.spoke
	switch ended := opened && byPeer || silentEnded; {
	case ended:
		if l.end.Ended { // it lets this process in, and ends the connection at once
			pause = succession.DialEvery
		}
		g.endedLocked(l, succession.Unconnected)
		l.end, l.tries = succession.Evidence{Ended: true, Direct: true}, succession.MostDials
		if l.voter != 0 && l.voter == g.vote.node.Leader() {
			g.vote.node.LeaderEnded(g.vote.now())
		}
		return pause, true
	case opened:
		g.endedLocked(l, succession.Unconnected)
		l.end = succession.Evidence{}
		return 0, false
	case !l.end.Ended:
		return 0, false
	case refused:
		l.end.Observe(succession.DialRefused)
	case byPeer: // the listener outlives the connections by some milliseconds
		l.end.Observe(succession.DialBroken)
	default:
		l.end.Observe(succession.DialSilent)
		l.tries = 2 * succession.Dials
		return 0, false
	}
	if l.end.Proves() {
		l.end = succession.Evidence{}
		g.endedLocked(l, succession.Dead)
		return 0, false
	}
	l.tries--
	return succession.DialEvery, l.tries > 0
}

// endedLocked notes that the connection is gone.
func (g *Group) endedLocked(l *Link, state succession.State) {
	l.out, l.state = nil, state
	g.vote.node.Parted(l.voter, g.vote.now())
	if state == succession.Dead && len(g.died) < maxLinks {
		g.died = append(g.died, l.node)
	}
	g.countDeadLocked()
	g.members.setVotersLocked()
	g.wakeLocked()
	g.members.voteLocked()
}

// Died returns the nodes whose processes were proven dead since it was called last.
func (g *Group) Died() (nodes []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	nodes, g.died = g.died, nil
	return nodes
}

// Drop forgets a link.
func (g *Group) Drop(l *Link) {
	l.silent.close()
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.links, l)
	g.wakeLocked()
}

// Stranger reports whether the process at the other end is of another group.
func (g *Group) Stranger(l *Link, f wire.Liveness) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f.Group == g.target.Group {
		return false
	}
	g.noteVoterLocked(l, raft.ParseVoter(f.Voter))
	g.members.voteLocked()
	return true
}

// nameLocked notes the name under which a node votes. It forgets nodes whose death no longer
// decides anything, since many may come and go.
func (g *Group) nameLocked(node string, voter raft.Voter) {
	names := g.vote.names
	if names[node] == 0 && len(names) >= maxLinks {
		linked := map[string]bool{g.target.Node: true}
		for l := range g.links {
			linked[l.node] = true
		}
		maps.DeleteFunc(names, func(node string, id raft.Voter) bool {
			return !linked[node] && !g.vote.node.Voters().Has(id)
		})
	}
	names[node] = voter
}

// noteVoterLocked notes that another process listens where a voter has listened.
func (g *Group) noteVoterLocked(l *Link, voter raft.Voter) {
	if voter != l.voter && voter != 0 && l.voter != 0 && len(g.vote.replaced) < maxLinks {
		g.vote.replaced = append(g.vote.replaced, l.voter)
		g.countDeadLocked()
	}
}

// Hear takes the other standby's message. If that names a host of a later term while this process
// hosts, this process has to step down, and the result says in favour of whom.
func (g *Group) Hear(l *Link, f wire.Liveness) (to wire.Redirect, superseded bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f.Group != g.groupLocked() {
		return to, false
	}
	if f.State > uint64(succession.Left) {
		f.State = uint64(succession.Left)
	}
	voter, superseded := g.members.heardLocked(l, f)
	l.spoke, l.heard = true, g.vote.now()
	l.voter, l.votes, l.linked, l.cluster, l.last = voter, f.Votes, f.Linked, f.Cluster, f.Last
	if l.voter != 0 {
		g.nameLocked(l.node, l.voter)
	}
	l.state, l.term, l.target = succession.State(f.State), f.Term, f.Target
	if l.state == succession.Dead || l.state == succession.Unconnected || l.state == succession.Asked { // no process says that of itself
		l.state = succession.Abstains
	}
	g.newClusterLocked()
	g.countDeadLocked()
	g.members.setVotersLocked()
	g.wakeLocked()
	g.members.voteLocked()
	if f.Ask && l.out != nil {
		l.out.Send(g.members.livenessLocked())
	}
	return f.Target, superseded
}

func (g *Group) heardLocked(l *Link, said wire.Liveness) (voter raft.Voter, superseded bool) {
	voter = raft.ParseVoter(said.Voter)
	g.noteVoterLocked(l, voter)
	theirs := succession.Identity{Group: said.Group, Term: said.Term, Node: said.Node}
	mine := succession.Identity{Group: g.target.Group, Term: g.target.Term, Node: g.node}
	return voter, g.hosting && said.State == uint64(succession.Leads) && succession.Believable(said.Term) && succession.Yields(mine, theirs)
}

// Ask asks the other standbys whether their connections to the host stand. Until one
// answers, its state is that it was asked.
func (g *Group) Ask() {
	g.mu.Lock()
	defer g.mu.Unlock()
	question := g.members.livenessLocked()
	question.Ask = true
	for l := range g.links {
		if l.out != nil && l.state != succession.Leads {
			l.state = succession.Asked
			l.out.Send(question)
		}
	}
}

// tellLocked sends this process's changes to the other standbys.
func (g *Group) tellLocked() {
	own := g.members.livenessLocked()
	for l := range g.links {
		if l.out != nil {
			l.out.Send(own)
		}
	}
}

// Liveness is this process's message about itself.
func (g *Group) Liveness() wire.Liveness {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.members.livenessLocked()
}

func (g *Group) livenessLocked() wire.Liveness {
	f := wire.Liveness{RunID: g.runID, Group: g.groupLocked(), Node: g.node, State: uint64(g.link), Term: g.target.Term, Target: g.target, Voter: g.vote.voter.String(), Votes: g.vote.node.Votes(), Cluster: g.vote.node.Cluster()}
	_, f.Last[0], f.Last[1] = g.vote.node.Value()
	switch {
	case g.closed, g.resignedLocked():
		f.State = uint64(succession.Left)
	case g.hosting:
		f.State = uint64(succession.Leads)
	case g.link == succession.Unconnected:
		f.State = uint64(succession.Abstains)
	}
	if g.noQuorum {
		f.Voter = ""
		return f
	}
	for l := range g.links {
		if l.out != nil && l.dialed && !slices.Contains(f.Linked, l.node) {
			f.Linked = append(f.Linked, l.node)
		}
	}
	return f
}
