package conformance

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	r "rallypoint/core/rendezvous"
	"rallypoint/internal/printable"
)

// past is the knowledge of a run that survives its control planes.
type past struct {
	host        string            // node in whose process the last control plane ran; "": not known
	term        uint64            // of that one
	tellers     map[string]string // generation -> node in whose process its control plane ran, which told its facts
	generations map[string]bool
	told        map[string]bool // facts that a control plane told
	toldChange  uint64          // the last change of directives among them
	steps       map[agreed]int64
}

func newPast() past {
	return past{tellers: map[string]string{}, generations: map[string]bool{}, told: map[string]bool{}, steps: map[agreed]int64{}}
}

// TookOver tells that the run continues, or begins, with a control plane in the process of a node,
// which knows of the past only s and the nodes' reports. The checker still knows the rounds
// before: the guarantees hold across them.
func (c *Checker) TookOver(host string, s r.Succession) {
	teller, told := c.tellers[s.Facts.Generation]
	switch known := c.term > 0; {
	case known && s.Term <= c.term:
		c.violated(1, "node %s hosts in term %d, after term %d of node %s", host, s.Term, c.term, c.host)
	case told && s.From != teller && s.From != "":
		c.violated(1, "node %s takes over from %q with what %q has told", host, s.From, teller)
	case known && !told && s.From != c.host && s.From != "" && !c.hasTold(s.From):
		c.violated(1, "node %s takes over from %q in term %d, the host before is %q", host, s.From, s.Term, c.host)
	case told && s.Silent && s.Term == c.term+1 && c.tellsFacts && teller != c.host:
		c.violated(1, "node %s was elected in term %d with what %q has told, and not %q, which hosted last", host, s.Term, teller, c.host)
	case known && s.Facts.Generation != "" && c.generations[s.Facts.Generation] && !c.told[fmt.Sprint(s.Facts)] && !c.later(s.Facts):
		c.violated(9, "node %s takes over with facts that no control plane told: %+v", host, s.Facts)
	}
	c.account, c.twin = newAccount(), nil
	c.succession = s
	c.host, c.term = host, max(s.Term, 1)
}

// hasTold reports whether a control plane in the node's process has told nodes anything.
func (c *Checker) hasTold(node string) bool {
	return slices.Contains(slices.Collect(maps.Values(c.tellers)), node)
}

// otherGroup forgets who has hosted: the next control plane is of another group, whose first ones
// have left no history.
func (c *Checker) otherGroup() { c.host, c.term, c.toldChange = "", 0, 0 }

// founded says that a node has founded its own group, which knows nothing of the past.
func (c *Checker) founded(host string, s r.Succession) {
	c.Restarted()
	c.succession = s
	c.host, c.term = host, 1
}

// later reports whether facts contain more than is known of the last control plane. It may have
// been killed before it recorded them, or have become silent after telling the voters and before
// telling the nodes.
func (c *Checker) later(f r.Facts) bool {
	return f.Round > c.round || f.Round == c.round && (f.HostRank != c.hostRank || f.Finished && !c.finishing() ||
		len(f.FinishedHosts) > len(c.finishedHosts) || closedKind(f.Closed.Kind) > c.closing.kind || f.Directives.Seq > c.toldChange)
}

func (c *Checker) succeeds() bool { return c.succession.Term > 1 }

// begin records what a control plane knows before its first node says hello: as a successor, the
// round that the dead host had reported to its process.
func (c *Checker) begin() {
	if c.begun || !c.fresh || !c.succeeds() {
		return
	}
	c.begun = true
	f := c.succession.Facts
	if f.Generation == "" || !c.possible(f, r.LastRound{}) {
		return
	}
	if f.World > 0 {
		c.rebuild(f.Origin, f.Round, f.World)
	}
	c.raise(f.Round)
	c.learn(f)
}

// possible reports whether facts can be true for a run of this size, and fit the round of the
// node that brings them.
func (c *Checker) possible(f r.Facts, last r.LastRound) bool {
	if f.Generation == "" {
		return true // there are none
	}
	switch {
	case f.World < 0 || f.World > c.policy.Max || f.Round > mostAdopted+mostRaised:
	case f.Round == 0 && (f.World > 0 || f.Finished):
	case f.HostRank >= f.World || f.HostRank < -1:
	case len(f.FinishedHosts) > 64 || len(f.FinishedHosts) > 0 && !f.Finished:
	case !slices.IsSorted(f.FinishedHosts) || len(slices.Compact(slices.Clone(f.FinishedHosts))) < len(f.FinishedHosts):
	case slices.ContainsFunc(f.FinishedHosts, func(rank int) bool { return rank < 0 || rank >= f.World }):
	case f.Closed.Kind < 0 || int(f.Closed.Kind) > int(requeued):
	case !c.possibleDirectives(f), f.Domains != "" && toldDomains(f.Domains, f.World) == nil:
	case f.Round == last.Round && f.Origin == last.Generation && f.World != last.World:
	default:
		return true
	}
	return false
}

// believed reports whether a successor acts on facts: those of the host that it succeeds,
// or of an earlier one whose round continues.
func (c *Checker) believed(f r.Facts) bool {
	if !c.succeeds() || !c.fresh || f.Generation == "" {
		return false
	}
	return f.Generation == c.succession.Facts.Generation || f.Round > 0 && f.Round == c.round && f.Origin == c.origin
}

