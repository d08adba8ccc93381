package rendezvous

import (
	"fmt"
	"slices"
	"strings"
)

// round is the last completed round: its name, its members, and what has become of them.
type round struct {
	out   *output
	names *names
	run   *run

	origin string // generation in which it was completed
	number uint64 // 0: there is none yet
	floor  uint64 // highest round reported: the next one is above it
	store  string // HOST:PORT of its store; "": not known
	fresh  bool   // no round was completed here yet
	stored bool   // it was completed before the last Recovered

	participants []*participant // by rank
	byNode       map[string]*participant
	tally        [participantStates]int // participants by state
	next         headcount              // live members, and the newcomers that a regroup now would take in
	domains      string                 // of its segments, as facts tell them; "": they do not
	agreement    agreement              // what the running ones have said of the directive that stands
	hostRank     int                    // of the member whose process hosts the control plane; -1: it has none

	overtaken      string     // why it is over although no member is lost; "": it is not
	stop           *RoundStop // announced, but for Lost; nil: none is
	finishedHosts  []int      // see Facts; it is replaced, never changed
	finishReported bool       // a member has finished, as an earlier control plane has told

	absent []string // what texts call the lost members of earlier rounds that have not come back; at most maxAbsent, not stored

	seen      map[string]struct{} // ids of all nodes that ever were in a round
	seenBytes int64               // about what these take
}

func newRound(out *output, names *names, run *run) *round {
	return &round{out: out, names: names, run: run, fresh: true, hostRank: -1, byNode: map[string]*participant{}, seen: map[string]struct{}{}}
}

// replace has another round take the place of this one, with so many members, whose
// participants the caller fills in.
func (r *round) replace(size int) {
	r.overtaken, r.stop = "", nil
	r.hostRank, r.finishReported, r.finishedHosts = -1, false, nil
	for _, s := range r.participants {
		if s != nil && s.state == participantLost && s.node != "" {
			r.absent = append(r.absent, r.names.of(s.node))
		}
	}
	r.absent = r.absent[max(0, len(r.absent)-maxAbsent):]
	for id := range r.byNode {
		r.names.drop(id)
	}
	r.participants, r.byNode, r.tally = make([]*participant, size), make(map[string]*participant, size), [participantStates]int{}
	r.next, r.domains = headcount{segment: r.next.segment}, ""
}

// Limits of the names of absent nodes: known, and shown.
const (
	maxAbsent      = 64
	maxAbsentShown = 8
)

// recount counts the live members in segments of another size. There is no newcomer.
func (r *round) recount(segment int) {
	r.next = headcount{segment: segment}
	for _, s := range r.participants {
		if s.live() {
			r.next.add(s.domain, 1)
		}
	}
}

func (r *round) seat(rank int, n *node) {
	s := &participant{rank: rank, node: n.id, label: n.label, domain: n.domain, command: n.command, host: n.inHost, state: participantRunning}
	r.participants[rank] = s
	r.tie(s)
	r.tally[participantRunning]++
	r.next.add(s.domain, 1)
	r.see(n.id)
	r.absent = slices.DeleteFunc(r.absent, func(name string) bool { return name == n.id || name == r.names.of(n.id) })
	n.member = true
	if n.inHost {
		r.hostRank = rank
	}
}

type participantState int

const (
	participantRunning  participantState = iota // its workers run
	participantUnknown                          // of a round of an earlier control plane; not heard of yet
	participantRejoined                         // it waits for the next round
	participantFinished                         // its workers all succeeded
	participantLost                             // it died, left or gave up
	participantStates
)

// participant is one member of the last completed round.
type participant struct {
	rank    int
	node    string // id; "" while unknown
	label   string // for display
	domain  string // of the node's topology; "": none
	command Command
	host    bool // its process hosts the control plane
	state   participantState
	cause   string // why it was lost
}

// live reports whether the round still counts on the member.
func (p *participant) live() bool {
	return p.state != participantFinished && p.state != participantLost
}

// ofMember is what texts call a member of the last round.
func (ns *names) ofMember(s *participant) string {
	if s.node == "" {
		return fmt.Sprintf("the node of rank %d", s.rank)
	}
	return ns.of(s.node)
}

