package rendezvous

import (
	"rallypoint/core/store"
	"rallypoint/internal/pack"
)

// Limits of what a request holds.
const (
	MaxKeyLen   = 64 << 10 // bytes of a key
	maxValueLen = 2 << 20  // bytes of a value
	MaxKeys     = 1 << 16  // keys and values of one request, each
)

// PackArguments writes what an event says, as one list; the common part of a
// request is not in it.
func PackArguments(p *pack.Packer, ev Event) {
	if _, ok := RequestOf(ev); ok {
		packAsked(p, ev)
	} else {
		packOther(p, ev)
	}
}

func packAsked(p *pack.Packer, ev Event) {
	switch ev := ev.(type) {
	case Join:
		p.List(4)
		p.Int(ev.NodeRank)
		p.Int(ev.RankHint)
		packName(p, ev.StoreAddr)
		p.Int(ev.StorePort)
	case Withdraw:
		p.List(1)
		p.Uint(ev.Join)
	case Leave:
		p.List(3)
		p.Int(int(ev.Ending))
		p.Cut(ev.Reason, MaxNameLen)
		p.Time(ev.At)
	case CloseRun:
		p.List(4)
		p.Cut(ev.By, MaxNameLen)
		p.Cut(ev.Reason, MaxNameLen)
		p.Bool(ev.Stop)
		p.Time(ev.At)
	case KeyRequest:
		p.List(5)
		p.Uint(ev.Round)
		p.Int(int(ev.Op))
		p.Fit(len(ev.Keys), MaxKeys, "keys of a request")
		for _, key := range ev.Keys {
			p.Fit(len(key), MaxKeyLen, "bytes of a key")
		}
		p.Texts(ev.Keys)
		p.Fit(len(ev.Values), MaxKeys, "values of a request")
		for _, value := range ev.Values {
			p.Fit(len(value), maxValueLen, "bytes of a value")
		}
		p.Values(ev.Values)
		p.Int64(ev.Amount)
	case AnnounceStop:
		p.List(5)
		packName(p, ev.Generation)
		p.Uint(ev.Round)
		p.Bool(ev.Leaving)
		p.Cut(ev.Reason, MaxNameLen)
		p.Duration(ev.Away)
	case ReportDirective:
		p.List(5)
		packName(p, ev.ID)
		packName(p, ev.Generation)
		p.Uint(ev.Round)
		p.Int64(ev.Step)
		p.Bool(ev.Saved)
	case GiveDirective:
		p.List(2)
		packDirect(p, ev.Directive)
		p.Bool(ev.Unfit)
	default: // Finish, AwaitPeers
		p.List(0)
	}
}

func packOther(p *pack.Packer, ev Event) {
	switch ev := ev.(type) {
	case Hello:
		p.List(15)
		packName(p, ev.Session)
		packName(p, ev.Node)
		p.Uint(ev.Incarnation)
		p.Bool(ev.Named)
		p.Cut(ev.Label, MaxNameLen)
		PackPolicy(p, ev.Policy)
		PackLastRound(p, ev.LastRound)
		p.Bool(ev.InHost)
		packName(p, ev.SeenAddr)
		packName(p, ev.ServerAddr)
		p.Bool(ev.BeginAgain)
		p.Cut(ev.HostName, MaxNameLen)
		packName(p, ev.Topology)
		PackCommand(p, ev.Command)
	case Disconnect:
		p.List(2)
		packName(p, ev.Session)
		p.Bool(ev.Dead)
	case LeaseExpired:
		p.List(1)
		packName(p, ev.Session)
	case Evict:
		p.List(3)
		packName(p, ev.Node)
		p.Cut(ev.By, MaxNameLen)
		p.Cut(ev.Reason, MaxNameLen)
	case TimerFired:
		p.List(1)
		packTimer(p, ev.Timer)
	case Recovered:
		if ev == (Recovered{}) {
			p.List(0)
			break
		}
		p.List(3)
		packName(p, ev.Generation)
		p.Duration(ev.Grace)
		p.Bool(ev.Alone)
	case Direct:
		packDirect(p, ev)
	case CancelDirective:
		p.List(3)
		packName(p, ev.ID)
		p.Cut(ev.By, MaxNameLen)
		p.Cut(ev.Reason, MaxNameLen)
	case Cordon:
		p.List(4)
		packName(p, ev.Node)
		p.Duration(ev.For)
		p.Cut(ev.By, MaxNameLen)
		p.Cut(ev.Reason, MaxNameLen)
	case Undrain:
		p.List(3)
		packName(p, ev.Node)
		p.Cut(ev.By, MaxNameLen)
		p.Cut(ev.Reason, MaxNameLen)
	case Forget:
		p.List(2)
		p.Cut(ev.By, MaxNameLen)
		p.Cut(ev.Reason, MaxNameLen)
	case Ended:
		p.List(8)
		p.Int(int(ev.Closing.Kind))
		p.Cut(ev.Closing.By, maxClosingBy)
		p.Cut(ev.Closing.Reason, maxClosingReason)
		p.Time(ev.Closing.At)
		p.Duration(ev.For)
		p.Cut(ev.Machine, MaxNameLen)
		p.Duration(ev.Uptime)
		p.Cut(ev.Closing.Commands, maxClosingDigests)
	default: // a request that this version does not know
		p.List(0)
	}
}

