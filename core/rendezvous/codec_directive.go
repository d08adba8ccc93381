package rendezvous

import (
	"maps"
	"slices"
	"time"

	"rallypoint/internal/pack"
)

func packDirectiveNotice(p *pack.Packer, v DirectiveNotice) {
	if v.ID == "" {
		p.None()
		return
	}
	p.List(11)
	p.Text(v.ID)
	p.Int(int(v.Kind))
	p.Bool(v.Named)
	p.Text(v.Text)
	p.Duration(v.Within)
	p.Uint(v.Round)
	p.Bool(v.Agreed)
	p.Int64(v.Step)
	p.Int(v.Target)
	p.Cut(v.By, MaxNameLen)
	p.Cut(v.Reason, MaxNameLen)
}

func unpackDirectiveNotice(u *pack.Unpacker) (v DirectiveNotice) {
	if u.Open() > 0 {
		v = DirectiveNotice{
			ID: u.Text(MaxNameLen), Kind: DirectiveKind(u.Int()), Named: u.Bool(), Text: u.Text(maxText), Within: u.Duration(),
			Round: u.Uint(), Agreed: u.Bool(), Step: u.Int64(), Target: u.Int(),
			By: u.Text(MaxNameLen), Reason: u.Text(MaxNameLen),
		}
	}
	u.Close()
	return v
}

// packDirect writes what a directive says, as one list.
func packDirect(p *pack.Packer, d Direct) {
	p.List(9)
	packDirectFields(p, d)
}

func packDirectFields(p *pack.Packer, d Direct) {
	p.Text(d.ID)
	p.Int(int(d.Kind))
	p.Texts(d.Nodes)
	p.Duration(d.Within)
	p.Duration(d.For)
	p.Cut(d.By, MaxNameLen)
	p.Cut(d.Reason, MaxNameLen)
	p.Time(d.At)
	p.Int(d.Target)
}

// unpackDirect reads the values of packDirect from a list that is open.
func unpackDirect(u *pack.Unpacker) Direct {
	return Direct{
		ID: u.Text(MaxNameLen), Kind: DirectiveKind(u.Int()), Nodes: u.Texts(MaxDirectiveNodes, MaxNameLen),
		Within: u.Duration(), For: u.Duration(), By: u.Text(MaxNameLen), Reason: u.Text(MaxNameLen), At: u.Time(), Target: u.Int(),
	}
}

// oversize returns an error for a directive that no log may hold.
func (d Direct) oversize() error {
	if len(d.Nodes) > MaxDirectiveNodes {
		return Errorf(CodeTooLarge, "a directive about %d nodes, at most %d are allowed", len(d.Nodes), MaxDirectiveNodes)
	}
	return longName(append([]string{d.ID}, d.Nodes...))
}

// oversize returns an error for a report that no log may hold.
func (l LastRound) oversize() error {
	if hosts := len(l.Facts.FinishedHosts); hosts > maxFinishedHosts {
		return Errorf(CodeTooLarge, "a report of %d hosts that have finished, at most %d are possible", hosts, maxFinishedHosts)
	}
	f := l.Facts.Directives
	if len(l.Reports) > MaxDirectiveReports || len(f.Standing) > manyStanding || len(f.Ended) > maxEndedFacts || len(f.Drained) > maxDirectiveFacts {
		return Errorf(CodeTooLarge, "a report of %d directives, %d that stand, %d that have ended and %d drained nodes",
			len(l.Reports), len(f.Standing), len(f.Ended), len(f.Drained))
	}
	names := append([]string{l.Generation, l.Facts.Generation, l.Facts.Origin, l.Store}, f.Ended...)
	for _, r := range l.Reports {
		names = append(names, r.ID)
	}
	for _, d := range f.Drained {
		names = append(names, d.Node)
	}
	for _, d := range f.Standing {
		if err := d.oversize(); err != nil {
			return err
		}
	}
	return longName(names)
}

// longName returns an error for the first name that is longer than a log may hold.
func longName(names []string) error {
	for _, name := range names {
		if len(name) > MaxNameLen {
			return Errorf(CodeTooLarge, "a name of %d bytes, at most %d are allowed: %.50q…", len(name), MaxNameLen, name)
		}
	}
	return nil
}

func packDirectiveReports(p *pack.Packer, list []DirectiveReport) {
	p.List(len(list))
	for _, r := range list {
		p.List(3)
		p.Text(r.ID)
		p.Int64(r.Step)
		p.Bool(r.Saved)
	}
}

func unpackDirectiveReports(u *pack.Unpacker) (list []DirectiveReport) {
	for i := range openEach(u) {
		if i == MaxDirectiveReports {
			u.Fail("more than %d reports of directives", MaxDirectiveReports)
			break
		}
		u.Open()
		list = append(list, DirectiveReport{ID: u.Text(MaxNameLen), Step: u.Int64(), Saved: u.Bool()})
		u.Close()
	}
	return list
}

// manyStanding is how many directives could stand at a time before state version 5.
const manyStanding = 64

