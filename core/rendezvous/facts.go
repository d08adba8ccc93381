package rendezvous

import (
	"slices"
	"time"
)

// Facts are what only the control plane knows of a run and a successor of it has to know
// (docs/decisions/0037). Each membership update carries them to the nodes, and each hello
// back. The zero value says nothing.
type Facts struct {
	Generation string // of the control plane that told them; "": nothing was told

	// The last round, which need not be the one of the node that reports it. Round is 0
	// before the first one.
	Origin        string // generation in which it was completed
	Round         uint64
	World         int    // 0: of the round is known no more than its number
	HostRank      int    // rank of the node in whose process the control plane runs; -1: it has none
	Finished      bool   // a member has finished
	Domains       string `json:",omitzero"` // of its segments, with the number of ranks of each; "": not told
	FinishedHosts []int  // ranks of the members that host the control plane, or have hosted it, and have finished; ascending

	Closed Closing // the zero value: the run is open

	Directives DirectiveFacts `json:",omitzero"`
}

// maxFinishedHosts bounds FinishedHosts. Each death of a host adds one at most.
const maxFinishedHosts = 64

// Equal reports whether two facts say the same.
func (f Facts) Equal(g Facts) bool {
	return f.Generation == g.Generation && f.Origin == g.Origin && f.Round == g.Round && f.World == g.World && f.HostRank == g.HostRank &&
		f.Finished == g.Finished && f.Domains == g.Domains && slices.Equal(f.FinishedHosts, g.FinishedHosts) && f.Closed.equal(g.Closed) &&
		f.Directives.equal(g.Directives)
}

// possible reports whether a control plane of rounds of at most so many nodes can have
// told these facts to a node that reports c.
func (f Facts) possible(c LastRound, most int) bool {
	if f.Generation == "" {
		return true // there are none
	}
	last := -1
	for _, rank := range f.FinishedHosts {
		if rank <= last || rank >= f.World {
			return false
		}
		last = rank
	}
	switch {
	case f.Round > maxRound+maxFloor, f.World < 0, f.World > most, f.Round == 0 && f.World > 0:
		return false
	case f.HostRank < -1, f.HostRank >= f.World, len(f.FinishedHosts) > maxFinishedHosts:
		return false
	case f.Finished && f.Round == 0, len(f.FinishedHosts) > 0 && !f.Finished:
		return false
	case f.Closed.Kind < 0, f.Closed.Kind > ClosedRequeue:
		return false
	case !f.Directives.possible(f.Round, most), f.Domains != "" && ranksOf(f.Domains) != f.World:
		return false
	}
	return c.Round != f.Round || c.Generation != f.Origin || c.World == f.World
}

// Succession is the beginning of a control plane that continues a run whose host's process has
// ended. The zero value is that of a run's first one.
type Succession struct {
	Term  uint64        // 1, or 0, for the first control plane, and one more for each that follows
	From  string        // id of the node whose process hosted the one before
	Facts Facts         // what that one told this process last
	Grace time.Duration // how long members may take to come, if that is longer than reconnect_grace, leastGrace and gracePerNode
	Left  bool          // that node leaves and has handed the control plane on; else its process is dead, or silent

	// Silent tells that the others have elected this one while that node was silent: it may come
	// back, so that its place in the round waits for it as any other's.
	Silent bool

	// Alone tells that no majority has elected this one, and none can be asked: should another control plane
	// of the run live, of whose rounds it does not know, none of its own has the number of one of those.
	Alone bool
}

// succeeds reports whether the machine continues the run of one that has ended.
func (s *Succession) succeeds() bool { return s.Term > 1 }

// canBeSucceeded reports whether another process may continue this control plane's run:
// one that is alone, or stores what it knows, has no successor and tells no facts of
// directives, however many nodes are drained.
func (s *Succession) canBeSucceeded() bool { return s.Term > 0 }

// lastRound is a report of the round that the facts are about, by none of its members.
func (f Facts) lastRound() LastRound {
	return LastRound{Generation: f.Origin, Round: f.Round, Rank: -1, World: f.World, HostRank: -1}
}

// LastRound is what a node that (re)connects believes about itself. A control plane
// that was restarted rebuilds the round from the reports of those who return.
type LastRound struct {
	Generation string // of the run that the node knows; "" for a first hello
	Round      uint64 // highest round the node was a member of; 0: none
	Rank       int
	World      int
	HostRank   int  // rank of the node that hosted the control plane in that round; -1: none did
	Finished   bool // the node's workers all succeeded in that round
	// Facts are what its control plane told the node last.
	Facts Facts `json:",omitzero"`
	// Reports are what the node has reported of directives in that round, the last ones.
	Reports []DirectiveReport `json:",omitempty"`
	// Store is HOST:PORT of that round's store, as its rank 0 announced it; "": not known.
	Store string `json:",omitempty"`
}

// Bounds of the rounds that nodes report. A round of an earlier control plane may be
// adopted up to maxRound, so that numbers never overflow; any other report raises the
// next number to maxFloor at most, so that rounds above it remain that can be adopted. Facts are
// of rounds that follow an adopted one, of which there are fewer than maxFloor.
const (
	maxRound = 1 << 63
	maxFloor = 1 << 48
)

// valid bounds what a report may make the control plane allocate.
func (l LastRound) valid(most int) bool {
	return l.Round <= maxRound && l.World >= 1 && l.World <= most && l.Rank >= 0 && l.Rank < l.World && l.HostRank < l.World
}

// DirectiveFacts are the directives as a successor has to know them.
type DirectiveFacts struct {
	Seq      uint64         // of the last change: higher is newer. 0: there is none
	Target   int            // of the last scale; 0: there was none
	Standing []StandingFact // at most one; several of a release before
	Ended    []string       // ids of the last ones that do not stand any more
	Drained  []DrainedFact

	EndedRound uint64 `json:",omitzero"` // the last one that a drain or a scale has ended; 0: there is none
}

// StandingFact is a directive that stands.
type StandingFact struct {
	Direct
	Round uint64 // in which its step was agreed, if that is the last one; else 0
	Step  int64  // agreed in it
}

// DrainedFact is a node that is not admitted. How much of its time has passed is not known
// to a successor: it begins again.
type DrainedFact struct {
	Node   string // its id, or its host's name, which stands for all nodes there
	By     string
	Reason string
	For    time.Duration // from when it was drained; 0: until Undrain
	Cause  DrainCause    `json:",omitzero"`

	Cordoned bool `json:",omitzero"` // see Cordon
}

// Bounds of what facts say of directives.
const (
	maxDirectiveFacts = 16 << 10 // bytes, of the standing directive and the drained nodes
	maxEndedFacts     = 16
)

// manyStanding is how many directives could stand at a time before state version 5.
const manyStanding = 64

func (df DirectiveFacts) equal(g DirectiveFacts) bool { return df.Seq == g.Seq }

// possible reports whether a run of at most so many nodes can have directives like that.
func (df DirectiveFacts) possible(round uint64, most int) bool {
	if len(df.Standing) > manyStanding || len(df.Ended) > maxEndedFacts || df.Target < 0 || df.Target > most || df.Seq > maxRound || df.EndedRound > round {
		return false
	}
	ids := map[string]bool{}
	for _, d := range df.Standing {
		if !d.sound() || ids[d.ID] || d.Round != 0 && d.Round != round || d.Step < -1 || d.Within > MaxTimeout || d.For > MaxTimeout {
			return false
		}
		ids[d.ID] = true
	}
	return !slices.ContainsFunc(df.Drained, func(d DrainedFact) bool { return d.For < 0 || d.For > MaxTimeout })
}
