package rendezvous

import "rallypoint/internal/pack"

// Limits of what a record holds.
const (
	maxText    = 1 << 20 // errors, reasons and progress, which name a bounded number of nodes
	maxValue   = 1 << 30 // of the agents' keys; the frame or file it comes in bounds it, too
	maxDropped = 64
)

// PackError writes an error as two values; nil has the code 0.
func PackError(p *pack.Packer, err *Error) {
	if err == nil {
		p.Int(0)
		p.None()
		return
	}
	p.Int(int(err.Code))
	p.Text(err.Text)
}

// UnpackError reads what PackError wrote.
func UnpackError(u *pack.Unpacker) *Error {
	code, text := u.Int(), u.Text(maxText)
	if code == 0 || u.Err() != nil {
		return nil
	}
	return &Error{Code: Code(code), Text: text}
}

// packName writes what is read with MaxNameLen.
func packName[T ~string](p *pack.Packer, name T) {
	p.Fit(len(name), MaxNameLen, "bytes of a name")
	p.Text(string(name))
}

func packNames(p *pack.Packer, list []string) {
	p.List(len(list))
	for _, name := range list {
		packName(p, name)
	}
}

// PackPolicy writes a policy.
func PackPolicy(p *pack.Packer, v Policy) {
	p.List(13)
	p.Int(v.Min)
	p.Int(v.Max)
	p.Int(v.NodeUnit)
	p.Int(v.Target)
	p.Duration(v.LastCallTimeout)
	p.Duration(v.QuietPeriod)
	p.Duration(v.RegroupTimeout)
	p.Duration(v.AdmitDelay)
	p.Duration(v.LeaseTimeout)
	p.Duration(v.ReconnectGrace)
	p.Duration(v.ClosedFor)
	p.Int(v.Segment)
	p.Bool(v.NoQuorum)
}

// UnpackPolicy reads what PackPolicy wrote.
func UnpackPolicy(u *pack.Unpacker) Policy {
	u.Open()
	v := Policy{
		Min: u.Int(), Max: u.Int(), NodeUnit: u.Int(), Target: u.Int(),
		LastCallTimeout: u.Duration(), QuietPeriod: u.Duration(), RegroupTimeout: u.Duration(),
		AdmitDelay: u.Duration(), LeaseTimeout: u.Duration(), ReconnectGrace: u.Duration(),
		ClosedFor: u.Duration(), Segment: u.Int(), NoQuorum: u.Bool(),
	}
	u.Close()
	return v
}

// PackCommand writes a command as two values.
func PackCommand(p *pack.Packer, c Command) {
	p.Cut(c.Digest, MaxNameLen)
	p.Cut(c.Text, MaxNameLen)
}

// UnpackCommand reads what PackCommand wrote.
func UnpackCommand(u *pack.Unpacker) Command {
	return Command{Digest: u.Text(MaxNameLen), Text: u.Text(MaxNameLen)}
}

// PackLastRound writes what a node says of its last round.
func PackLastRound(p *pack.Packer, v LastRound) {
	p.List(9)
	packName(p, v.Generation)
	p.Uint(v.Round)
	p.Int(v.Rank)
	p.Int(v.World)
	p.Int(v.HostRank)
	p.Bool(v.Finished)
	packFacts(p, v.Facts)
	packDirectiveReports(p, v.Reports)
	packName(p, v.Store)
}

// UnpackLastRound reads what PackLastRound wrote.
func UnpackLastRound(u *pack.Unpacker) LastRound {
	u.Open()
	v := LastRound{
		Generation: u.Text(MaxNameLen), Round: u.Uint(), Rank: u.Int(), World: u.Int(),
		HostRank: u.IntOr(-1), Finished: u.Bool(), Facts: unpackFacts(u),
		Reports: unpackDirectiveReports(u), Store: u.Text(MaxNameLen),
	}
	u.Close()
	return v
}

// PackMembershipUpdate writes a node's view.
func PackMembershipUpdate(p *pack.Packer, v MembershipUpdate) {
	p.List(9)
	p.Int(v.Waiting)
	p.Bool(v.Closed)
	p.Text(v.Reason)
	packRoundStop(p, v.Stop)
	packFacts(p, v.Facts)
	packDirectiveNotice(p, v.Directive)
	p.Bool(v.Requeue)
	p.Bool(v.OnlyLost)
	p.Bool(v.Planned)
}