// UnpackArguments reads what PackArguments wrote; nil for an operation that is
// not known to this version.
func UnpackArguments(u *pack.Unpacker, op Op) Event {
	u.Open()
	defer u.Close()
	if op.IsRequest() {
		return unpackAsked(u, op)
	}
	return unpackOther(u, op)
}

// unpackAsked reads a request. A server's goroutine for each node calls it, but hardly ever
// unpackOther, for whose events its stack would have to have room.
func unpackAsked(u *pack.Unpacker, op Op) Event {
	switch op {
	case OpJoin:
		return Join{NodeRank: u.IntOr(-1), RankHint: u.IntOr(-1), StoreAddr: u.Text(MaxNameLen), StorePort: u.Int()}
	case OpWithdraw:
		return Withdraw{Join: u.Uint()}
	case OpLeave:
		return Leave{Ending: Ending(u.Int()), Reason: u.Text(MaxNameLen), At: u.Time()}
	case OpClose:
		return CloseRun{By: u.Text(MaxNameLen), Reason: u.Text(MaxNameLen), Stop: u.Bool(), At: u.Time()}
	case OpFinish:
		return Finish{}
	case OpAwaitPeers:
		return AwaitPeers{}
	case OpKey:
		return KeyRequest{
			Round: u.Uint(), Op: store.Op(u.Int()),
			Keys: u.Texts(MaxKeys, MaxKeyLen), Values: u.Values(MaxKeys, maxValueLen), Amount: u.Int64(),
		}
	case OpGiveDirective:
		u.Open()
		d := unpackDirect(u)
		u.Close()
		return GiveDirective{Directive: d, Unfit: u.Bool()}
	case OpReportDirective:
		return ReportDirective{ID: u.Text(MaxNameLen), Generation: u.Text(MaxNameLen), Round: u.Uint(), Step: u.Int64(), Saved: u.Bool()}
	case OpAnnounceStop:
		return AnnounceStop{Generation: u.Text(MaxNameLen), Round: u.Uint(), Leaving: u.Bool(), Reason: u.Text(MaxNameLen), Away: u.Duration()}
	}
	return nil
}

func unpackOther(u *pack.Unpacker, op Op) Event {
	switch op {
	case opHello:
		return Hello{
			Session: unpackSession(u), Node: u.Text(MaxNameLen), Incarnation: u.Uint(), Named: u.Bool(), Label: u.Text(MaxNameLen),
			Policy: UnpackPolicy(u), LastRound: UnpackLastRound(u), InHost: u.Bool(), SeenAddr: u.Text(MaxNameLen), ServerAddr: u.Text(MaxNameLen),
			BeginAgain: u.Bool(), HostName: u.Text(MaxNameLen), Topology: u.Text(MaxNameLen), Command: UnpackCommand(u),
		}
	case opDisconnect:
		return Disconnect{Session: unpackSession(u), Dead: u.Bool()}
	case opLeaseExpired:
		return LeaseExpired{Session: unpackSession(u)}
	case opEvict:
		return Evict{Node: u.Text(MaxNameLen), By: u.Text(MaxNameLen), Reason: u.Text(MaxNameLen)}
	case opTimerFired:
		return TimerFired{Timer: unpackTimer(u)}
	case opRecovered:
		return Recovered{Generation: u.Text(MaxNameLen), Grace: u.Duration(), Alone: u.Bool()}
	case opDirect:
		return unpackDirect(u)
	case opCancel:
		return CancelDirective{ID: u.Text(MaxNameLen), By: u.Text(MaxNameLen), Reason: u.Text(MaxNameLen)}
	case opCordon:
		return Cordon{Node: u.Text(MaxNameLen), For: u.Duration(), By: u.Text(MaxNameLen), Reason: u.Text(MaxNameLen)}
	case opUndrain:
		return Undrain{Node: u.Text(MaxNameLen), By: u.Text(MaxNameLen), Reason: u.Text(MaxNameLen)}
	case opForget:
		return Forget{By: u.Text(MaxNameLen), Reason: u.Text(MaxNameLen)}
	case opEnded:
		ended := Ended{Closing: Closing{Kind: ClosedKind(u.Int()), By: u.Text(maxClosingBy), Reason: u.Text(maxClosingReason), At: u.Time()}, For: u.Duration(),
			Machine: u.Text(MaxNameLen), Uptime: u.Duration()}
		ended.Closing.Commands = u.Text(maxClosingDigests)
		return ended
	}
	return nil
}

func unpackSession(u *pack.Unpacker) SessionID { return SessionID(u.Text(MaxNameLen)) }

func packTimer(p *pack.Packer, t Timer) {
	p.List(3)
	p.Int(int(t.Kind))
	packName(p, t.Session)
	p.Uint(t.Seq)
}

func unpackTimer(u *pack.Unpacker) Timer {
	u.Open()
	defer u.Close()
	return Timer{Kind: TimerKind(u.Int()), Session: unpackSession(u), Seq: u.Uint()}
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
		if !isRequest {
			p.List(3)
			p.Uint(StateVersion)
			p.Uint(uint64(op))
			PackArguments(p, ev)
			return
		}
		p.List(6)
		p.Uint(StateVersion)
		p.Uint(uint64(op))
		PackArguments(p, ev)
		packName(p, r.Session)
		p.Uint(r.Number)
		p.Uint(r.Acked)
	})
	if err != nil {
		return nil, Errorf(CodeTooLarge, "%v", err)
	}
	return b, nil
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
		ev = Stamp(ev, Request{Session: unpackSession(u), Number: u.Uint(), Acked: u.Uint()})
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
