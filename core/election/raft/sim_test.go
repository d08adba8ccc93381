package raft

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/cryptotest"
	"time"

	"go.etcd.io/raft/v3/raftpb"
)

// The simulator runs one group of processes in virtual time. Its network drops, delays,
// duplicates and reorders messages, and is partitioned. Processes pause, are killed and join.
// Hosts propose values and change the voters as the control plane does. One seed is one history.
//
// It holds for each history:
//
//  1. In each term one process hosts at most, and so one at most confirms.
//  2. No two hosts confirm the same number with different values.
//  3. Each host of a later term knows all that was confirmed before it, unless a majority of a set of
//     voters has been killed that is in force, or was during the lease before.
//  4. A host that has a majority has one alone. If a host was killed, ended its connections or
//     asked another to host during the lease before, that of an earlier term may have one for a
//     quarter of a lease after the election of the next: the voters did not wait.
//  5. When all faults end, and a majority of the last voters lives, one host confirms within
//     three leases.
//  6. No two values that were confirmed are of rounds with one number, also where a process has taken over
//     after all voters have died, which was told of the last one.

// What happens in a history.
type event struct {
	at   time.Duration
	seq  int // of two at one time the first made is the first
	do   what
	to   *proc // of whom; or of the link
	from *proc
	m    Message
}

type what uint8

const (
	isTick        what = iota
	isMessage          // m reaches to
	isHeartbeat        // from, which does not vote, is heard by to
	isEnd              // from's side has ended its connection to to
	isProof            // to has seen that from is dead, or a firewall has said so
	isRequest          // from, which hosts, asks to to host
	isEndTransfer      // to waits no longer for the one that it has asked to host, and ends
	isWake
	isHeal  // the link between from and to
	isCut   // to is cut off
	isDeaf  // nothing reaches to
	isPause // to pauses
	isFault
	isKills
	isJoin
	isProposal
)

type proc struct {
	id           Voter
	index        int
	node         *Node
	killed       time.Duration // 0: it lives
	paused       bool
	queue        []event                 // what has reached it while it was paused
	host         Voter                   // the last that it knew
	heard        map[Voter]time.Duration // as the host: when each process was last heard
	proven       map[Voter]bool          // those whose death it has seen, or that have said that they vote no more
	transferring bool                    // it has handed on: once it hosts no more, it votes no more
	said         []said                  // what it has proposed in its term
	term         uint64                  // in which it hosts, as far as is noted
	since        time.Duration           // when it was elected
	overlap      time.Duration           // for so long another may have a majority beside it
	up           uint64                  // what it has confirmed
	value        int                     // the last of it
}

type said struct {
	number uint64
	value  int
}

// set are voters that were in force.
type set struct {
	voters Voters
	until  time.Duration
}

type link struct {
	cut  bool
	hold bool // what is sent meanwhile arrives when the link heals
	held []event
}

type sim struct {
	seed    uint64
	rng     *rand.Rand
	now     time.Duration
	seq     int
	events  []*event // a heap
	procs   []*proc
	links   [][]link // from, to
	drop    float64
	twice   float64
	slow    float64
	loose   time.Duration // when voters were last told not to wait
	mark    int           // the first value after all faults
	silence time.Duration // of isCut and isPause
	members int           // that are kept up by those that join

	parent []int // of each value
	depth  []int
	round  []uint64         // the number of its round
	rounds map[uint64]int   // the value that was confirmed with each
	tip    int              // the last value that was confirmed
	value  map[uint64]int   // what was confirmed with each number
	hosts  map[uint64]*proc // of each term
	alone  bool             // the next value is the first since a process has taken over
	told   uint64           // the highest round that nodes were told
	last   *proc            // the host of the highest
	term   uint64           // the highest
	sets   []set
	pend   []event // proofs that a cut holds up

	trace  *strings.Builder
	failed string

	clusters                             int
	elections, confirms, changes, losses int
}

const simLease = 10 * time.Second

func (s *sim) say(format string, args ...any) {
	if s.trace != nil {
		fmt.Fprintf(s.trace, "%8.3f ", s.now.Seconds()/simLease.Seconds())
		fmt.Fprintf(s.trace, format, args...)
		s.trace.WriteByte('\n')
	}
}

func (s *sim) fail(format string, args ...any) {
	if s.failed == "" {
		s.failed = fmt.Sprintf(format, args...)
		s.say("BROKEN: %s", s.failed)
	}
}

func (s *sim) chance(p float64) bool { return s.rng.Float64() < p }

