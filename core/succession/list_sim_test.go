package succession

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The simulator of a fixed list: places in which processes follow one another, each with an empty
// memory and a name of its own. They are killed and started again, paused, and cut off from each
// other, in virtual time. One seed is one history.
//
// It holds:
//
//  1. Two processes never lead with a majority for longer than a quarter of a lease, however many
//     memories are lost at a time, and whatever two groups were founded.
//  2. Where no server is restarted before all of them vote, what was confirmed is not lost,
//     and no second group is founded.
//  3. When all faults end, one process leads with a majority within twelve leases, and all vote.

type seat struct {
	place  int
	ballot *Ballot
	id     Voter
	gone   bool // killed, and not started again yet
	paused bool
	inbox  []Message
	dead   []Voter // proven
	last   Voter   // the host that was known last
	term   uint64  // in which it leads, as far as was noted
	value  uint64  // the last that it has proposed
	number uint64  // with
	named  bool
	orphan time.Duration // since when it has had no leader, though it reaches enough
}

type listSim struct {
	rng     *rand.Rand
	now     time.Duration
	seats   []*seat
	cut     [][]bool
	mail    []mail
	starts  int
	groups  int
	values  uint64
	said    uint64 // the highest value that was confirmed
	orderly bool   // property 2 has to hold
	failed  string
	trace   *strings.Builder
}

type mail struct {
	at time.Duration
	to *seat
	m  Message
	do func()
}

func (s *listSim) say(format string, args ...any) {
	if s.trace != nil {
		fmt.Fprintf(s.trace, "%8.3f ", s.now.Seconds()/simLease.Seconds())
		fmt.Fprintf(s.trace, format+"\n", args...)
	}
}

func (s *listSim) fail(format string, args ...any) {
	if s.failed == "" {
		s.failed = fmt.Sprintf(format, args...)
		s.say("FAILED: %s", s.failed)
	}
}

func (s *listSim) start(p *seat) {
	s.starts++
	p.id = Voter(fmt.Sprintf("%d-%d", p.place, s.starts))
	p.ballot = NewBallot(p.id, simLease, s.now).Of(len(s.seats))
	p.orphan = s.now
	p.gone, p.paused, p.inbox, p.dead, p.last, p.term, p.named = false, false, nil, nil, "", 0, false
	s.say("%s starts", p.id)
	for _, q := range s.seats { // who reaches it finds that the one before is dead
		if q != p {
			s.prove(q, p)
		}
	}
}

// prove has a process see that another place's former processes are dead.
func (s *listSim) prove(q, p *seat) {
	old := Voter("")
	if v := q.ballot.Accepted().Voters; !q.gone {
		for _, id := range v.All() {
			if s.placeOf(id) == p.place && (p.gone || id != p.id) {
				old = id
			}
		}
	}
	if old == "" {
		return
	}
	s.mail = append(s.mail, mail{at: s.now + s.some(0.01, 0.02), to: q, do: func() {
		if s.cut[q.place][p.place] || s.cut[p.place][q.place] {
			return
		}
		if q.ballot.Host() == old {
			q.ballot.HostEnded()
		}
		q.dead = append(q.dead, old)
		s.tick(q)
	}})
}

func (s *listSim) some(from, to float64) time.Duration {
	return time.Duration((from + s.rng.Float64()*(to-from)) * float64(simLease))
}

func (s *listSim) placeOf(id Voter) int {
	n, _ := strconv.Atoi(strings.Split(string(id), "-")[0])
	return n
}

func (s *listSim) linked(p, q *seat) bool {
	return !p.gone && !q.gone && !s.cut[p.place][q.place] && !s.cut[q.place][p.place]
}

func nameOfEntry(e Entry) string {
	name, _, _ := strings.Cut(string(e.Value), " ")
	return name
}

// tick is what the control plane does each beat, and when something changes.
func (s *listSim) tick(p *seat) {
	b := p.ballot
	for _, id := range b.Accepted().Voters.All() { // another process answers in its place
		if q := s.seats[s.placeOf(id)]; q != p && q.id != id && s.linked(p, q) && !q.paused && !slices.Contains(p.dead, id) && s.rng.IntN(2) == 0 {
			p.dead = append(p.dead, id)
		}
	}
	for _, id := range p.dead {
		b.Dead(id, s.now)
	}
	if !b.Founded() {
		var voters []Voter
		for _, q := range s.seats {
			if q == p {
				voters = append(voters, p.id)
			} else if s.linked(p, q) && !q.paused {
				if q.ballot.Founded() {
					voters = nil
					break
				}
				voters = append(voters, q.id)
			}
		}
		b.Found(voters)
	}
	for _, q := range s.seats { // another group has a majority: this memory is of no use
		mine, theirs := nameOfEntry(b.Accepted()), nameOfEntry(q.ballot.Accepted())
		if _, leads := q.ballot.Hosts(); q != p && s.linked(p, q) && !q.paused && leads && q.ballot.Majority(s.now) && mine != "" && theirs != "" && mine != theirs && !b.Majority(s.now) {
			s.start(p)
			return
		}
	}
	if _, leads := b.Hosts(); s.waits(p, leads) {
		s.say("%s gives up what it remembers", p.id)
		s.start(p)
		return
	}
	if host := b.Host(); host != "" {
		p.last = host
	}
	if host := b.Host(); b.ProvenDead(p.last) && (host == "" || host == p.last) && s.first(p) {
		b.Stand(false, s.now)
	}
	if _, leads := b.Hosts(); leads {
		var wish []Voter
		for _, q := range s.seats {
			id := Voter("")
			for _, v := range b.Accepted().Voters.All() {
				if s.placeOf(v) == q.place {
					id = v
				}
			}
			for _, v := range b.Accepted().Voters.Incoming {
				if s.placeOf(v) == q.place {
					id = v
				}
			}
			if q == p || s.linked(p, q) && !q.paused {
				id = q.id
			}
			if id != "" {
				wish = append(wish, id)
			}
		}
		b.Wish(wish, s.now)
	}
	s.settle(p)
}

