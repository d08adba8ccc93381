package control

import (
	"rallypoint/core/rendezvous"
)

// op numbers the requests; append-only.
type op uint64

const (
	opJoin op = iota + 1
	opWithdraw
	opLeave
	opClose
	opFinish
	opLinger
	opKey
)

// newRequest makes the frame of a request; false means that ev is none.
func newRequest(ev rendezvous.Event, number, acked uint64) (request, bool) {
	f := request{Number: number, Acked: acked, Event: ev}
	switch ev.(type) {
	case rendezvous.Join:
		f.Op = opJoin
	case rendezvous.Withdraw:
		f.Op = opWithdraw
	case rendezvous.Leave:
		f.Op = opLeave
	case rendezvous.CloseRun:
		f.Op = opClose
	case rendezvous.Finish:
		f.Op = opFinish
	case rendezvous.Linger:
		f.Op = opLinger
	case rendezvous.KeyRequest:
		f.Op = opKey
	default:
		return f, false
	}
	return f, true
}

// event is the request as the machine takes it.
func (f request) event(session rendezvous.SessionID) rendezvous.Event {
	return rendezvous.Stamp(f.Event, rendezvous.Request{Session: session, Number: f.Number, Acked: f.Acked})
}

// sized returns an error for a request that no server would take.
func (f request) sized() *rendezvous.Error {
	k, ok := f.Event.(rendezvous.KeyRequest)
	if !ok {
		return nil
	}
	if len(k.Keys) > maxKeys || len(k.Values) > maxKeys {
		return rendezvous.Errorf(rendezvous.CodeTooLarge, "a request of %d keys and %d values, at most %d are allowed",
			len(k.Keys), len(k.Values), maxKeys)
	}
	size := 256 // what surrounds the keys and values
	for _, key := range k.Keys {
		if len(key) > maxKey {
			return rendezvous.Errorf(rendezvous.CodeTooLarge, "a key of %d bytes, at most %d are allowed", len(key), maxKey)
		}
		size += len(key) + 5
	}
	for _, value := range k.Values {
		size += len(value) + 5
	}
	if size > maxFrame {
		return rendezvous.Errorf(rendezvous.CodeTooLarge, "a request of %d bytes, at most %d are allowed", size, maxFrame)
	}
	return nil
}

func (f request) pack(p *packer) {
	p.head(kindRequest, 4)
	p.uint(f.Number)
	p.uint(f.Acked)
	p.uint(uint64(f.Op))
	switch ev := f.Event.(type) {
	case rendezvous.Join:
		p.list(4)
		p.int(int64(ev.NodeRank))
		p.int(int64(ev.RankHint))
		p.text(ev.StoreAddr)
		p.int(int64(ev.StorePort))
	case rendezvous.Withdraw:
		p.list(1)
		p.uint(ev.Join)
	case rendezvous.Leave:
		p.list(3)
		p.int(int64(ev.Ending))
		p.cut(ev.Reason, maxName)
		p.time(ev.At)
	case rendezvous.CloseRun:
		p.list(4)
		p.cut(ev.By, maxName)
		p.cut(ev.Reason, maxName)
		p.bool(ev.Stop)
		p.time(ev.At)
	case rendezvous.KeyRequest:
		p.list(5)
		p.uint(ev.Round)
		p.int(int64(ev.Op))
		p.texts(ev.Keys)
		p.values(ev.Values)
		p.int(ev.Amount)
	default: // Finish, Linger
		p.list(0)
	}
}

func (u *unpacker) request() request {
	f := request{Number: u.uint(), Acked: u.uint(), Op: op(u.uint())}
	u.open()
	switch f.Op {
	case opJoin:
		f.Event = rendezvous.Join{NodeRank: u.intOr(-1), RankHint: u.intOr(-1), StoreAddr: u.text(maxName), StorePort: u.int()}
	case opWithdraw:
		f.Event = rendezvous.Withdraw{Join: u.uint()}
	case opLeave:
		f.Event = rendezvous.Leave{Ending: rendezvous.Ending(u.int()), Reason: u.text(maxName), At: u.time()}
	case opClose:
		f.Event = rendezvous.CloseRun{By: u.text(maxName), Reason: u.text(maxName), Stop: u.bool(), At: u.time()}
	case opFinish:
		f.Event = rendezvous.Finish{}
	case opLinger:
		f.Event = rendezvous.Linger{}
	case opKey:
		f.Event = rendezvous.KeyRequest{
			Round: u.uint(), Op: rendezvous.KeyOp(u.int()),
			Keys: u.texts(maxKeys, maxKey), Values: u.values(maxKeys), Amount: u.int64(),
		}
	}
	u.close()
	if f.Number == 0 {
		u.fail("a request without a number")
	}
	return f
}