// packDirectives writes into a snapshot which directive stands, which do not any more, which
// nodes are drained, and what the members of the round have said.
func (ds *directives) pack(p *pack.Packer) {
	var standing []*directive
	if ds.standing != nil {
		standing = append(standing, ds.standing)
	}
	p.List(10)
	p.List(len(standing))
	for _, d := range standing {
		packDirect(p, d.Direct)
	}
	p.Texts(ds.past)
	p.List(len(ds.drained))
	for _, node := range slices.Sorted(maps.Keys(ds.drained)) {
		p.List(6)
		p.Text(node)
		p.Text(ds.drained[node].by)
		p.Text(ds.drained[node].reason)
		p.Duration(ds.drained[node].away)
		p.Int(int(ds.drained[node].cause))
		p.Bool(ds.drained[node].cordoned)
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

// unpackDirectives comes after the members of the round.
func (ds *directives) unpack(u *pack.Unpacker) {
	var standing []*directive
	u.Open()
	for range openEach(u) {
		u.Open()
		d := unpackDirect(u)
		u.Close()
		again := slices.ContainsFunc(standing, func(other *directive) bool { return other.ID == d.ID })
		if u.Err() == nil && (!d.sound() || again || len(standing) == manyStanding) {
			u.Fail("directive %q cannot stand", d.ID)
		}
		standing = append(standing, &directive{Direct: d})
	}
	ds.past = u.Texts(maxRemembered, maxText)
	for range openEach(u) {
		u.Open()
		node, d := u.Text(maxText), &drained{by: u.Text(maxText), reason: u.Text(maxText), away: u.Duration(), cause: DrainCause(u.Int()), cordoned: u.Bool()}
		u.Close()
		ds.drained[node] = d
	}
	said, asking := make([]agreement, len(standing)), 0
	for i := range openEach(u) {
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
func (ds *directives) keepOne(standing []*directive, said []agreement) {
	if len(standing) == 1 {
		ds.standing, ds.round.agreement = standing[0], said[0]
		return
	}
	for _, kind := range []TimerKind{TimerDirective, TimerAgree, timerTurn} {
		ds.out.stopAll(kind)
	}
	for i, d := range standing {
		if ds.standing != nil && ds.standsAgainst(&d.Direct) != "" {
			ds.remember(d.ID)
			continue
		}
		ds.stand(d.Direct)
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

// DirectiveFacts are the directives as a successor has to know them.
type DirectiveFacts struct {
	Seq      uint64         // of the last change; what has a higher one is newer. 0: there is none
	Target   int            // of the last scale; 0: there was none
	Standing []StandingFact // at most one; several of a release before
	Ended    []string       // ids of the last ones that do not stand any more
	Drained  []DrainedFact

	EndedRound uint64 `json:",omitzero"` // the last one that a drain or a scale has ended; 0: there is none
}

// StandingFact is a directive that stands.
type StandingFact struct {
	Direct
	Round uint64 // in which its step was agreed, if that is the last one; else 0
	Step  int64  // agreed in it
}

// DrainedFact is a node that is not admitted. How much of its time has passed is not known
// to a successor: it begins again.
type DrainedFact struct {
	Node   string
	By     string
	Reason string
	For    time.Duration
	Cause  DrainCause `json:",omitzero"`

	Cordoned bool `json:",omitzero"` // see Cordon
}

// Bounds of what facts say of directives.
const (
	maxDirectiveFacts = 16 << 10 // bytes, of what stands and who is drained
	maxEndedFacts     = 16
)

func (df DirectiveFacts) equal(g DirectiveFacts) bool { return df.Seq == g.Seq }

// possible reports whether a run of at most so many nodes can have directives like that.
func (df DirectiveFacts) possible(round uint64, most int) bool {
	if len(df.Standing) > manyStanding || len(df.Ended) > maxEndedFacts || df.Target < 0 || df.Target > most || df.Seq > maxRound || df.EndedRound > round {
		return false
	}
	ids := map[string]bool{}
	for _, d := range df.Standing {
		if !d.sound() || ids[d.ID] || d.Round != 0 && d.Round != round || d.Step < -1 || d.Within > MaxTimeout || d.For > MaxTimeout {
			return false
		}
		ids[d.ID] = true
	}
	for _, d := range df.Drained {
		if d.For < 0 || d.For > MaxTimeout {
			return false
		}
	}
	return true
}

func packDirectiveFacts(p *pack.Packer, f DirectiveFacts) {
	if f.Seq == 0 {
		p.None()
		return
	}
	p.List(6)
	p.Uint(f.Seq)
	p.Int(f.Target)
	p.List(len(f.Standing))
	for _, d := range f.Standing {
		p.List(11)
		packDirectFields(p, d.Direct)
		p.Uint(d.Round)
		p.Int64(d.Step)
	}
	p.Texts(f.Ended)
	p.List(len(f.Drained))
	for _, d := range f.Drained {
		p.List(6)
		p.Text(d.Node)
		p.Cut(d.By, MaxNameLen)
		p.Cut(d.Reason, MaxNameLen)
		p.Duration(d.For)
		p.Int(int(d.Cause))
		p.Bool(d.Cordoned)
	}
	p.Uint(f.EndedRound)
}

func unpackDirectiveFacts(u *pack.Unpacker) (f DirectiveFacts) {
	if u.Open() > 0 {
		f.Seq, f.Target = u.Uint(), u.Int()
		for i := range openEach(u) {
			if i == manyStanding {
				u.Fail("more than %d directives", manyStanding)
				break
			}
			u.Open()
			f.Standing = append(f.Standing, StandingFact{Direct: unpackDirect(u), Round: u.Uint(), Step: u.Int64()})
			u.Close()
		}
		f.Ended = u.Texts(maxEndedFacts, MaxNameLen)
		for i := range openEach(u) {
			if i == maxDirectiveFacts {
				u.Fail("too many drained nodes")
				break
			}
			u.Open()
			f.Drained = append(f.Drained, DrainedFact{Node: u.Text(MaxNameLen), By: u.Text(MaxNameLen), Reason: u.Text(MaxNameLen), For: u.Duration(), Cause: DrainCause(u.Int()), Cordoned: u.Bool()})
			u.Close()
		}
		f.EndedRound = u.Uint()
	}
	u.Close()
	return f
}
