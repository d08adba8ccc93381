package register

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"rallypoint/core/rendezvous"
)

// The simulation runs several processes of a run over one register, in a time of its own. Each seed is
// another history: calls take their time, fail before or after they are applied, and processes are stopped
// for a while or killed.

const simLease = 1000 * time.Millisecond

// mutant switches off one rule, to show that the simulation needs it.
type mutant int

const (
	sound             mutant = iota
	saysUnconfirmed          // a leader says what the register has not taken
	neverMute                // a leader says things however long ago a write was taken
	forgetsFacts             // a successor begins without the facts of the record
	ignoresOutages           // a look that has failed counts as one that has found nothing new
	believesDeadlines        // a leader that was not heard for half a lease is deposed
)

type simProcess struct {
	*core
	name      string
	stopped   time.Duration // until then it does nothing
	dead      bool
	busy      time.Duration // a call of it ends then
	finish    func(now time.Duration)
	next      time.Duration // when it looks next
	begins    uint64        // the facts with which it began to lead
	wants     uint64        // facts with that number are proposed
	proposals map[uint64]uint64
	standing  *attempt
}

type sim struct {
	t      *testing.T
	rng    *rand.Rand
	mutant mutant
	now    time.Duration
	value  []byte
	token  uint64
	down   time.Duration // the register is out of reach until then
	late   []func()      // writes whose answers are lost, and that may yet be applied
	list   []*simProcess
	said   uint64            // the highest number of facts that anybody was told
	by     map[uint64]string // who has said something in a term
	spoke  time.Duration     // when somebody last did
	term   uint64            // in which
	wrong  string
	leads  int
}

func newSim(t *testing.T, seed uint64, m mutant) *sim {
	s := &sim{t: t, rng: rand.New(rand.NewPCG(seed, 7)), mutant: m, by: map[uint64]string{}}
	for i := range 3 + s.rng.IntN(3) {
		s.list = append(s.list, s.process(fmt.Sprint("n", i)))
	}
	return s
}

func (s *sim) process(name string) *simProcess {
	return &simProcess{core: &core{runID: "job", node: name, ownLease: simLease}, name: name, proposals: map[uint64]uint64{}, next: s.now + s.some(50)}
}

func (s *sim) some(ms int) time.Duration { return time.Duration(s.rng.IntN(ms)+1) * time.Millisecond }

func (s *sim) fail(format string, args ...any) {
	if s.wrong == "" {
		s.wrong = fmt.Sprintf("at %v: ", s.now) + fmt.Sprintf(format, args...)
	}
}

// get and set are the register.
func (s *sim) get() (*Record, []byte) {
	if s.value == nil {
		return nil, nil
	}
	r, err := Decode(s.value)
	if err != nil {
		s.t.Fatal(err)
	}
	return r, strconv.AppendUint(nil, s.token, 10)
}

func (s *sim) set(r Record, token []byte) (*Record, []byte) {
	_, now := s.get()
	if string(now) == string(token) {
		b, err := r.Encode()
		if err != nil {
			s.t.Fatal(err)
		}
		s.token++
		s.value = b
	}
	return s.get()
}

// call starts a call of a process that ends later: with an answer, or without.
func (s *sim) call(p *simProcess, do func(), answer, lost func(now time.Duration)) {
	p.busy = s.now + s.some(30)
	switch fate := s.rng.IntN(100); {
	case s.now < s.down || fate < 4: // not applied
		p.busy += s.some(100)
		p.finish = lost
	case fate < 8: // applied, and its answer is lost
		do()
		p.busy += s.some(100)
		p.finish = lost
	case fate < 10: // applied much later
		p.busy += s.some(100)
		p.finish = lost
		s.late = append(s.late, do)
	default:
		do()
		p.finish = answer
	}
}

func factsOf(n uint64) rendezvous.Facts {
	return rendezvous.Facts{Generation: "g", Round: n, HostRank: -1}
}

func (s *sim) act(p *simProcess) {
	switch {
	case p.dead || s.now < p.stopped:
		return
	case p.finish != nil && s.now >= p.busy:
		f := p.finish
		p.finish = nil
		f(s.now)
	case p.finish != nil:
	case p.leads:
		s.leader(p)
	case s.now >= p.next:
		s.look(p)
	}
	if p.leads {
		s.say(p)
	}
}

