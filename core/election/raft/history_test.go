package raft

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/cryptotest"
	"time"
)

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
