package rendezvous

import "rallypoint/internal/pack"

// Limits of what a request holds.
const (
	MaxKeyLen   = 64 << 10 // bytes of a key
	maxValueLen = 2 << 20  // bytes of a value
	MaxKeys     = 1 << 16  // keys and values of one request, each
)

// PackArguments writes what an event says, as one list; the common part of a
// request is not in it.
func PackArguments(p *pack.Packer, ev Event) { codeArguments(pack.Coder{Out: p}, OpOf(ev), ev) }

// UnpackArguments reads what PackArguments wrote; nil for an operation that is
// not known to this version.
func UnpackArguments(u *pack.Unpacker, op Op) Event {
	return codeArguments(pack.Coder{In: u}, op, nil)
}

// codeArguments writes an event, or reads and returns one, whose operation that is.
func codeArguments(c pack.Coder, op Op, ev Event) Event {
	defer c.Close()
	if op.IsRequest() {
		return codeAsked(c, op, ev)
	}
	return codeOther(c, op, ev)
}

// codeAsked codes a request. A server's goroutine for each node calls it, but hardly ever
// codeOther, for whose events its stack would have to have room.
func codeAsked(c pack.Coder, op Op, ev Event) Event {
	switch op {
	case OpJoin:
		ev, _ := ev.(Join)
		c.Open(4)
		c.IntOr(&ev.NodeRank, -1)
		c.IntOr(&ev.RankHint, -1)
		codeName(c, &ev.StoreAddr)
		c.Int(&ev.StorePort)
		return ev
	case OpWithdraw:
		ev, _ := ev.(Withdraw)
		c.Open(1)
		c.Uint(&ev.Join)
		return ev
	case OpLeave:
		ev, _ := ev.(Leave)
		c.Open(3)
		c.Int((*int)(&ev.Ending))
		codeSaid(c, &ev.Reason)
		c.Time(&ev.At)
		return ev
	case OpClose:
		ev, _ := ev.(CloseRun)
		c.Open(4)
		codeSaid(c, &ev.By, &ev.Reason)
		c.Bool(&ev.Stop)
		c.Time(&ev.At)
		return ev
	case OpKey:
		ev, _ := ev.(KeyRequest)
		if c.Out != nil {
			ev.fit(c.Out)
		}
		c.Open(5)
		c.Uint(&ev.Round)
		c.Int((*int)(&ev.Op))
		c.Texts(&ev.Keys, MaxKeys, MaxKeyLen)
		c.Values(&ev.Values, MaxKeys, maxValueLen)
		c.Int64(&ev.Amount)
		return ev
	case OpAnnounceStop:
		ev, _ := ev.(AnnounceStop)
		c.Open(5)
		codeName(c, &ev.Generation)
		c.Uint(&ev.Round)
		c.Bool(&ev.Leaving)
		codeSaid(c, &ev.Reason)
		c.Duration(&ev.Away)
		return ev
	case OpReportDirective:
		ev, _ := ev.(ReportDirective)
		c.Open(5)
		codeName(c, &ev.ID)
		codeName(c, &ev.Generation)
		c.Uint(&ev.Round)
		c.Int64(&ev.Step)
		c.Bool(&ev.Saved)
		return ev
	case OpGiveDirective:
		ev, _ := ev.(GiveDirective)
		c.Open(2)
		ev.Directive.code(c)
		c.Bool(&ev.Unfit)
		return ev
	case OpFinish:
		ev = Finish{}
	case OpAwaitPeers:
		ev = AwaitPeers{}
	}
	c.Open(0)
	return ev
}

// fit makes a request that is too large for its reader an error of the writer.
func (k *KeyRequest) fit(p *pack.Packer) {
	p.Fit(len(k.Keys), MaxKeys, "keys of a request")
	for _, key := range k.Keys {
		p.Fit(len(key), MaxKeyLen, "bytes of a key")
	}
	p.Fit(len(k.Values), MaxKeys, "values of a request")
	for _, value := range k.Values {
		p.Fit(len(value), maxValueLen, "bytes of a value")
	}
}