// leader proposes now and then, and writes what is due.
func (s *sim) leader(p *simProcess) {
	if s.rng.IntN(20) == 0 {
		n := max(p.facts.Round, p.wants) + 1
		p.wants = n
		p.proposals[p.propose(factsOf(n))] = n
	}
	if p.due(s.now) > s.now {
		return
	}
	a := p.core.next(Leads, s.now)
	var now *Record
	var token []byte
	s.call(p, func() { now, token = s.set(a.record, a.token) }, func(time.Duration) { p.wrote(a, now, token) }, func(time.Duration) {})
}

// say has a leader tell its nodes all that it may, and checks that it may.
func (s *sim) say(p *simProcess) {
	for number, n := range p.proposals {
		may := p.maySay(number, s.now)
		switch s.mutant {
		case saysUnconfirmed:
			may = p.maySay(0, s.now)
		case neverMute:
			may = p.confirmed >= number
		}
		if !may {
			continue
		}
		delete(p.proposals, number)
		term, now := p.seen.Term, s.now
		if other := s.by[term]; other != "" && other != p.seen.Leader {
			s.fail("%s and %s speak in term %d", other, p.seen.Leader, term)
		}
		if s.by[term] == "" && p.begins < s.said {
			s.fail("%s began with facts %d, though %d were told", p.name, p.begins, s.said)
		}
		s.by[term] = p.seen.Leader
		if term < s.term {
			s.fail("%s speaks in term %d, after another one has in term %d", p.name, term, s.term)
		}
		s.term, s.spoke, s.said = term, now, max(s.said, n)
	}
}

func (s *sim) look(p *simProcess) {
	began := s.now
	p.next = s.now + simLease/beatsPerLease
	if p.known && s.rng.IntN(3) > 0 && s.campaign(p) {
		return
	}
	var r *Record
	var token []byte
	s.call(p, func() { r, token = s.get() }, func(now time.Duration) {
		if a := p.standing; a != nil && r != nil && r.Leader == a.record.Leader {
			s.lead(p, *a, token)
			return
		}
		p.looked(r, token, began, now)
	}, func(now time.Duration) {
		p.failed(now)
	})
}

func (s *sim) campaign(p *simProcess) bool {
	dead := ""
	for _, q := range s.list {
		if q.dead && p.seen != nil && q.seen != nil && q.seen.Leader == p.seen.Leader && q.name == p.seen.Node {
			dead = p.seen.Leader
		}
	}
	a, _, ok := p.candidacy("10.0.0.1:1", dead, s.now)
	if !ok {
		return false
	}
	if s.mutant == forgetsFacts {
		a.record.Facts = rendezvous.Facts{}
	}
	p.standing = &a
	var now *Record
	var token []byte
	s.call(p, func() { now, token = s.set(a.record, a.token) }, func(at time.Duration) {
		if now != nil && now.Leader == a.record.Leader {
			s.lead(p, a, token)
		} else {
			p.looked(now, token, a.began, at)
		}
	}, func(now time.Duration) { p.failed(now) })
	return true
}

func (s *sim) lead(p *simProcess, a attempt, token []byte) {
	p.lead(a, token)
	p.begins = a.record.Facts.Round
	p.standing = nil
	p.wants = a.record.Facts.Round
	clear(p.proposals)
	s.leads++
}

// run lets time pass; it returns what was wrong.
func (s *sim) run(d time.Duration) string {
	for end := s.now + d; s.now < end && s.wrong == ""; s.now += 5 * time.Millisecond {
		if s.rng.IntN(1500) == 0 {
			s.down = s.now + s.some(3000)
		}
		if len(s.late) > 0 && s.rng.IntN(200) == 0 {
			s.late[0]()
			s.late = s.late[1:]
		}
		for i, p := range s.list {
			switch fate := s.rng.IntN(4000); {
			case fate == 0:
				p.stopped = s.now + s.some(4000)
			case fate == 1 && !p.dead:
				p.dead = true
			case p.dead && fate < 40:
				s.list[i] = s.process(fmt.Sprint(p.name, "'"))
			}
			s.act(s.list[i])
		}
	}
	return s.wrong
}

// TestElection: in each term one process alone tells nodes something, none does after a later one has, and
// no facts that nodes were told are lost. RALLYPOINT_HISTORIES says in how many histories.
func TestElection(t *testing.T) {
	seeds := uint64(100)
	if text := os.Getenv("RALLYPOINT_HISTORIES"); text != "" {
		var err error
		if seeds, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	leaders := 0
	for seed := range seeds {
		s := newSim(t, seed, sound)
		if wrong := s.run(30 * time.Second); wrong != "" {
			t.Fatalf("seed %d: %s", seed, wrong)
		}
		if s.said == 0 {
			t.Errorf("seed %d: nothing was said", seed)
		}
		leaders += s.leads
	}
	if leaders < int(seeds)*2 {
		t.Errorf("only %d leaders in %d histories", leaders, seeds)
	}
}

// TestElectionNeedsItsRules: without one of them the simulation finds a history in which it is missed.
func TestElectionNeedsItsRules(t *testing.T) {
	for name, m := range map[string]mutant{"says what is not confirmed": saysUnconfirmed, "never falls silent": neverMute, "forgets the facts": forgetsFacts} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(400) {
				if newSim(t, seed, m).run(30*time.Second) != "" {
					return
				}
			}
			t.Error("no history shows it")
		})
	}
}