func (r *round) tie(s *participant) {
	r.byNode[s.node] = s
	r.names.add(s.node)
}

func (r *round) untie(s *participant) {
	if s.node != "" {
		delete(r.byNode, s.node)
		r.names.drop(s.node)
	}
}

// participantOf returns the node's place in the last round, nil if it has none or lost
// it to time.
func (r *round) participantOf(n *node) *participant {
	s := r.byNode[n.id]
	if s == nil || s.state == participantLost || n.ended {
		return nil
	}
	return s
}

func (r *round) set(s *participant, state participantState, cause string) {
	if s.state == participantFinished && state != s.state {
		r.dropFinishedHost(s.rank)
	}
	if was, is := s.state == participantRunning, state == participantRunning; was && !is {
		r.agreement.count(s.rank, -1)
	} else if is && !was {
		r.agreement.count(s.rank, 1)
	}
	r.tally[s.state]--
	was := s.live()
	s.state, s.cause = state, cause
	r.tally[s.state]++
	if is := s.live(); was && !is {
		r.next.add(s.domain, -1)
	} else if is && !was {
		r.next.add(s.domain, 1)
	}
}

func (r *round) setDomain(s *participant, domain string) {
	if s.live() {
		r.next.add(s.domain, -1)
		r.next.add(domain, 1)
	}
	s.domain = domain
}

// domainsOf tells the domains of a round's members by rank: one line for those that follow each
// other in one domain, their number and its name; "" if that is too long.
func domainsOf(participants []*participant) string {
	var text strings.Builder
	for i := 0; i < len(participants); {
		domain, from := participants[i].domain, i
		for i < len(participants) && participants[i].domain == domain {
			i++
		}
		fmt.Fprintf(&text, "%d %s\n", i-from, domain)
		if text.Len() > maxDomains {
			return ""
		}
	}
	return text.String()
}

// learnDomains takes the domains of those members whose nodes have not said theirs, from what
// an earlier control plane has told of this round.
func (r *round) learnDomains(text string) {
	runs, ranks := parseDomains(text)
	if text == "" || ranks != len(r.participants) {
		return
	}
	r.domains = text
	rest := r.participants
	for _, run := range runs {
		for _, s := range rest[:run.ranks] {
			if s.domain == "" {
				r.setDomain(s, run.domain)
			}
		}
		rest = rest[run.ranks:]
	}
}

// awaited is the number of live members that have not rejoined.
func (r *round) awaited() int { return r.tally[participantRunning] + r.tally[participantUnknown] }

// live is the number of members that the round still counts on.
func (r *round) live() int { return r.awaited() + r.tally[participantRejoined] }

// inState lists the members in a state by name, with the cause if there is one.
func (r *round) inState(state participantState) string {
	var names []string
	for _, s := range r.participants {
		if len(names) == min(r.tally[state], maxNames) {
			break // each member's hello asks: few should look at all of them
		}
		if s.state != state {
			continue
		}
		name := r.names.ofMember(s)
		if s.cause != "" {
			name += " (" + strings.TrimPrefix(s.cause, "lost: ") + ")"
		}
		names = append(names, name)
	}
	return nameSome(names, r.tally[state])
}

// highest is the highest round that was completed or reported: the next one is above it.
func (r *round) highest() uint64 { return max(r.number, r.floor) }

// isNews tells whether a report is of a later round than any that this control plane
// has completed, told or heard of.
func (r *round) isNews(c LastRound) bool { return c.Round > r.highest() && c.Round <= maxFloor }

func (r *round) raiseFloor(round uint64) {
	if round <= maxFloor {
		r.floor = max(r.floor, round)
	}
}

// disowned reports whether the round that is known here is not the members' last one.
func (r *round) disowned() bool { return r.stored && r.overtaken != "" }

// overtake makes the members of the round regroup although none of them is lost.
func (r *round) overtake(why string) {
	if r.overtaken == "" && len(r.participants) > 0 {
		r.overtaken = why
		r.out.note("round %d is over: %s", r.number, why)
	}
}

