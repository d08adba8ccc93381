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

// codeName is a text of at most MaxNameLen bytes.
func codeName[T ~string](c pack.Coder, name *T) {
	if c.Out == nil {
		*name = T(c.In.Text(MaxNameLen))
		return
	}
	c.Out.Fit(len(*name), MaxNameLen, "bytes of a name")
	c.Out.Text(string(*name))
}

// codeSaid is what people have said, or are told: it is cut.
func codeSaid(c pack.Coder, texts ...*string) {
	for _, text := range texts {
		c.Cut(text, MaxNameLen)
	}
}

// Code codes a policy.
func (p *Policy) Code(c pack.Coder) {
	c.Open(13)
	c.Int(&p.Min)
	c.Int(&p.Max)
	c.Int(&p.NodeUnit)
	c.Int(&p.Target)
	c.Duration(&p.LastCallTimeout)
	c.Duration(&p.QuietPeriod)
	c.Duration(&p.RegroupTimeout)
	c.Duration(&p.AdmitDelay)
	c.Duration(&p.LeaseTimeout)
	c.Duration(&p.ReconnectGrace)
	c.Duration(&p.ClosedFor)
	c.Int(&p.Segment)
	c.Bool(&p.NoQuorum)
	c.Close()
}

// Code codes a command as two values.
func (c *Command) Code(to pack.Coder) { codeSaid(to, &c.Digest, &c.Text) }

// Code codes the last round that a node reports.
func (l *LastRound) Code(c pack.Coder) {
	c.Open(9)
	codeName(c, &l.Generation)
	c.Uint(&l.Round)
	c.Int(&l.Rank)
	c.Int(&l.World)
	c.IntOr(&l.HostRank, -1)
	c.Bool(&l.Finished)
	l.Facts.code(c)
	pack.CodeList(c, &l.Reports, MaxDirectiveReports, "reports of directives", func(r *DirectiveReport) {
		c.Open(3)
		codeName(c, &r.ID)
		c.Int64(&r.Step)
		c.Bool(&r.Saved)
		c.Close()
	})
	codeName(c, &l.Store)
	c.Close()
}

// Code codes a node's view.
func (m *MembershipUpdate) Code(c pack.Coder) {
	c.Open(9)
	c.Int(&m.Waiting)
	c.Bool(&m.Closed)
	c.Text(&m.Reason, maxText)
	m.Stop.code(c)
	m.Facts.code(c)
	m.Directive.code(c)
	c.Bool(&m.Requeue)
	c.Bool(&m.OnlyLost)
	c.Bool(&m.Planned)
	c.Close()
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
	c := pack.Coder{Out: p}
	switch v := r.(type) {
	case Outcome:
		p.Uint(uint64(resultOutcome))
		v.code(c)
	case KeyResult:
		p.Uint(uint64(resultKey))
		v.code(c)
	case Withdrawn:
		p.Uint(uint64(resultWithdrawn))
		v.code(c)
	default:
		p.Uint(uint64(resultNone))
		p.List(0)
	}
}

// UnpackResult reads what PackResult wrote.
func UnpackResult(u *pack.Unpacker) Result {
	c := pack.Coder{In: u}
	switch kind := resultKind(u.Uint()); kind {
	case resultOutcome:
		var o Outcome
		o.code(c)
		return o
	case resultKey:
		var k KeyResult
		k.code(c)
		return k
	case resultWithdrawn:
		var w Withdrawn
		w.code(c)
		return w
	default:
		u.Open()
		u.Close()
		if kind != resultNone {
			u.Fail("a result of kind %d", kind)
		}
		return nil
	}
}

func (o *Outcome) code(c pack.Coder) {
	c.Open(11)
	c.Text(&o.Generation, MaxNameLen)
	c.Uint(&o.Round)
	c.Int(&o.Rank)
	c.Int(&o.World)
	c.IntOr(&o.HostRank, -1)
	c.Text(&o.StoreAddr, MaxNameLen)
	c.Int(&o.StorePort)
	c.Texts(&o.Dropped, maxDropped, maxText)
	c.Bool(&o.ByDirective)
	c.Text(&o.Domains, maxDomains)
	c.Text(&o.Commands, maxText)
	c.Close()
}

func (k *KeyResult) code(c pack.Coder) {
	c.Open(4)
	c.Values(&k.Values, maxValue, maxValue)
	c.Texts(&k.Keys, maxValue, maxValue)
	c.Int64(&k.Number)
	c.Bool(&k.Ready)
	c.Close()
}