// waits reports whether a process has memory, reaches a majority of the list, and has had no leader for
// so long that there is never going to be one.
func (s *listSim) waits(p *seat, leads bool) bool {
	near := 1
	for _, q := range s.seats {
		if q != p && s.linked(p, q) && !q.paused {
			near++
		}
	}
	if near < p.ballot.least || !p.ballot.Founded() || leads && p.ballot.Majority(s.now) || !leads && s.now-p.ballot.Heard() < simLease/4 {
		p.orphan = s.now
	}
	return s.now-p.orphan >= GiveUp*simLease
}

func (s *listSim) first(p *seat) bool {
	for _, q := range s.seats[:p.place] {
		if q.id != p.last && s.linked(p, q) {
			return false
		}
	}
	return true
}

// settle sends what a ballot has to say, and does what the control plane does then.
func (s *listSim) settle(p *seat) {
	b := p.ballot
	term, leads := b.Hosts()
	if leads && term != p.term {
		p.term, p.number = term, 0
		s.say("%s leads in term %d with %q of %v", p.id, term, b.Accepted().Value, b.Accepted().Voters)
		if !p.named && len(b.Accepted().Value) == 0 {
			s.groups++
			if s.orderly && s.groups > 1 {
				s.fail("a second group was founded")
			}
			b.Propose([]byte(fmt.Sprintf("g%d 0", s.groups)), s.now)
		}
		p.named = true
	}
	if leads && p.number == 0 && s.rng.IntN(4) == 0 {
		s.values++
		p.value = s.values
		p.number = b.Propose([]byte(fmt.Sprintf("%s %d", nameOfEntry(b.Accepted()), p.value)), s.now)
	}
	if leads && p.number > 0 && b.Confirmed() >= p.number && b.Majority(s.now) {
		_, text, _ := strings.Cut(string(b.Accepted().Value), " ")
		if now, _ := strconv.ParseUint(text, 10, 64); s.orderly && now < s.said {
			s.fail("%s confirms %d after %d", p.id, now, s.said)
		} else {
			s.said = max(s.said, now)
		}
		p.number = 0
	}
	if !leads {
		p.term = 0
	}
	for _, m := range b.Messages() {
		q := s.seats[s.placeOf(m.To)]
		if s.linked(p, q) && s.rng.IntN(50) > 0 {
			s.mail = append(s.mail, mail{at: s.now + s.some(0.0001, 0.003), to: q, m: m})
		}
	}
}

func (s *listSim) check() {
	for _, p := range s.seats {
		for _, q := range s.seats {
			_, a := p.ballot.Hosts()
			_, b := q.ballot.Hosts()
			if p.place < q.place && a && b && !p.gone && !q.gone && !p.paused && !q.paused && p.ballot.Majority(s.now) && q.ballot.Majority(s.now) {
				if s.now-max(p.ballot.Began(), q.ballot.Began()) > simLease/deposeParts {
					s.fail("%s and %s lead with a majority", p.id, q.id)
				}
			}
		}
	}
}

// ready reports whether one process leads with a majority, and all vote.
func (s *listSim) ready() bool {
	for _, p := range s.seats {
		if _, leads := p.ballot.Hosts(); leads && !p.gone && p.ballot.Majority(s.now) && !p.ballot.Changing() && len(p.ballot.Accepted().Voters.Incoming) == len(s.seats) {
			for _, q := range s.seats {
				if q.gone || q.paused || !p.ballot.Accepted().Voters.Has(q.id) || !q.ballot.Accepted().Voters.Has(q.id) {
					return false
				}
			}
			return true
		}
	}
	return false
}