// some draws a time between two parts of a lease.
func (s *sim) some(least, most float64) time.Duration {
	return time.Duration((least + (most-least)*s.rng.Float64()) * float64(simLease))
}

func (s *sim) push(e event) {
	s.seq++
	e.seq = s.seq
	h := append(s.events, &e)
	i := len(h) - 1
	for i > 0 && before(h[i], h[(i-1)/2]) {
		h[i], h[(i-1)/2] = h[(i-1)/2], h[i]
		i = (i - 1) / 2
	}
	s.events = h
}

func before(a, b *event) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

func (s *sim) pop() event {
	h := s.events
	e := h[0]
	last := len(h) - 1
	h[0] = h[last]
	h = h[:last]
	for i := 0; ; {
		c := 2*i + 1
		if c >= last {
			break
		}
		if c+1 < last && before(h[c+1], h[c]) {
			c++
		}
		if !before(h[c], h[i]) {
			break
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
	s.events = h
	return *e
}

func (s *sim) in(d time.Duration, do what, to, from *proc) {
	s.push(event{at: s.now + d, do: do, to: to, from: from})
}

func (s *sim) join() *proc {
	p := &proc{index: len(s.procs), heard: map[Voter]time.Duration{}, proven: map[Voter]bool{}}
	s.forget(p)
	for i := range s.links {
		s.links[i] = append(s.links[i], link{})
	}
	s.procs = append(s.procs, p)
	s.links = append(s.links, make([]link, len(s.procs)))
	s.in(s.some(0, 0.05), isTick, p, nil)
	s.say("%s joins", p.id)
	return p
}

// maxProcs is more than how many processes a history has. A process's name says which one it is, and which of its
// memories.
const maxProcs = 100

func (s *sim) proc(id Voter) *proc { return s.procs[id%maxProcs-1] }

// forget gives a process an empty memory.
func (s *sim) forget(p *proc) {
	if p.id += maxProcs; p.id < 2*maxProcs {
		p.id = Voter(maxProcs + p.index + 1)
	}
	p.node = New(p.id, simLease, s.now, nil)
}

func (s *sim) alive() (list []*proc) {
	for _, p := range s.procs {
		if p.killed == 0 {
			list = append(list, p)
		}
	}
	return list
}

// send gives the network something.
func (s *sim) send(e event) {
	l := &s.links[e.from.index][e.to.index]
	if l.cut {
		if l.hold && len(l.held) < 200 {
			l.held = append(l.held, e)
		}
		return
	}
	if s.chance(s.drop) {
		return
	}
	for range 2 {
		e.at = s.now + time.Millisecond + time.Duration(s.rng.Int64N(int64(2*time.Millisecond)))
		if s.chance(s.slow) {
			e.at += s.some(0, []float64{0.05, 0.3, 2}[s.rng.IntN(3)])
		}
		s.push(e)
		if !s.chance(s.twice) {
			break
		}
	}
}

// decoded is raft's message.
func decoded(m Message) *raftpb.Message {
	d := &raftpb.Message{}
	if err := unmarshal(m.Data, d); err != nil {
		panic(err)
	}
	return d
}

// settle sends what a process says, notes what has come of it, and checks it.
func (s *sim) settle(p *proc) {
	b := p.node
	if b.Lost() {
		s.fail("%s cannot go on", p.id)
		return
	}
	for _, m := range b.Messages() {
		s.send(event{do: isMessage, from: p, to: s.proc(m.To), m: m})
	}
	if host := b.Leader(); host != 0 {
		p.host = host
	}
	term, hosts := b.Leads()
	if !hosts {
		if p.term != 0 {
			s.say("%s hosts no more: term %d", p.id, term)
			if p.transferring {
				s.tell(p)
			}
		}
		p.term = 0
		return
	}
	if p.term != term {
		s.elected(p, term)
	}
	if n := b.Committed(); n > p.up {
		s.confirmed(p, n)
	}
	if s.last == p {
		s.inForce(s.voters(p))
	}
}

// voters are those that a process knows. Until another one of them knows that it votes, it is the process alone.
func (s *sim) voters(p *proc) Voters {
	v := p.node.Voters()
	if !slices.ContainsFunc(v.All(), func(id Voter) bool { q := s.proc(id); return q != p && q.id == id && q.node.Votes() }) {
		v = Voters{Incoming: []Voter{p.id}}
	}
	return v
}

func (s *sim) inForce(v Voters) {
	if n := len(s.sets) - 1; n >= 0 && slices.Equal(s.sets[n].voters.Incoming, v.Incoming) && slices.Equal(s.sets[n].voters.Outgoing, v.Outgoing) {
		s.sets[n].until = s.now
		return
	}
	s.changes++
	s.say("voters %v", v)
	s.sets = append(s.sets, set{v, s.now})
}

func (s *sim) elected(p *proc, term uint64) {
	s.elections++
	e := valueOf(p)
	s.say("%s hosts in term %d: value %d, voters %v, dead %v", p.id, term, e, p.node.Voters(), p.node.dead)
	p.term, p.since, p.up = term, s.now, 0
	p.said = append(p.said[:0], said{0, e})
	clear(p.heard)
	p.overlap = 0
	if s.loose > 0 && s.now-s.loose < simLease {
		p.overlap = simLease / majorityParts
	}
	if other := s.hosts[term]; other != nil && other != p {
		s.fail("both %s and %s host in term %d", other.id, p.id, term)
	}
	s.hosts[term] = p
	if s.last == nil || s.last.term <= term {
		s.last = p
	}
	late := term < s.term // votes that came late: others are in a later term, and it can confirm nothing
	s.term = max(s.term, term)
	if late || s.within(s.tip, e) {
		return
	}
	if !s.majorityKilled() {
		s.fail("%s hosts in term %d with value %d, and value %d was confirmed", p.id, term, e, s.tip)
	}
	s.losses++
	s.say("values from %d on were lost with a majority", s.tip)
	s.tip = e
	clear(s.value)
}

// majorityKilled reports whether what was confirmed may be lost.
func (s *sim) majorityKilled() bool {
	for i, set := range s.sets {
		if i < len(s.sets)-1 && set.until < s.now-simLease {
			continue
		}
		for _, voters := range [][]Voter{set.voters.Incoming, set.voters.Outgoing} {
			killed := 0
			for _, id := range voters {
				if s.proc(id).killed > 0 {
					killed++
				}
			}
			if killed > len(voters)/2 {
				return true
			}
		}
	}
	return false
}

func (s *sim) confirmed(p *proc, n uint64) {
	s.confirms++
	v := 0
	for _, x := range p.said {
		if x.number > n {
			break
		}
		v = x.value
		if x.number > p.up {
			if other, ok := s.value[x.number]; ok && other != x.value {
				s.fail("%s confirms value %d as number %d, which was value %d", p.id, x.value, x.number, other)
			}
			s.value[x.number] = x.value
			if other, ok := s.rounds[s.round[x.value]]; ok && other != x.value {
				s.fail("%s confirms round %d as value %d, which was value %d", p.id, s.round[x.value], x.value, other)
			}
			s.rounds[s.round[x.value]] = x.value
			s.told, s.alone = max(s.told, s.round[x.value]), false
		}
	}
	p.up, p.value = n, v
	s.say("%s confirms number %d: value %d", p.id, n, v)
	for _, q := range s.procs {
		if q.killed == 0 && q.term > p.term && !s.within(v, valueOf(q)) {
			s.fail("%s confirms value %d in term %d, and %s, the host of term %d, does not know it", p.id, v, p.term, q.id, q.term)
		}
	}
	switch {
	case s.within(s.tip, v):
		s.tip = v
	case !s.within(v, s.tip):
		s.fail("%s confirms value %d, and %d was confirmed beside it", p.id, v, s.tip)
	}
}

// within reports whether a value is in another one.
func (s *sim) within(v, in int) bool {
	for s.depth[in] > s.depth[v] {
		in = s.parent[in]
	}
	return v == in
}

func valueOf(p *proc) int {
	value, _, _ := p.node.Value()
	n, _ := strconv.Atoi(string(value))
	return n
}

// after reports whether a process knows a later value than another one.
func (p *proc) after(q *proc) bool {
	if q == nil {
		return true
	}
	_, term, number := p.node.Value()
	_, term2, number2 := q.node.Value()
	return term > term2 || term == term2 && number > number2
}

func (s *sim) propose(p *proc) {
	parent := valueOf(p)
	v := len(s.parent)
	s.parent = append(s.parent, parent)
	s.depth = append(s.depth, s.depth[parent]+1)
	round := s.round[parent]
	if s.alone { // as docs/decisions/0138 says
		round = max(round, (s.told/1000+1)*1000)
	}
	s.round = append(s.round, round+1)
	n := p.node.Propose(s.now, []byte(strconv.Itoa(v)))
	if n == 0 {
		s.fail("%s hosts, and cannot propose", p.id)
	}
	p.said = append(p.said, said{n, v})
	s.say("%s proposes value %d over %d as number %d", p.id, v, parent, n)
	s.settle(p)
}

// choose has a host choose the voters as docs/decisions/0138 says.
func (s *sim) choose(p *proc) {
	answered := p.node.Answered()
	good := func(q *proc) bool {
		if q == p {
			return true
		}
		if e := q.node.Cluster(); e != "" && e != p.node.Cluster() {
			return false
		}
		at := max(p.heard[q.id], answered[q.id])
		if q.index < len(s.procs) && at == 0 && p.node.Voters().Has(q.id) {
			at = p.since
		}
		return at > 0 && s.now-at < simLease && !p.proven[q.id]
	}
	members := 0
	for _, q := range s.procs {
		if good(q) {
			members++
		}
	}
	size := 1
	switch {
	case members >= 5:
		size = 5
	case members >= 3:
		size = 3
	}
	wanted := []Voter{p.id}
	for _, id := range p.node.Voters().Incoming { // one that votes, and is heard, stays
		if q := s.proc(id); q != p && q.id == id && good(q) && len(wanted) < MaxVoters {
			wanted = append(wanted, id)
		}
	}
	for _, q := range s.procs {
		if len(wanted) < size && good(q) && !slices.Contains(wanted, q.id) {
			wanted = append(wanted, q.id)
		}
	}
	if len(wanted) == 2 { // of two, none may fall silent
		wanted = wanted[:1]
	}
	p.node.SetVoters(wanted, s.now)
	s.settle(p)
}

// take gives a process something that has reached it. A host that was elected, or sees that one is dead, changes
// the voters at once.
func (s *sim) take(e event) {
	p := e.to
	before := p.term
	defer func() {
		if p.killed == 0 && p.term != 0 && (p.term != before || e.do == isProof) {
			s.choose(p)
		}
	}()
	switch {
	case p.killed > 0:
		return
	case p.paused:
		if e.do != isTick {
			p.queue = append(p.queue, e)
		}
		return
	}
	b := p.node
	if p.transferring && p.term == 0 && e.do != isEndTransfer {
		return // it has left the vote
	}
	switch e.do {
	case isEndTransfer:
		s.say("%s has handed on, or goes without", p.id)
		b.EndTransfer()
		s.kill(p)
		p.transferring = p.killed > 0
	case isTick:
		for _, q := range s.procs {
			if p.proven[q.id] { // which is told again, since it counts at times only
				b.Dead(q.id, s.now)
			}
		}
		s.renew(p)
		b = p.node
		b.Tick(s.now)
		s.settle(p)
		if p.term != 0 {
			s.choose(p)
		}
		for _, q := range s.procs { // the heartbeats of nodes
			if q != p && q.term != 0 && q.killed == 0 {
				s.send(event{do: isHeartbeat, from: p, to: q})
			}
		}
		s.overlap()
	case isMessage:
		d := decoded(e.m)
		if s.trace != nil && d.GetType() != raftpb.MsgHeartbeat && d.GetType() != raftpb.MsgHeartbeatResp && d.GetType() != raftpb.MsgApp && d.GetType() != raftpb.MsgAppResp {
			s.say("%s > %s %v term %d index %d reject %v", e.m.From, e.m.To, d.GetType(), d.GetTerm(), d.GetIndex(), d.GetReject())
		}
		if string(d.GetContext()) == transfer {
			s.loose = s.now
		}
		if e.m.To != p.id {
			return
		}
		p.heard[e.from.id] = s.now
		if e.from.killed == 0 && !e.from.transferring {
			delete(p.proven, e.from.id)
		}
		if !b.Receive(e.m, s.now) {
			s.fail("%s refuses a message of %s: %v, its last %d, term %d, %v", p.id, e.m.From, d, p.node.lastIndex(), p.node.term, p.node.cluster)
		}
		s.settle(p)
	case isHeartbeat:
		p.heard[e.from.id] = s.now
	case isEnd:
		s.loose = s.now
		if p.host == e.from.id {
			s.say("%s: the connection of %s has ended", p.id, e.from.id)
			b.LeaderEnded(s.now)
		}
	case isProof:
		s.say("%s: %s is dead", p.id, e.from.id)
		p.proven[e.from.id] = true
		b.Dead(e.from.id, s.now)
		s.settle(p)
		if p.proven[p.host] && s.first(p) {
			b.Campaign(s.now)
			s.settle(p)
		}
	case isRequest:
		s.loose = s.now
		s.say("%s asks %s to host", e.from.id, p.id)
		b.TakeOver(s.now)
		s.settle(p)
	}
}

// first reports whether no other voter stands before a process, as Decide has it.
func (s *sim) first(p *proc) bool {
	for _, q := range s.procs[:p.index] {
		if q.id != p.host && !p.proven[q.id] && p.node.Voters().Has(q.id) {
			return false
		}
	}
	return true
}

// overlap checks that one process at most has a majority.
func (s *sim) overlap() {
	for _, p := range s.procs {
		if p.killed > 0 || p.paused || p.term == 0 || !p.node.Majority(s.now) {
			continue
		}
		for _, q := range s.procs {
			if q.killed == 0 && q.term > p.term && s.now-q.since > q.overlap && q.node.Majority(s.now) {
				s.fail("%s has a majority in term %d, and %s has in term %d", p.id, p.term, q.id, q.term)
			}
		}
	}
}

func (s *sim) kill(p *proc) {
	if len(s.alive()) == 1 || p.killed > 0 {
		return
	}
	s.say("%s is killed", p.id)
	p.killed = s.now
	p.paused, p.queue = false, nil
	for _, q := range s.procs {
		if q.killed == 0 {
			s.prove(event{to: q, from: p})
		}
	}
	if s.rng.IntN(4) > 0 { // it is started again, under another id
		s.members++
	}
}

// prove has a process see that another one is dead, unless a cut is between them.
func (s *sim) prove(e event) {
	if s.links[e.from.index][e.to.index].cut || s.links[e.to.index][e.from.index].cut {
		s.pend = append(s.pend, e)
		return
	}
	d := s.some(0.0001, 0.001)
	s.in(d, isEnd, e.to, e.from)
	s.in(d+s.some(0.01, 0.02), isProof, e.to, e.from)
}

func (s *sim) cut(p, q *proc, d time.Duration) {
	if p == q {
		return
	}
	l := &s.links[p.index][q.index]
	l.cut, l.hold = true, s.chance(0.3)
	s.in(d, isHeal, q, p)
}

// reject has a firewall reject what one process sends to the others, or what they send to it, or both: all
// connections end, and each side that is rejected takes the other for dead.
func (s *sim) reject(p *proc, d time.Duration) {
	way := 1 + s.rng.IntN(3)
	s.say("%s is rejected for %.2f, way %d", p.id, d.Seconds()/simLease.Seconds(), way)
	for _, q := range s.alive() {
		for i, side := range [][2]*proc{{p, q}, {q, p}} {
			if q == p {
				continue
			}
			s.cut(side[0], side[1], d)
			s.links[side[0].index][side[1].index].hold = false
			after := s.some(0.0001, 0.001)
			s.in(after, isEnd, side[0], side[1])
			if way>>i&1 > 0 {
				s.in(after+s.some(0.01, 0.02), isProof, side[0], side[1])
			}
		}
	}
}

func (s *sim) heal(p, q *proc) {
	l := &s.links[p.index][q.index]
	if !l.cut {
		return
	}
	l.cut = false
	for _, e := range l.held {
		if e.do == isMessage && s.chance(0.9) {
			e.at = s.now + time.Duration(s.rng.Int64N(int64(3*time.Millisecond)))
			s.push(e)
		}
	}
	l.held = nil
	pend := s.pend
	s.pend = nil
	for _, e := range pend {
		if e.to.killed == 0 {
			s.prove(e)
		}
	}
}

func (s *sim) pause(p *proc, d time.Duration) {
	if p.killed > 0 || p.paused {
		return
	}
	s.say("%s pauses for %.2f", p.id, d.Seconds()/simLease.Seconds())
	p.paused = true
	s.in(d, isWake, p, nil)
}

func (s *sim) wake(p *proc) {
	if p.killed > 0 || !p.paused {
		return
	}
	s.say("%s wakes, %d before it", p.id, len(p.queue))
	p.paused = false
	queue := p.queue
	p.queue = nil
	first := 0
	switch s.rng.IntN(3) {
	case 0:
		first = len(queue)
	case 1:
		first = s.rng.IntN(len(queue) + 1)
	}
	for i, e := range queue {
		if i == first {
			s.take(event{do: isTick, to: p})
		}
		s.take(e)
	}
	if first == len(queue) {
		s.take(event{do: isTick, to: p})
	}
}

// fault does one of what goes wrong.
func (s *sim) fault() {
	alive := s.alive()
	pick := func() *proc { return alive[s.rng.IntN(len(alive))] }
	var leader *proc
	for _, p := range alive {
		if p.term != 0 && (leader == nil || p.term > leader.term) {
			leader = p
		}
	}
	if leader != nil && s.chance(0.3) {
		pick = func() *proc { return leader }
	}
	long := s.some(0.1, []float64{0.6, 1.2, 3}[s.rng.IntN(3)])
	switch s.rng.IntN(16) {
	case 14, 15:
		s.reject(pick(), long)
	case 0, 1: // a part of the network on its own
		side := s.rng.Uint64()
		for _, p := range alive {
			for _, q := range alive {
				if side>>p.index&1 != side>>q.index&1 {
					s.cut(p, q, long)
				}
			}
		}
		s.say("cut %b for %.2f", side&(1<<len(s.procs)-1), long.Seconds()/simLease.Seconds())
	case 2: // one is cut off
		p := pick()
		for _, q := range alive {
			s.cut(p, q, long)
			s.cut(q, p, long)
		}
		s.say("%s is cut off for %.2f", p.id, long.Seconds()/simLease.Seconds())
	case 3: // one way
		p, mute := pick(), s.chance(0.5)
		for _, q := range alive {
			if s.chance(0.6) {
				if mute {
					s.cut(p, q, long)
				} else {
					s.cut(q, p, long)
				}
			}
		}
		s.say("%s is cut off one way for %.2f", p.id, long.Seconds()/simLease.Seconds())
	case 4:
		p, q := pick(), pick()
		s.cut(p, q, long)
		s.cut(q, p, long)
		s.say("%s and %s are cut off for %.2f", p.id, q.id, long.Seconds()/simLease.Seconds())
	case 5, 6:
		s.pause(pick(), long)
	case 7:
		for _, p := range alive {
			if s.chance(0.5) {
				s.pause(p, long)
			}
		}
	case 8:
		s.kill(pick())
	case 9: // several, as cuts end
		if s.chance(0.5) {
			s.healAll()
		}
		for _, p := range alive {
			if s.chance(0.5) {
				s.kill(p)
			}
		}
	case 10:
		s.healAll()
	case 11, 12: // a part on its own, for so long that it is replaced; then all but one or two die
		side := s.rng.Uint64()
		if len(alive) < 4 {
			break
		}
		d := s.some(0.05, 2.5)
		hold := s.chance(0.5)
		for _, p := range alive {
			for _, q := range alive {
				if side>>p.index&1 != side>>q.index&1 {
					s.cut(p, q, 10*simLease)
					s.links[p.index][q.index].hold = hold
				}
			}
		}
		s.say("cut %b for %.2f, and then kills", side&(1<<len(s.procs)-1), d.Seconds()/simLease.Seconds())
		s.in(d, isKills, nil, nil)
	case 13:
		if leader == nil {
			break
		}
		if s.chance(0.3) { // its side ends a connection
			s.in(0, isEnd, alive[s.rng.IntN(len(alive))], leader)
			break
		}
		if v := leader.node.Voters().All(); len(v) > 1 {
			if q := s.proc(v[s.rng.IntN(len(v))]); q != leader {
				s.transfer(leader, q, long)
			}
		}
	}
	s.takeOver()
}

// transfer has a host hand on to another process and end, as docs/decisions/0043 says. In the
// middle of it one of the two is cut off or paused, more often than not.
func (s *sim) transfer(host, next *proc, long time.Duration) {
	if host.transferring || host.paused || !host.node.BeginTransfer(next.id) {
		return
	}
	s.say("%s hands on to %s", host.id, next.id)
	host.transferring = true
	s.send(event{do: isRequest, from: host, to: next})
	s.in(simLease/5, isEndTransfer, host, nil)
	s.silence = long
	silent := next
	if s.chance(0.4) {
		silent = host
	}
	switch s.rng.IntN(5) {
	case 0:
		s.kill(host)
	case 1:
		s.in(s.some(0, 0.001), isPause, silent, nil)
	case 2:
		s.in(s.some(0, 0.001), isCut, silent, nil)
	case 3:
		s.in(s.some(0, 0.001), isDeaf, silent, nil)
	}
}

// tell has the others hear that a process votes no more.
func (s *sim) tell(p *proc) {
	for _, q := range s.alive() {
		if q != p {
			if s.links[p.index][q.index].cut {
				continue // it hears the end of the process
			}
			s.in(s.some(0.0001, 0.001), isProof, q, p)
		}
	}
}

// kills kills all but one or two, as all cuts end.
func (s *sim) kills() {
	alive := s.alive()
	left := 1 + s.rng.IntN(2)
	s.rng.Shuffle(len(alive), func(i, k int) { alive[i], alive[k] = alive[k], alive[i] })
	first := s.rng.IntN(len(alive))
	for i := range max(0, len(alive)-left) {
		if i == first {
			s.healAll()
		}
		s.kill(alive[i])
	}
	s.healAll()
}

// takeOver is succession by proof, where all that voted are dead: here one process takes over.
func (s *sim) takeOver() {
	var last *proc
	for _, p := range s.procs {
		if p.after(last) {
			last = p
		}
	}
	lives := func(id Voter) bool { return s.proc(id).killed == 0 && s.proc(id).id == id }
	if slices.ContainsFunc(s.voters(last).All(), lives) {
		return
	}
	for _, p := range s.alive() {
		if p.paused || p.node.Votes() && slices.ContainsFunc(p.node.Voters().All(), lives) {
			return
		}
	}
	p := s.alive()[0]
	s.say("%s takes over by proof", p.id)
	value, _, _ := p.node.Value()
	s.forget(p)
	s.begin(p, s.term, value)
	s.alone = true
	s.settle(p)
}

func (s *sim) healAll() {
	s.say("all cuts end")
	for _, p := range s.procs {
		for _, q := range s.procs {
			s.heal(p, q)
		}
	}
}

// lives reports whether a majority of the voters of the last entries is alive.
func (s *sim) lives() bool {
	var last *proc
	enough := func(v []Voter) bool {
		n := 0
		for _, id := range v {
			if q := s.proc(id); q.killed == 0 && q.id == id {
				n++
			}
		}
		return len(v) == 0 || n > len(v)/2
	}
	for _, p := range s.procs {
		if p.after(last) {
			last = p
		}
	}
	for _, p := range s.alive() {
		if v := p.node.Voters(); !enough(v.Incoming) || !enough(v.Outgoing) {
			return false
		}
	}
	v := s.voters(last)
	return enough(v.Incoming) && enough(v.Outgoing)
}

// history runs one.
func history(t *testing.T, seed uint64, traced bool) *sim {
	cryptotest.SetGlobalRandom(t, seed) // of raft's time-outs
	s := newSim(seed, traced)
	if s.chance(0.5) {
		s.drop = []float64{0.01, 0.1, 0.4}[s.rng.IntN(3)]
	}
	if s.chance(0.5) {
		s.twice = 0.1
	}
	if s.chance(0.5) {
		s.slow = 0.05
	}
	s.found(3 + s.rng.IntN(5))
	s.members += s.rng.IntN(3)
	at := s.now + s.some(0.3, 0.5)
	s.push(event{at: at, do: isJoin})
	for range 3 + s.rng.IntN(10) {
		at += s.some(0.01, []float64{0.1, 0.6, 1.5}[s.rng.IntN(3)])
		s.push(event{at: at, do: isFault})
	}
	s.run(at+s.some(0.2, 1), nil)
	s.say("all faults end")
	s.drop, s.twice, s.slow, s.mark = 0, 0, 0, len(s.parent)
	s.healAll()
	for _, p := range s.procs {
		s.wake(p)
	}
	s.run(s.now+3*simLease, s.done)
	if s.lives() && !s.done() {
		s.fail("three leases after all faults no host confirms")
	}
	return s
}

func newSim(seed uint64, traced bool) *sim {
	s := &sim{
		seed: seed, rng: rand.New(rand.NewPCG(seed, 138)), parent: []int{0}, depth: []int{0}, round: []uint64{0}, rounds: map[uint64]int{},
		value: map[uint64]int{}, hosts: map[uint64]*proc{}, now: time.Second,
	}
	if traced {
		s.trace = &strings.Builder{}
	}
	return s
}

// found begins a group.
func (s *sim) found(members int) {
	s.members = members
	for range members {
		s.join()
	}
	s.begin(s.procs[0], 0, nil)
	s.in(s.some(0.3, 0.5), isProposal, nil, nil)
}

// begin has a process begin a cluster, as its only voter.
func (s *sim) begin(p *proc, term uint64, value []byte) {
	s.clusters++
	clear(s.value)
	p.node.Begin(strconv.Itoa(s.clusters), term, []Voter{p.id}, value, s.now)
	s.settle(p)
}

// renew has a process that follows the leader of another cluster forget its own.
func (s *sim) renew(p *proc) {
	if l := s.last; l != nil && l != p && l.killed == 0 && l.term != 0 && p.term == 0 && p.node.Cluster() != "" && p.node.Cluster() != l.node.Cluster() &&
		!s.links[l.index][p.index].cut && !s.links[p.index][l.index].cut {
		s.say("%s follows %s into another cluster", p.id, l.id)
		s.forget(p)
	}
}

// run lets happen what does until a time, or until it is done.
func (s *sim) run(until time.Duration, done func() bool) {
	for s.failed == "" && s.events[0].at < until {
		e := s.pop()
		s.now = e.at
		switch e.do {
		case isWake:
			s.wake(e.to)
		case isHeal:
			s.heal(e.from, e.to)
		case isCut, isDeaf:
			for _, q := range s.alive() {
				if s.cut(q, e.to, s.silence); e.do == isCut {
					s.cut(e.to, q, s.silence)
				}
			}
			s.say("%s is cut off for %.2f", e.to.id, s.silence.Seconds()/simLease.Seconds())
		case isPause:
			s.pause(e.to, s.silence)
		case isFault:
			s.fault()
		case isKills:
			if s.mark == 0 {
				s.kills()
			}
		case isJoin:
			if len(s.alive()) < s.members && len(s.procs) < 16 {
				s.join()
			}
			s.in(s.some(0.02, 0.4), isJoin, nil, nil)
		case isProposal:
			for _, p := range s.alive() {
				if p.term != 0 && !p.paused && !p.transferring {
					s.propose(p)
				}
			}
			s.in(s.some(0.03, 0.15), isProposal, nil, nil)
		case isTick:
			s.take(e)
			if e.to.killed == 0 {
				s.in(Beat(simLease)+s.some(0, 0.002), isTick, e.to, nil)
			}
		default:
			s.take(e)
		}
		if done != nil && done() {
			return
		}
	}
	s.now = max(s.now, until)
}

// done reports whether one process hosts and confirms what was proposed after the faults.
func (s *sim) done() bool {
	hosts := 0
	for _, p := range s.procs {
		if p.killed > 0 || p.term == 0 {
			continue
		}
		if hosts++; p.value < s.mark || !p.node.Majority(s.now) {
			return false
		}
	}
	return hosts == 1
}

// TestKillsOnly: in a network without faults, processes are killed one after the other, the host
// more often than not, down to the last one. Each time one of the others hosts and confirms
// within half a second: an election by proof does not wait.
func TestKillsOnly(t *testing.T) {
	for seed := range uint64(100) {
		cryptotest.SetGlobalRandom(t, seed)
		s := newSim(seed, testing.Verbose())
		s.found(3 + s.rng.IntN(5))
		s.members = 0
		s.run(s.now+simLease, nil)
		for len(s.alive()) > 1 && s.failed == "" {
			alive := s.alive()
			if s.last.killed == 0 && s.chance(0.7) {
				s.kill(s.last)
			} else {
				s.kill(alive[s.rng.IntN(len(alive))])
			}
			s.members = 0
			s.run(s.now+simLease*3/100, nil)
			s.takeOver()
			s.mark = len(s.parent)
			s.in(0, isProposal, nil, nil)
			s.run(s.now+simLease*2/100, s.done)
			if !s.done() {
				s.fail("no host half a second after a kill")
			}
			s.run(s.now+s.some(0.005, []float64{0.02, 0.2, 2}[s.rng.IntN(3)]), nil)
		}
		if s.failed != "" {
			t.Fatalf("seed %d: %s\n%s", seed, s.failed, s.trace)
		}
	}
}

// TestHistories runs some histories, or as many as RALLYPOINT_HISTORIES says, or the one of
// RALLYPOINT_SEED with its trace.
func TestHistories(t *testing.T) {
	if text := os.Getenv("RALLYPOINT_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		s := history(t, seed, true)
		t.Logf("seed %d\n%s", seed, s.trace)
		if s.failed != "" {
			t.Error(s.failed)
		}
		return
	}
	count := 100
	if text := os.Getenv("RALLYPOINT_HISTORIES"); text != "" {
		var err error
		if count, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	var sum sim
	for seed := range uint64(count) {
		s := history(t, seed+1, false)
		sum.elections += s.elections
		sum.confirms += s.confirms
		sum.changes += s.changes
		sum.losses += s.losses
		if s.failed == "" {
			continue
		}
		t.Errorf("seed %d: %s", s.seed, s.failed)
		trace := history(t, s.seed, true).trace.String()
		if lines := strings.Split(trace, "\n"); len(lines) > 150 {
			trace = strings.Join(lines[len(lines)-150:], "\n")
		}
		t.Fatalf("RALLYPOINT_SEED=%d shows it; its end:\n%s", s.seed, trace)
	}
	t.Logf("%d histories, %.0f a second: %d hosts, %d confirmations, %d sets of voters, %d losses with a majority",
		count, float64(count)/time.Since(began).Seconds(), sum.elections, sum.confirms, sum.changes, sum.losses)
}
