package rendezvous

import (
	"maps"
	"slices"

	"rallypoint/internal/pack"
)

// pack writes into a snapshot which directive stands, which do not any more, which
// nodes are drained, and what the members of the round have said.
func (ds *directives) pack(p *pack.Packer) {
	var standing []*Direct
	if ds.standing != nil {
		standing = append(standing, ds.standing)
	}
	p.List(10)
	p.List(len(standing))
	for _, d := range standing {
		d.code(pack.Coder{Out: p})
	}
	p.Texts(ds.past)
	p.List(len(ds.drained))
	for _, node := range slices.Sorted(maps.Keys(ds.drained)) {
		d := ds.drained[node]
		p.List(6)
		p.Text(d.Node)
		p.Text(d.By)
		p.Text(d.Reason)
		p.Duration(d.For)
		p.Int(int(d.Cause))
		p.Bool(d.Cordoned)
	}
	p.List(len(standing))
	for range standing {
		a := &ds.round.agreement
		p.List(4)
		p.Int(int(a.phase))
		p.Int64(a.step)
		p.Bytes(a.held.has)
		p.Bytes(a.saved.has)
	}
	p.Int(ds.forming.target)
	p.Uint(ds.seq)
	p.Bool(false) // a field of versions before 5
	p.Uint(ds.learned)
	p.Bool(ds.own)
	p.Uint(ds.endedRound)
}

// unpack comes after the members of the round.
func (ds *directives) unpack(u *pack.Unpacker) {
	var standing []*Direct
	u.Open()
	for range u.Each() {
		d := Direct{}
		d.code(pack.Coder{In: u})
		again := slices.ContainsFunc(standing, func(other *Direct) bool { return other.ID == d.ID })
		if u.Err() == nil && (!d.sound() || again || len(standing) == manyStanding) {
			u.Fail("directive %q cannot stand", d.ID)
		}
		standing = append(standing, &d)
	}
	ds.past = u.Texts(maxRemembered, maxText)
	for range u.Each() {
		u.Open()
		d := &DrainedFact{Node: u.Text(maxText), By: u.Text(maxText), Reason: u.Text(maxText), For: u.Duration(), Cause: DrainCause(u.Int()), Cordoned: u.Bool()}
		u.Close()
		ds.drained[d.Node] = d
	}
	said, asking := make([]agreement, len(standing)), 0
	for i := range u.Each() {
		u.Open()
		a := agreement{phase: agreementPhase(u.Int()), step: u.Int64(), held: ds.round.unpackRankSet(u), saved: ds.round.unpackRankSet(u)}
		u.Close()
		if a.phase == phaseAsking {
			asking++
		}
		if i >= len(standing) || a.phase < 0 || a.phase >= agreementPhases || a.step < -1 || asking > 1 {
			u.Fail("directive %d is agreed on in the way %d", i, a.phase)
			break
		}
		said[i] = a
	}
	ds.forming.target, ds.seq = u.Int(), u.Uint()
	_ = u.Bool()
	ds.learned, ds.own, ds.endedRound = u.Uint(), u.Bool(), u.Uint()
	if ds.forming.target < 0 || ds.forming.target > MaxNodes {
		u.Fail("the target is %d", ds.forming.target)
	}
	u.Close()
	if u.Err() == nil {
		ds.keepOne(standing, said)
	}
}

// keepOne has one of several directives stand, by the rule for those that are given one after
// the other: a state from before version 5 may hold several.
func (ds *directives) keepOne(standing []*Direct, said []agreement) {
	if len(standing) == 1 {
		ds.standing, ds.round.agreement = standing[0], said[0]
		return
	}
	for _, kind := range []TimerKind{TimerDirective, TimerAgree, timerTurn} {
		ds.out.stopAll(kind)
	}
	for i, d := range standing {
		if ds.standing != nil && ds.standsAgainst(d) != "" {
			ds.remember(d.ID)
			continue
		}
		ds.stand(*d)
		if ds.as(d.ID) != nil && said[i].phase != phaseAsking { // it is asked for again
			ds.round.agreement = said[i]
		}
	}
	ds.out.effects = nil
}

func (r *round) unpackRankSet(u *pack.Unpacker) (set ranks) {
	has := u.Bytes(MaxNodes)
	if len(has) > (len(r.participants)+7)/8 {
		u.Fail("a set of %d members of a round of %d", 8*len(has), len(r.participants))
		return set
	}
	set.has = has
	for _, s := range r.participants {
		if s.state == participantRunning {
			set.count(s.rank, 1)
		}
	}
	return set
}
