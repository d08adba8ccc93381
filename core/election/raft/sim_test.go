package raft

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
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