func codeOther(c pack.Coder, op Op, ev Event) Event {
	switch op {
	case opHello:
		ev, _ := ev.(Hello)
		c.Open(15)
		codeName(c, &ev.Session)
		codeName(c, &ev.Node)
		c.Uint(&ev.Incarnation)
		c.Bool(&ev.Named)
		codeSaid(c, &ev.Label)
		ev.Policy.Code(c)
		ev.LastRound.Code(c)
		c.Bool(&ev.InHost)
		codeName(c, &ev.SeenAddr)
		codeName(c, &ev.ServerAddr)
		c.Bool(&ev.BeginAgain)
		codeSaid(c, &ev.HostName)
		codeName(c, &ev.Topology)
		ev.Command.Code(c)
		return ev
	case opDisconnect:
		ev, _ := ev.(Disconnect)
		c.Open(2)
		codeName(c, &ev.Session)
		c.Bool(&ev.Dead)
		return ev
	case opLeaseExpired:
		ev, _ := ev.(LeaseExpired)
		c.Open(1)
		codeName(c, &ev.Session)
		return ev
	case opEvict:
		ev, _ := ev.(Evict)
		c.Open(3)
		codeName(c, &ev.Node)
		codeSaid(c, &ev.By, &ev.Reason)
		return ev
	case opTimerFired:
		ev, _ := ev.(TimerFired)
		c.Open(1)
		ev.Timer.code(c)
		return ev
	case opRecovered:
		ev, _ := ev.(Recovered)
		if c.Out != nil && ev == (Recovered{}) {
			c.Open(0)
			return ev
		}
		c.Open(3)
		codeName(c, &ev.Generation)
		c.Duration(&ev.Grace)
		c.Bool(&ev.Alone)
		return ev
	case opDirect:
		ev, _ := ev.(Direct)
		c.Open(9)
		ev.codeFields(c)
		return ev
	case opCancel:
		ev, _ := ev.(CancelDirective)
		c.Open(3)
		codeName(c, &ev.ID)
		codeSaid(c, &ev.By, &ev.Reason)
		return ev
	case opCordon:
		ev, _ := ev.(Cordon)
		c.Open(4)
		codeName(c, &ev.Node)
		c.Duration(&ev.For)
		codeSaid(c, &ev.By, &ev.Reason)
		return ev
	case opUndrain:
		ev, _ := ev.(Undrain)
		c.Open(3)
		codeName(c, &ev.Node)
		codeSaid(c, &ev.By, &ev.Reason)
		return ev
	case opForget:
		ev, _ := ev.(Forget)
		c.Open(2)
		codeSaid(c, &ev.By, &ev.Reason)
		return ev
	case opEnded:
		ev, _ := ev.(Ended)
		c.Open(8)
		c.Int((*int)(&ev.Closing.Kind))
		c.Cut(&ev.Closing.By, maxClosingBy)
		c.Cut(&ev.Closing.Reason, maxClosingReason)
		c.Time(&ev.Closing.At)
		c.Duration(&ev.For)
		codeSaid(c, &ev.Machine)
		c.Duration(&ev.Uptime)
		c.Cut(&ev.Closing.Commands, maxClosingDigests)
		return ev
	}
	c.Open(0)
	return nil
}

func (t *Timer) code(c pack.Coder) {
	c.Open(3)
	c.Int((*int)(&t.Kind))
	codeName(c, &t.Session)
	c.Uint(&t.Seq)
	c.Close()
}

// EncodeEvent writes an event for a log: the list of StateVersion, operation,
// arguments, and for a request its session, number and acked. Reasons and labels
// that are longer than MaxNameLen are cut, so that a driver should apply what it
// has read from its log. The error is ErrTooLarge for other texts above their
// limits, which no log may hold.
func EncodeEvent(ev Event) ([]byte, error) {
	op := OpOf(ev)
	if op == 0 {
		return nil, Errorf(CodeInternal, "a %T is no event", ev)
	}
	b, err := pack.AppendFit(nil, func(p *pack.Packer) {
		r, isRequest := RequestOf(ev)
		if isRequest {
			p.List(6)
		} else {
			p.List(3)
		}
		p.Uint(StateVersion)
		p.Uint(uint64(op))
		PackArguments(p, ev)
		if isRequest {
			r.code(pack.Coder{Out: p})
		}
	})
	if err != nil {
		return nil, Errorf(CodeTooLarge, "%v", err)
	}
	return b, nil
}

// code codes the common part of a request as three values.
func (r *Request) code(c pack.Coder) {
	codeName(c, &r.Session)
	c.Uint(&r.Number)
	c.Uint(&r.Acked)
}

// DecodeEvent reads what EncodeEvent wrote; the result shares no memory with b.
// The error is ErrState and says what is wrong: a newer version, or bytes that
// are no event.
func DecodeEvent(b []byte) (Event, error) {
	u := pack.NewUnpacker(b)
	defer u.Release()
	u.Open()
	if err := stateVersion(u, "an event"); err != nil {
		return nil, err
	}
	op := Op(u.Uint())
	ev := UnpackArguments(u, op)
	if ev == nil {
		u.Fail("operation %d is not known", op)
	}
	if op.IsRequest() && u.Err() == nil {
		var r Request
		r.code(pack.Coder{In: u})
		ev = Stamp(ev, r)
	}
	u.Close()
	u.End()
	if err := u.Err(); err != nil {
		return nil, Errorf(CodeState, "not an event of a rendezvous: %v", err)
	}
	return ev, nil
}

// stateVersion reads the version and refuses what this program cannot read.
func stateVersion(u *pack.Unpacker, what string) *Error {
	version := u.Uint()
	switch {
	case u.Err() != nil:
		return Errorf(CodeState, "not %s of a rendezvous: %v", what, u.Err())
	case version == 0:
		return Errorf(CodeState, "not %s of a rendezvous: it has no version", what)
	case version > StateVersion:
		return Errorf(CodeState, "%s of a rendezvous in state version %d, written by a newer release: this one reads versions up to %d",
			what, version, StateVersion)
	}
	return nil
}

// StateVersion is the version of events and state. A log or snapshot written by a newer version is
// refused. A change that an older program could not read, or would apply otherwise, needs a higher
// number.
const StateVersion = 9