// learn records the consequences of facts that are believed: dead nodes, finished nodes, a closed
// run.
func (c *Checker) learn(f r.Facts) {
	if f.Round == c.round && f.Origin == c.origin && f.World == len(c.participants) {
		for _, rank := range f.FinishedHosts {
			t := c.participants[rank]
			if t.state == unknown || t.state == lost && c.nodeOf(t.node) == nil {
				t.state = finished
			}
			if t.state == finished { // else it came back, and has not finished there
				c.hostFinished(rank)
			}
		}
		if f.HostRank >= 0 && f.Generation == c.succession.Facts.Generation {
			t := c.participants[f.HostRank]
			from := c.succession.From
			live := c.nodeOf(from)
			newcomer := live != nil && (live.join != nil || c.succession.Silent)
			if t.node == "" && from != "" && printable.Text(from) == from && c.byNode[from] == nil && !newcomer {
				t.node, c.byNode[from] = from, t
			}
			if t.state == unknown && !c.succession.Silent {
				t.state = lost
			}
		}
		c.finishReported = c.finishReported || f.Finished
		c.learnDomains(f.Domains)
	}
	if f.Closed.Kind != 0 {
		c.close(closing{closedKind(f.Closed.Kind), r.MachineOf(printable.Text(f.Closed.By)), printable.Text(f.Closed.Reason), f.Closed.Commands})
	}
	c.learnDirectives(f.Directives)
}

func (c *Checker) hostFinished(rank int) {
	if i, known := slices.BinarySearch(c.finishedHosts, rank); !known && len(c.finishedHosts) < 64 {
		c.finishedHosts = slices.Insert(slices.Clone(c.finishedHosts), i, rank)
	}
}

// rebuild makes a round of an earlier control plane the present one; its members are
// unknown.
func (c *Checker) rebuild(origin string, round uint64, world int) {
	for _, other := range c.nodes() {
		if other.join == nil && c.participantOf(other) != nil {
			other.stale = true
		}
	}
	c.forgetSteps()
	c.origin, c.round, c.overtaken, c.stop = origin, round, false, r.RoundStop{}
	c.hostRank, c.finishedHosts, c.finishReported = -1, nil, false
	c.domains = ""
	c.participants, c.byNode, c.sums = nil, map[string]*participant{}, map[string]*sum{}
	for rank := range world {
		c.participants = append(c.participants, &participant{rank: rank, state: unknown})
	}
}

func (c *Checker) hosts(s *session) {
	t := c.participantOf(s)
	if t == nil {
		return
	}
	switch {
	case s.inHost:
		c.hostRank = t.rank
	case c.hostRank == t.rank:
		c.hostRank = -1
	}
	if s.inHost && t.state == finished {
		c.hostFinished(t.rank)
	}
}

// finishing reports whether a member of the last round has finished, known or not.
func (a *account) finishing() bool { return a.count(finished) > 0 || a.finishReported }

func (c *Checker) checkFacts(s *session) {
	f := s.update.Facts
	if f.Generation == "" && !c.tellsFacts {
		return // an earlier release
	}
	want := r.Facts{
		Generation: c.generation, Origin: c.origin, Round: c.round, World: len(c.participants), HostRank: c.hostRank,
		Finished: c.finishing(), Domains: c.domains,
	}
	for _, rank := range c.finishedHosts {
		if rank < len(c.participants) && c.participants[rank].state == finished {
			want.FinishedHosts = append(want.FinishedHosts, rank)
		}
	}
	want.Generation = cmp.Or(want.Generation, f.Generation)
	c.checkDirectiveFacts(s)
	got := f
	got.Closed, got.Directives = r.Closing{}, r.DirectiveFacts{}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		c.violated(7, "node %s was told %+v of the run, it is %+v", s.node, got, want)
	}
	if told := f.Closed; closedKind(told.Kind) != c.closing.kind || !strings.Contains(told.By, printable.Text(c.closing.by)) || !strings.Contains(told.Reason, printable.Text(c.closing.reason)) || told.Commands != c.closing.commands {
		c.violated(9, "node %s was told that the run was closed in the way %+v, it was %+v", s.node, told, c.closing)
	}
}

// returnTime is how long a control plane waits at most that knows of no round.
const returnTime = 2 * time.Second

// leastGrace is how long a successor waits at least for members, gracePerNode the same for
// each of them, up to a lease.
const (
	leastGrace   = 2 * time.Second
	gracePerNode = 2 * time.Millisecond
)

// checkHold checks that a control plane waits for the members of a round that it did not
// complete, for as long as it should and no longer than one is missing.
func (c *Checker) checkHold() {
	hold := c.timers[r.Timer{Kind: r.TimerHold}]
	missing := c.count(unknown)
	want := c.policy.LeaseTimeout
	if c.succeeds() {
		want = max(c.succession.Grace, c.policy.ReconnectGrace, leastGrace, min(time.Duration(len(c.participants))*gracePerNode, c.policy.LeaseTimeout))
	}
	switch {
	case missing > 0 && !hold.running:
		c.violated(6, "%d members of round %d are missing and nothing ends the wait for them", missing, c.round)
	case missing > 0 && hold.after != want:
		c.violated(6, "members of round %d are waited for for %v, want %v", c.round, hold.after, want)
	case missing == 0 && hold.running && (len(c.participants) > 0 || c.succeeds() || hold.after > returnTime):
		c.violated(5, "a control plane of %d known members waits for %v, though none is missing", len(c.participants), hold.after)
	}
}
