package wire

import "rallypoint/core/rendezvous"

// NewRequest makes the frame of a request; false means that ev is none.
func NewRequest(ev rendezvous.Event, number, acked uint64) (Request, bool) {
	op := rendezvous.OpOf(ev)
	return Request{Number: number, Acked: acked, Op: op, Event: ev}, op.IsRequest()
}

// Stamped returns the event with its request part, as the machine takes it.
func (r Request) Stamped(session rendezvous.SessionID) rendezvous.Event {
	return rendezvous.Stamp(r.Event, rendezvous.Request{Session: session, Number: r.Number, Acked: r.Acked})
}

// CheckSize returns an error for a request that no server would take.
func (r Request) CheckSize() *rendezvous.Error {
	k, ok := r.Event.(rendezvous.KeyRequest)
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
	if size > MaxFrame {
		return rendezvous.Errorf(rendezvous.CodeTooLarge, "a request of %d bytes, at most %d are allowed", size, MaxFrame)
	}
	return nil
}

func (r Request) pack(p *packer) {
	head(p, KindRequest, 4)
	p.Uint(r.Number)
	p.Uint(r.Acked)
	p.Uint(uint64(r.Op))
	rendezvous.PackArguments(p, r.Event)
}

func readRequest(u *unpacker) Request {
	f := Request{Number: u.Uint(), Acked: u.Uint(), Op: rendezvous.Op(u.Uint())}
	op := f.Op
	if !op.IsRequest() {
		op = 0 // of a newer version
	}
	f.Event = rendezvous.UnpackArguments(u, op)
	if f.Number == 0 {
		u.Fail("a request without a number")
	}
	return f
}
