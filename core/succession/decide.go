package succession

import (
	"fmt"
	"slices"
	"time"
)

// State is what is known of another standby.
type State int

// The states.
const (
	// Unconnected: there is no connection to it, and there was none. It may live.
	Unconnected State = iota
	// Asked: there is a connection to it, and it has not answered since it was asked.
	Asked
	// Follows: it says that its own connection to the host stands.
	Follows
	// Ended: it says that the host ended its connection, too.
	Lost
	// Abstains: it says that it cannot tell: something stands between it and the host.
	Abstains
	// Dead: its side ended the connection to it, and fresh dials were refused.
	Dead
	// Leads: it hosts, in Peer.Term.
	Leads
	// Left: it does not stand by any more.
	Left
)

// GiveUp is for how many leases a standby that does not vote waits for voters that all seem dead to it: it may be
// this process that is cut off.
const GiveUp = 4

// Peer is another standby.
type Peer struct {
	Node  string
	State State
	Term  uint64 // of Leads

	Votes bool // it is a voter
}

// Input is one standby's knowledge when it decides.
type Input struct {
	Lost     uint64 // the term of the host whose connection is gone
	Term     uint64 // the highest one that is known; Lost or more
	Evidence Evidence
	Before   []Peer        // the standbys that succeed before this one, in order
	Behind   []Peer        // those after it
	Waited   time.Duration // since the evidence was complete
	Lease    time.Duration // how long one that lives and does not answer holds the others up
	Votes    bool          // this standby is a voter: it campaigns, and takes nothing over
}

// others are all other standbys, in order.
func (v Input) others() []Peer { return slices.Concat(v.Before, v.Behind) }

// Act is an action of a standby.
type Act int

// The acts.
const (
	Keep     Act = iota // nothing is proven: try to reach the host again
	Gather              // dial again: the evidence is not complete
	Wait                // decide again when a state changes, or the lease is over
	Follow              // Decision.Node hosts, or is about to: go there
	TakeOver            // this node hosts, in Decision.Term
)

// Decision is the result of Decide.
type Decision struct {
	Act  Act
	Node string
	Term uint64
	Why  string // human-readable
}

// Decide says what a standby does after losing its connection to the host.
func Decide(v Input) Decision {
	if found, ok := successor(v); ok {
		return found
	}
	switch {
	case !v.Evidence.Ended:
		return Decision{Act: Keep, Why: "the connection was not ended by the host's side: silence proves nothing"}
	case !v.Evidence.Direct:
		return Decision{Act: Keep, Why: "a proxy or address translation stands between this node and the host: a refused connection proves nothing"}
	case !Believable(v.Term + 1):
		return Decision{Act: Keep, Why: fmt.Sprintf("there is no term after %d", v.Term)}
	case !v.Evidence.Proves():
		return Decision{Act: Gather, Why: "fresh connections to the host have to be refused first"}
	case v.Votes:
		return Decision{Act: Wait, Why: "the voters elect the next host"}
	}
	over := v.Waited >= v.Lease
	for _, p := range v.others() {
		if p.State == Follows {
			return Decision{Act: Wait, Node: p.Node, Why: "node " + p.Node + " says that its connection to the host stands"}
		}
	}
	if p, may := v.mayBeElected(); may {
		return Decision{Act: Wait, Node: p.Node, Why: "node " + p.Node + " votes, and may be elected"}
	}
	for _, p := range v.Before {
		if p.State != Dead && p.State != Abstains && p.State != Left && !over {
			return Decision{Act: Follow, Node: p.Node, Why: "node " + p.Node + " goes first"}
		}
	}
	for _, p := range v.Behind {
		if p.State == Asked && !over {
			return Decision{Act: Wait, Node: p.Node, Why: "node " + p.Node + " has not said yet whether its connection to the host stands"}
		}
	}
	return Decision{Act: TakeOver, Term: v.Term + 1, Why: "the host's process has died: its machine refuses new connections"}
}

// mayBeElected returns a voter: it is voters who succeed a host, as long as one
// lives. If all of them seem dead it may be this process that is cut off, so that it waits for a while; and for
// good if they had time to go on without it: they may have ended the job.
func (v Input) mayBeElected() (p Peer, may bool) {
	for _, p := range v.others() {
		if p.Votes && (p.State != Dead && p.State != Left || v.Evidence.Silent || v.Waited < GiveUp*v.Lease) {
			return p, true
		}
	}
	return p, false
}

// successor looks for a standby that has taken over already: the one with the highest term.
func successor(v Input) (found Decision, ok bool) {
	for _, p := range v.others() {
		if p.State == Leads && Believable(p.Term) && p.Term > v.Lost && p.Term >= v.Term && p.Term > found.Term {
			found = Decision{Act: Follow, Node: p.Node, Term: p.Term, Why: "node " + p.Node + " hosts"}
		}
	}
	return found, found.Act == Follow
}

// Identity is what a server of a run tells another server about itself.
type Identity struct {
	Group string // drawn by the founder
	Term  uint64
	Node  string // that hosts it
	Round bool   // it has formed or adopted a round
}

// Yields reports whether a server steps down before another of the same run that it meets.
// Of two servers exactly one does.
func Yields(mine, theirs Identity) bool {
	switch {
	case mine.Group != theirs.Group && mine.Round != theirs.Round:
		return theirs.Round
	case mine.Term != theirs.Term:
		return mine.Term < theirs.Term
	case mine.Group != theirs.Group:
		return mine.Group < theirs.Group
	}
	return mine.Node < theirs.Node
}
