package raft

import (
	"slices"
	"time"
)

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