// finishing reports whether a member of the last round has finished, so that no node is
// admitted any more (guarantee 8).
func (r *round) finishing() bool { return r.tally[participantFinished] > 0 || r.finishReported }

// finishedNames names the members that have finished, as far as they are known.
func (r *round) finishedNames() string {
	if r.tally[participantFinished] == 0 {
		return fmt.Sprintf("a member of round %d whose name died with the control plane before", r.number)
	}
	return r.inState(participantFinished)
}

// noteHost keeps which member's process hosts the control plane, and whether it has finished.
func (r *round) noteHost(n *node) {
	s := r.participantOf(n)
	if s == nil {
		return
	}
	s.host = n.inHost
	switch {
	case n.inHost:
		r.hostRank = s.rank
	case r.hostRank == s.rank:
		r.hostRank = -1
	}
	if n.inHost && s.state == participantFinished {
		r.addFinishedHost(s.rank)
	}
}

func (r *round) addFinishedHost(rank int) {
	i, known := slices.BinarySearch(r.finishedHosts, rank)
	if !known && len(r.finishedHosts) < maxFinishedHosts {
		r.finishedHosts = slices.Insert(slices.Clone(r.finishedHosts), i, rank)
	}
}

// dropFinishedHost takes back that a host has finished: its node has failed after that.
func (r *round) dropFinishedHost(rank int) {
	if i, known := slices.BinarySearch(r.finishedHosts, rank); known {
		r.finishedHosts = slices.Delete(slices.Clone(r.finishedHosts), i, i+1)
	}
}

// stopReason says who stops the round and why.
func (r *round) stopReason() string {
	verb := "failed"
	if r.stop.Leaving {
		verb = "is leaving"
	}
	return fmt.Sprintf("node %s %s: %s", r.names.ofMember(r.participants[r.stop.Rank]), verb, r.stop.Reason)
}

// lossInStop reports whether a stop is announced in a round that has also lost a member.
func (r *round) lossInStop() bool {
	return r.stop != nil && (r.tally[participantLost] > 0 || r.overtaken != "")
}

// stopFor is the announced stop in a node's view: members whose workers may run.
func (r *round) stopFor(n *node) RoundStop {
	s := r.participantOf(n)
	if r.stop == nil || s == nil || s.state != participantRunning {
		return RoundStop{}
	}
	return RoundStop{Round: r.number, Rank: r.stop.Rank, Leaving: r.stop.Leaving, Reason: r.stop.Reason, Lost: r.lossInStop()}
}

// missingOf names some of the members that are not in a set and belong into it.
func (r *round) missingOf(set *ranks) []string {
	names := []string{}
	for _, s := range r.participants {
		if (s.state == participantRunning || s.state == participantUnknown) && !set.contains(s.rank) {
			if names = append(names, r.names.ofMember(s)); len(names) == maxNames {
				break
			}
		}
	}
	return names
}

func (r *round) namesWithout(set *ranks) string {
	return nameSome(r.missingOf(set), r.awaited()-set.running)
}

// all reports whether all running members are in a set, and each member is accounted for.
func (r *round) all(set *ranks) bool {
	n := r.tally[participantRunning]
	return n > 0 && set.running == n && r.tally[participantUnknown] == 0
}

// allSaved reports whether the directive is agreed and all members have saved. Of a round that has
// lost a member, or regroups, not all can have: the next one agrees again.
func (r *round) allSaved() bool {
	return r.agreement.phase == phaseAgreed && r.tally[participantLost]+r.tally[participantRejoined] == 0 && r.all(&r.agreement.saved)
}

// priority orders members by rank before all other nodes.
func (r *round) priority(n *node) int {
	if s := r.participantOf(n); s != nil {
		return s.rank
	}
	return len(r.participants)
}

// see remembers the id of a node that was in a round.
func (r *round) see(id string) {
	if _, known := r.seen[id]; !known {
		r.seen[id] = struct{}{}
		r.seenBytes += seenCost + int64(len(id))
	}
}

func (r *round) forgetSeen() {
	clear(r.seen)
	r.seenBytes = 0
}

// cost is about what the names of members and of earlier ones take.
func (r *round) cost() int64 { return participantCost*int64(len(r.participants)) + r.seenBytes }