func (w *Withdrawn) code(c pack.Coder) {
	c.Open(4)
	c.Bool(&w.Completed)
	c.Text(&w.Progress.Headline, maxText)
	c.Text(&w.Progress.Detail, maxText)
	c.Bool(&w.Progress.Spare)
	c.Close()
}

func (dn *DirectiveNotice) code(c pack.Coder) {
	if c.Maybe(dn.ID != "", 11) {
		c.Text(&dn.ID, MaxNameLen)
		c.Int((*int)(&dn.Kind))
		c.Bool(&dn.Named)
		c.Text(&dn.Text, maxText)
		c.Duration(&dn.Within)
		c.Uint(&dn.Round)
		c.Bool(&dn.Agreed)
		c.Int64(&dn.Step)
		c.Int(&dn.Target)
		codeSaid(c, &dn.By, &dn.Reason)
	}
	c.Close()
}

// code codes an announced stop; none is nil.
func (rs *RoundStop) code(c pack.Coder) {
	if c.Maybe(rs.Round != 0, 5) {
		c.Uint(&rs.Round)
		c.Int(&rs.Rank)
		c.Bool(&rs.Leaving)
		c.Text(&rs.Reason, maxText)
		c.Bool(&rs.Lost)
	}
	c.Close()
}

// EncodeFacts returns facts as the voters for a next host keep them.
func EncodeFacts(f Facts) []byte {
	return pack.Append(nil, func(p *pack.Packer) { f.code(pack.Coder{Out: p}) })
}

// DecodeFacts reads what EncodeFacts wrote.
func DecodeFacts(b []byte) (f Facts, err error) {
	if len(b) == 0 {
		return f, nil
	}
	u := pack.NewUnpacker(b)
	defer u.Release()
	f.code(pack.Coder{In: u})
	u.End()
	return f, u.Err()
}

func (f *Facts) code(c pack.Coder) {
	if c.Maybe(f.Generation != "", 10) {
		codeName(c, &f.Generation)
		codeName(c, &f.Origin)
		c.Uint(&f.Round)
		c.Int(&f.World)
		c.IntOr(&f.HostRank, -1)
		c.Bool(&f.Finished)
		codeRanks(c, &f.FinishedHosts)
		c.Open(5)
		c.Int((*int)(&f.Closed.Kind))
		c.Cut(&f.Closed.By, maxClosingBy)
		c.Cut(&f.Closed.Reason, maxClosingReason)
		c.Time(&f.Closed.At)
		c.Text(&f.Closed.Commands, maxClosingDigests)
		c.Close()
		f.Directives.code(c)
		c.Text(&f.Domains, maxDomains)
	}
	c.Close()
}

func codeRanks(c pack.Coder, ranks *[]int) {
	pack.CodeList(c, ranks, maxFinishedHosts, "hosts that have finished", c.Int)
}

func (df *DirectiveFacts) code(c pack.Coder) {
	if c.Maybe(df.Seq != 0, 6) {
		c.Uint(&df.Seq)
		c.Int(&df.Target)
		pack.CodeList(c, &df.Standing, manyStanding, "directives that stand", func(s *StandingFact) {
			c.Open(11)
			s.codeFields(c)
			c.Uint(&s.Round)
			c.Int64(&s.Step)
			c.Close()
		})
		pack.CodeList(c, &df.Ended, maxEndedFacts, "directives that have ended", func(id *string) { codeName(c, id) })
		pack.CodeList(c, &df.Drained, maxDirectiveFacts, "drained nodes", func(d *DrainedFact) {
			c.Open(6)
			codeName(c, &d.Node)
			codeSaid(c, &d.By, &d.Reason)
			c.Duration(&d.For)
			c.Int((*int)(&d.Cause))
			c.Bool(&d.Cordoned)
			c.Close()
		})
		c.Uint(&df.EndedRound)
	}
	c.Close()
}

// code codes what a directive says, as one list.
func (d *Direct) code(c pack.Coder) {
	c.Open(9)
	d.codeFields(c)
	c.Close()
}

func (d *Direct) codeFields(c pack.Coder) {
	codeName(c, &d.ID)
	c.Int((*int)(&d.Kind))
	pack.CodeList(c, &d.Nodes, MaxDirectiveNodes, "nodes of a directive", func(node *string) { codeName(c, node) })
	c.Duration(&d.Within)
	c.Duration(&d.For)
	codeSaid(c, &d.By, &d.Reason)
	c.Time(&d.At)
	c.Int(&d.Target)
}