// UnpackMembershipUpdate reads what PackMembershipUpdate wrote.
func UnpackMembershipUpdate(u *pack.Unpacker) MembershipUpdate {
	u.Open()
	v := MembershipUpdate{Waiting: u.Int(), Closed: u.Bool(), Reason: u.Text(maxText), Stop: unpackRoundStop(u)}
	v.Facts = unpackFacts(u)
	v.Directive = unpackDirectiveNotice(u)
	v.Requeue, v.OnlyLost, v.Planned = u.Bool(), u.Bool(), u.Bool()
	u.Close()
	return v
}

// resultKind numbers the results of a Reply; append-only.
type resultKind uint64

const (
	resultNone resultKind = iota
	resultOutcome
	resultKey
	resultWithdrawn
)

// PackResult writes a result as two values: its kind and its list.
func PackResult(p *pack.Packer, r Result) {
	switch v := r.(type) {
	case Outcome:
		p.Uint(uint64(resultOutcome))
		p.List(11)
		p.Text(v.Generation)
		p.Uint(v.Round)
		p.Int(v.Rank)
		p.Int(v.World)
		p.Int(v.HostRank)
		p.Text(v.StoreAddr)
		p.Int(v.StorePort)
		p.Texts(v.Dropped)
		p.Bool(v.ByDirective)
		p.Text(v.Domains)
		p.Text(v.Commands)
	case KeyResult:
		p.Uint(uint64(resultKey))
		p.List(4)
		p.Values(v.Values)
		p.Texts(v.Keys)
		p.Int64(v.Number)
		p.Bool(v.Ready)
	case Withdrawn:
		p.Uint(uint64(resultWithdrawn))
		p.List(4)
		p.Bool(v.Completed)
		p.Text(v.Progress.Headline)
		p.Text(v.Progress.Detail)
		p.Bool(v.Progress.Spare)
	default:
		p.Uint(uint64(resultNone))
		p.List(0)
	}
}

// UnpackResult reads what PackResult wrote.
func UnpackResult(u *pack.Unpacker) Result {
	kind := resultKind(u.Uint())
	u.Open()
	defer u.Close()
	switch kind {
	case resultNone:
		return nil
	case resultOutcome:
		return Outcome{
			Generation: u.Text(MaxNameLen), Round: u.Uint(), Rank: u.Int(), World: u.Int(), HostRank: u.IntOr(-1),
			StoreAddr: u.Text(MaxNameLen), StorePort: u.Int(), Dropped: u.Texts(maxDropped, maxText),
			ByDirective: u.Bool(), Domains: u.Text(maxDomains), Commands: u.Text(maxText),
		}
	case resultKey:
		return KeyResult{
			Values: u.Values(maxValue, maxValue), Keys: u.Texts(maxValue, maxValue), Number: u.Int64(), Ready: u.Bool(),
		}
	case resultWithdrawn:
		return Withdrawn{
			Completed: u.Bool(),
			Progress:  Progress{Headline: u.Text(maxText), Detail: u.Text(maxText), Spare: u.Bool()},
		}
	}
	u.Fail("a result of kind %d", kind)
	return nil
}

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

func packDirectiveReports(p *pack.Packer, list []DirectiveReport) {
	p.Fit(len(list), MaxDirectiveReports, "reports of directives")
	p.List(len(list))
	for _, r := range list {
		p.List(3)
		packName(p, r.ID)
		p.Int64(r.Step)
		p.Bool(r.Saved)
	}
}

func unpackDirectiveReports(u *pack.Unpacker) []DirectiveReport {
	return pack.Lists(u, MaxDirectiveReports, "reports of directives", func() DirectiveReport {
		return DirectiveReport{ID: u.Text(MaxNameLen), Step: u.Int64(), Saved: u.Bool()}
	})
}

// packRoundStop writes an announced stop; none is nil.
func packRoundStop(p *pack.Packer, v RoundStop) {
	if v.Round == 0 {
		p.None()
		return
	}
	p.List(5)
	p.Uint(v.Round)
	p.Int(v.Rank)
	p.Bool(v.Leaving)
	p.Text(v.Reason)
	p.Bool(v.Lost)
}

func unpackRoundStop(u *pack.Unpacker) (v RoundStop) {
	if u.Open() > 0 {
		v = RoundStop{Round: u.Uint(), Rank: u.Int(), Leaving: u.Bool(), Reason: u.Text(maxText), Lost: u.Bool()}
	}
	u.Close()
	return v
}