// TestOutageDeposesNobody: while the register is out of reach nobody can write, and nobody is taken for
// silent when it is back; nor is a leader by a process that was stopped itself.
func TestOutageDeposesNobody(t *testing.T) {
	r := &Record{RunID: "job", Group: "g", Term: 3, Leader: "l", Addr: "10.0.0.1:1", Beat: 7, Lease: simLease}
	look := func(c *core, at time.Duration) { c.looked(r, []byte("1"), at, at+time.Millisecond) }
	for name, gap := range map[string]func(c *core){
		"outage":  func(c *core) { c.failed(700 * time.Millisecond) },
		"stopped": func(*core) {},
	} {
		c := &core{runID: "job", ownLease: simLease}
		for at := time.Duration(0); at <= 200*time.Millisecond; at += 100 * time.Millisecond {
			look(c, at)
		}
		gap(c)
		look(c, 1500*time.Millisecond)
		if c.silent() {
			t.Errorf("%s: the leader is taken for silent", name)
		}
		for at := 1700 * time.Millisecond; at <= 2700*time.Millisecond; at += 200 * time.Millisecond {
			look(c, at)
		}
		if !c.silent() {
			t.Errorf("%s: the leader is not taken for silent a lease later", name)
		}
	}
}

// TestLongerLease: a node that wants a shorter lease than the leader's deposes nobody.
func TestLongerLease(t *testing.T) {
	c := &core{runID: "job", ownLease: simLease / 10}
	for at := time.Duration(0); at <= simLease/2; at += simLease / 20 {
		c.looked(&Record{RunID: "job", Group: "g", Term: 3, Leader: "l", Addr: "10.0.0.1:1", Beat: 7, Lease: simLease}, nil, at, at)
	}
	if c.silent() {
		t.Error("the leader is taken for silent")
	}
}

// TestRecord: what is read is what was written; nothing else is taken for a record.
func TestRecord(t *testing.T) {
	full := Record{
		RunID: "job", Group: "g", Term: 3, Leader: "l", Node: "n", Addr: "[::1]:29400", Machine: "m", Beat: 9, Lease: time.Second, Phase: Over,
		Facts: factsOf(7), Ended: &rendezvous.Ended{Closing: rendezvous.Closing{Kind: rendezvous.ClosedSuccess, By: "n", Reason: "done"}, For: time.Minute},
	}
	b, err := full.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(b)
	if err != nil || fmt.Sprintf("%+v %+v", *got.Ended, got.Facts) != fmt.Sprintf("%+v %+v", *full.Ended, full.Facts) || got.Addr != full.Addr || got.Term != 3 || got.Phase != Over || got.Lease != time.Second {
		t.Errorf("%+v, %v", got, err)
	}
	for i := range b {
		if _, err := Decode(b[:i]); err == nil {
			t.Errorf("%d of %d bytes are taken for a record", i, len(b))
		}
	}
	for what, change := range map[string]func(*Record){
		"no port": func(r *Record) { r.Addr = "10.0.0.1" }, "a port that is none": func(r *Record) { r.Addr = "10.0.0.1:0" },
		"a control character": func(r *Record) { r.Addr = "a\x1bb:1" }, "one in the node": func(r *Record) { r.Node = "a\x1b[2J" }, "no term": func(r *Record) { r.Term = 0 }, "an endless term": func(r *Record) { r.Term = 1 << 60 },
		"no lease": func(r *Record) { r.Lease = 0 }, "no such phase": func(r *Record) { r.Phase = 9 }, "no leader": func(r *Record) { r.Leader = "" },
	} {
		r := full
		change(&r)
		b, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(b); err == nil {
			t.Errorf("a record with %s is taken", what)
		}
	}
}

// FuzzDecode: no bytes from a register do harm.
func FuzzDecode(f *testing.F) {
	r := Record{RunID: "job", Group: "g", Term: 3, Leader: "l", Addr: "10.0.0.1:1", Lease: time.Second, Facts: factsOf(7)}
	b, _ := r.Encode()
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) { _, _ = Decode(b) })
}
