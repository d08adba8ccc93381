package raft

import (
	"slices"
	"strconv"
)

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