// EncodeFacts returns facts as the voters for a next host keep them.
func EncodeFacts(f Facts) []byte {
	return pack.Append(nil, func(p *pack.Packer) { packFacts(p, f) })
}

// DecodeFacts reads what EncodeFacts wrote.
func DecodeFacts(b []byte) (Facts, error) {
	if len(b) == 0 {
		return Facts{}, nil
	}
	u := pack.NewUnpacker(b)
	defer u.Release()
	f := unpackFacts(u)
	u.End()
	return f, u.Err()
}

func packFacts(p *pack.Packer, f Facts) {
	if f.Generation == "" {
		p.None()
		return
	}
	p.List(10)
	packName(p, f.Generation)
	packName(p, f.Origin)
	p.Uint(f.Round)
	p.Int(f.World)
	p.Int(f.HostRank)
	p.Bool(f.Finished)
	packRanks(p, f.FinishedHosts)
	c := f.Closed.cut()
	c.pack(p)
	packDirectiveFacts(p, f.Directives)
	p.Text(f.Domains)
}

func unpackFacts(u *pack.Unpacker) (f Facts) {
	if u.Open() > 0 {
		f = Facts{
			Generation: u.Text(MaxNameLen), Origin: u.Text(MaxNameLen), Round: u.Uint(), World: u.Int(),
			HostRank: u.IntOr(-1), Finished: u.Bool(), FinishedHosts: unpackRanks(u),
		}
		u.Open()
		f.Closed = Closing{Kind: ClosedKind(u.Int()), By: u.Text(maxClosingBy), Reason: u.Text(maxClosingReason), At: u.Time(), Commands: u.Text(maxClosingDigests)}
		u.Close()
		f.Directives = unpackDirectiveFacts(u)
		f.Domains = u.Text(maxDomains)
	}
	u.Close()
	return f
}

func packRanks(p *pack.Packer, ranks []int) {
	p.Fit(len(ranks), maxFinishedHosts, "hosts that have finished")
	p.List(len(ranks))
	for _, rank := range ranks {
		p.Int(rank)
	}
}

func unpackRanks(u *pack.Unpacker) []int {
	return pack.ListOf(u, maxFinishedHosts, "hosts that have finished", u.Int)
}

func packDirectiveFacts(p *pack.Packer, f DirectiveFacts) {
	if f.Seq == 0 {
		p.None()
		return
	}
	p.List(6)
	p.Uint(f.Seq)
	p.Int(f.Target)
	p.Fit(len(f.Standing), manyStanding, "directives that stand")
	p.List(len(f.Standing))
	for _, d := range f.Standing {
		p.List(11)
		packDirectFields(p, d.Direct)
		p.Uint(d.Round)
		p.Int64(d.Step)
	}
	p.Fit(len(f.Ended), maxEndedFacts, "directives that have ended")
	packNames(p, f.Ended)
	p.Fit(len(f.Drained), maxDirectiveFacts, "drained nodes")
	p.List(len(f.Drained))
	for _, d := range f.Drained {
		p.List(6)
		packName(p, d.Node)
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
		f.Standing = pack.Lists(u, manyStanding, "directives that stand", func() StandingFact {
			return StandingFact{Direct: unpackDirect(u), Round: u.Uint(), Step: u.Int64()}
		})
		f.Ended = u.Texts(maxEndedFacts, MaxNameLen)
		f.Drained = pack.Lists(u, maxDirectiveFacts, "drained nodes", func() DrainedFact {
			return DrainedFact{Node: u.Text(MaxNameLen), By: u.Text(MaxNameLen), Reason: u.Text(MaxNameLen), For: u.Duration(), Cause: DrainCause(u.Int()), Cordoned: u.Bool()}
		})
		f.EndedRound = u.Uint()
	}
	u.Close()
	return f
}

// packDirect writes what a directive says, as one list.
func packDirect(p *pack.Packer, d Direct) {
	p.List(9)
	packDirectFields(p, d)
}

func packDirectFields(p *pack.Packer, d Direct) {
	packName(p, d.ID)
	p.Int(int(d.Kind))
	p.Fit(len(d.Nodes), MaxDirectiveNodes, "nodes of a directive")
	packNames(p, d.Nodes)
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