func (s *listSim) fault() {
	p := s.seats[s.rng.IntN(len(s.seats))]
	switch s.rng.IntN(6) {
	case 0, 1:
		if p.gone || s.orderly && !s.ready() {
			return
		}
		s.say("%s is killed", p.id)
		p.gone = true
		for _, q := range s.seats {
			if q != p {
				s.prove(q, p)
			}
		}
		s.later(s.some(0.005, 1.5), func() { s.start(p) })
	case 2:
		if p.gone || p.paused {
			return
		}
		s.say("%s pauses", p.id)
		p.paused = true
		id := p.id
		s.later(s.some(0.1, 1.5), func() {
			if p.id == id && p.paused {
				p.paused, p.orphan = false, s.now
				for _, m := range p.inbox {
					p.ballot.Receive(m, s.now)
				}
				p.inbox = nil
				s.tick(p)
				p.ballot.Tick(s.now)
				s.settle(p)
			}
		})
	case 3, 4:
		s.say("%s is cut off", p.id)
		for _, q := range s.seats {
			s.cut[p.place][q.place] = q != p
		}
		s.later(s.some(0.1, 2), func() {
			for _, q := range s.seats {
				s.cut[p.place][q.place] = false
			}
		})
	case 5:
		q := s.seats[s.rng.IntN(len(s.seats))]
		if p == q {
			return
		}
		s.say("%s does not reach %s", p.id, q.id)
		s.cut[p.place][q.place] = true
		s.later(s.some(0.1, 2), func() { s.cut[p.place][q.place] = false })
	}
}

func (s *listSim) later(d time.Duration, do func()) {
	s.mail = append(s.mail, mail{at: s.now + d, do: do})
}

// run is one history. Time passes in steps of a thousandth of a lease.
func (s *listSim) run(faults time.Duration) {
	for _, p := range s.seats {
		s.later(s.some(0, 0.3), func() { s.start(p) })
	}
	next := s.some(0.8, 1.5)
	calm := faults + 12*simLease
	phase := make([]time.Duration, len(s.seats))
	for i := range phase {
		phase[i] = s.some(0, 0.05)
	}
	for ; s.now < calm && s.failed == ""; s.now += simLease / 1000 {
		due := s.mail
		s.mail = nil
		for _, m := range due {
			switch {
			case m.at > s.now:
				s.mail = append(s.mail, m)
			case m.to == nil:
				m.do()
			case m.to.gone:
			case m.do != nil:
				m.do()
			case m.to.paused:
				m.to.inbox = append(m.to.inbox, m.m)
			default:
				m.to.ballot.Receive(m.m, s.now)
				s.settle(m.to)
			}
		}
		for i, p := range s.seats {
			if !p.gone && !p.paused && s.now >= phase[i] {
				phase[i] += Beat(simLease)
				s.tick(p)
				p.ballot.Tick(s.now)
				s.settle(p)
			}
		}
		if s.now < faults && s.now >= next {
			next = s.now + s.some(0.05, 1)
			s.fault()
		}
		s.check()
	}
	if s.failed == "" && !s.ready() {
		s.dump()
		s.fail("no leader with all voters after the faults")
	}
}

func newListSim(seed uint64, orderly bool) *listSim {
	rng := rand.New(rand.NewPCG(seed, 7))
	n := 3 + 2*rng.IntN(2)
	s := &listSim{rng: rng, orderly: orderly}
	for i := range n {
		p := &seat{place: i, gone: true}
		p.ballot = NewBallot(Voter(fmt.Sprint(i, "-0")), simLease, 0).Of(n)
		s.seats = append(s.seats, p)
		s.cut = append(s.cut, make([]bool, n))
	}
	return s
}

// TestHistoriesOfAList runs histories of a fixed list. RALLYPOINT_HISTORIES=N runs more, and
// RALLYPOINT_SEED=N one, with its trace.
func TestHistoriesOfAList(t *testing.T) {
	first, last := uint64(1), uint64(10)
	if n, err := strconv.ParseUint(os.Getenv("RALLYPOINT_HISTORIES"), 10, 64); err == nil {
		last = n
	}
	one, err := strconv.ParseUint(os.Getenv("RALLYPOINT_SEED"), 10, 64)
	if err == nil {
		first, last = one, one
	}
	for _, orderly := range []bool{false, true} {
		for seed := first; seed <= last; seed++ {
			s := newListSim(seed, orderly)
			if one > 0 {
				s.trace = &strings.Builder{}
			}
			s.run(20 * simLease)
			if s.trace != nil {
				t.Log(s.trace.String())
			}
			if s.failed != "" {
				t.Fatalf("seed %d, orderly %v: %s", seed, orderly, s.failed)
			}
		}
	}
}

func (s *listSim) dump() {
	for _, p := range s.seats {
		e := p.ballot.Accepted()
		term, leads := p.ballot.Hosts()
		s.say("%s gone %v paused %v: term %d leads %v host %q entry %d.%d %q %v majority %v settled %d since %d wish %v former %v dead %v cut %v", p.id, p.gone, p.paused, term, leads, p.ballot.Host(), e.Term, e.Number, e.Value, e.Voters, p.ballot.Majority(s.now), p.ballot.settled, p.ballot.since, p.ballot.wish, p.ballot.former, p.ballot.dead, s.cut[p.place])
	}
}
