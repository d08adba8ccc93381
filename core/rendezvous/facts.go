package rendezvous

import (
	"slices"
	"time"

	"rallypoint/internal/pack"
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
	Grace time.Duration // how long members may take to come; 0: reconnect_grace, and at least leastGrace and gracePerNode
	Left  bool          // that node leaves and has handed the control plane on; else its process is dead, or silent

	// Silent tells that the others have elected this one while that node was silent: it may come
	// back, so that its place in the round waits for it as any other's.
	Silent bool
}

// lastRound is a report of the round that the facts are about, by none of its members.
func (f Facts) lastRound() LastRound {
	return LastRound{Generation: f.Origin, Round: f.Round, Rank: -1, World: f.World, HostRank: -1}
}

// EncodeFacts returns facts as the voters for a next host keep them.
func EncodeFacts(f Facts) []byte {
	return pack.Append(nil, func(p *pack.Packer) { packFacts(p, f) })
}

// DecodeFacts reads what EncodeFacts wrote.
func DecodeFacts(b []byte) (Facts, error) {
	if len(b) == 0 {
		return Facts{}, nil
	}
	u := pack.NewUnpacker(b)
	defer u.Release()
	f := unpackFacts(u)
	u.End()
	return f, u.Err()
}

// packFacts writes facts.
func packFacts(p *pack.Packer, f Facts) {
	if f.Generation == "" {
		p.None()
		return
	}
	p.List(10)
	packName(p, f.Generation)
	packName(p, f.Origin)
	p.Uint(f.Round)
	p.Int(f.World)
	p.Int(f.HostRank)
	p.Bool(f.Finished)
	packRanks(p, f.FinishedHosts)
	c := f.Closed.cut()
	p.List(4)
	p.Int(int(c.Kind))
	p.Text(c.By)
	p.Text(c.Reason)
	p.Time(c.At)
	packDirectiveFacts(p, f.Directives)
	p.Text(f.Domains)
}

// unpackFacts reads what packFacts wrote.
func unpackFacts(u *pack.Unpacker) (f Facts) {
	if u.Open() > 0 {
		f = Facts{
			Generation: u.Text(MaxNameLen), Origin: u.Text(MaxNameLen), Round: u.Uint(), World: u.Int(),
			HostRank: u.IntOr(-1), Finished: u.Bool(), FinishedHosts: unpackRanks(u),
		}
		u.Open()
		f.Closed = Closing{Kind: ClosedKind(u.Int()), By: u.Text(maxClosingBy), Reason: u.Text(maxClosingReason), At: u.Time()}
		u.Close()
		f.Directives = unpackDirectiveFacts(u)
		f.Domains = u.Text(maxDomains)
	}
	u.Close()
	return f
}

func packRanks(p *pack.Packer, ranks []int) {
	p.Fit(len(ranks), maxFinishedHosts, "hosts that have finished")
	p.List(len(ranks))
	for _, rank := range ranks {
		p.Int(rank)
	}
}

func unpackRanks(u *pack.Unpacker) []int {
	return pack.ListOf(u, maxFinishedHosts, "hosts that have finished", u.Int)
}

// LastRound is what a node that (re)connects believes about itself. A control plane
// that was restarted rebuilds the round from the claims of those who return.
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
	Node   string
	By     string
	Reason string
	For    time.Duration
	Cause  DrainCause `json:",omitzero"`

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
	for _, d := range df.Drained {
		if d.For < 0 || d.For > MaxTimeout {
			return false
		}
	}
	return true
}

func packDirectiveFacts(p *pack.Packer, f DirectiveFacts) {
	if f.Seq == 0 {
		p.None()
		return
	}
	p.List(6)
	p.Uint(f.Seq)
	p.Int(f.Target)
	p.Fit(len(f.Standing), manyStanding, "directives that stand")
	p.List(len(f.Standing))
	for _, d := range f.Standing {
		p.List(11)
		packDirectFields(p, d.Direct)
		p.Uint(d.Round)
		p.Int64(d.Step)
	}
	p.Fit(len(f.Ended), maxEndedFacts, "directives that have ended")
	packNames(p, f.Ended)
	p.Fit(len(f.Drained), maxDirectiveFacts, "drained nodes")
	p.List(len(f.Drained))
	for _, d := range f.Drained {
		p.List(6)
		packName(p, d.Node)
		p.Cut(d.By, MaxNameLen)
		p.Cut(d.Reason, MaxNameLen)
		p.Duration(d.For)
		p.Int(int(d.Cause))
		p.Bool(d.Cordoned)
	}
	p.Uint(f.EndedRound)
}

func unpackDirectiveFacts(u *pack.Unpacker) (f DirectiveFacts) {
	if u.Open() > 0 {
		f.Seq, f.Target = u.Uint(), u.Int()
		f.Standing = pack.Lists(u, manyStanding, "directives that stand", func() StandingFact {
			return StandingFact{Direct: unpackDirect(u), Round: u.Uint(), Step: u.Int64()}
		})
		f.Ended = u.Texts(maxEndedFacts, MaxNameLen)
		f.Drained = pack.Lists(u, maxDirectiveFacts, "drained nodes", func() DrainedFact {
			return DrainedFact{Node: u.Text(MaxNameLen), By: u.Text(MaxNameLen), Reason: u.Text(MaxNameLen), For: u.Duration(), Cause: DrainCause(u.Int()), Cordoned: u.Bool()}
		})
		f.EndedRound = u.Uint()
	}
	u.Close()
	return f
}

// packDirect writes what a directive says, as one list.
func packDirect(p *pack.Packer, d Direct) {
	p.List(9)
	packDirectFields(p, d)
}

func packDirectFields(p *pack.Packer, d Direct) {
	packName(p, d.ID)
	p.Int(int(d.Kind))
	p.Fit(len(d.Nodes), MaxDirectiveNodes, "nodes of a directive")
	packNames(p, d.Nodes)
	p.Duration(d.Within)
	p.Duration(d.For)
	p.Cut(d.By, MaxNameLen)
	p.Cut(d.Reason, MaxNameLen)
	p.Time(d.At)
	p.Int(d.Target)
}

// unpackDirect reads the values of packDirect from a list that is open.
func unpackDirect(u *pack.Unpacker) Direct {
	return Direct{
		ID: u.Text(MaxNameLen), Kind: DirectiveKind(u.Int()), Nodes: u.Texts(MaxDirectiveNodes, MaxNameLen),
		Within: u.Duration(), For: u.Duration(), By: u.Text(MaxNameLen), Reason: u.Text(MaxNameLen), At: u.Time(), Target: u.Int(),
	}
}
