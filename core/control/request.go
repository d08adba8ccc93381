package control

import "rallypoint/core/rendezvous"

// newRequest makes the frame of a request; false means that ev is none.
func newRequest(ev rendezvous.Event, number, acked uint64) (request, bool) {
	op := rendezvous.OpOf(ev)
	return request{Number: number, Acked: acked, Op: op, Event: ev}, op.IsRequest()
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
	head(p, kindRequest, 4)
	p.Uint(f.Number)
	p.Uint(f.Acked)
	p.Uint(uint64(f.Op))
	rendezvous.PackArguments(p, f.Event)
}

func readRequest(u *unpacker) request {
	f := request{Number: u.Uint(), Acked: u.Uint(), Op: rendezvous.Op(u.Uint())}
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
