package control

import (
	"slices"

	"rallypoint/core/rendezvous"
)

// callTable numbers a client's requests and remembers those without an answer.
// It is used under the client's lock.
type callTable struct {
	last    uint64 // highest number given
	acked   uint64 // answers up to this number have arrived
	pending map[uint64]*pendingCall
}

type pendingCall struct {
	event rendezvous.Event
	call  *rendezvous.Call
}

// add numbers a request.
func (t *callTable) add(ev rendezvous.Event) *pendingCall {
	t.last++
	p := &pendingCall{ev, &rendezvous.Call{Number: t.last, Done: make(chan struct{})}}
	if t.pending == nil {
		t.pending = map[uint64]*pendingCall{}
	}
	t.pending[t.last] = p
	return p
}

// take removes an answered request; nil if it is not pending.
func (t *callTable) take(number uint64) *pendingCall {
	p := t.pending[number]
	delete(t.pending, number)
	for t.acked < t.last && t.pending[t.acked+1] == nil {
		t.acked++
	}
	return p
}

// frame is the pending request as it is sent now.
func (t *callTable) frame(p *pendingCall) request {
	f, _ := newRequest(p.event, p.call.Number, t.acked)
	return f
}

// all returns the pending requests in the order of their numbers.
func (t *callTable) all() []*pendingCall {
	list := make([]*pendingCall, 0, len(t.pending))
	for _, p := range t.pending {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *pendingCall) int {
		if a.call.Number < b.call.Number {
			return -1
		}
		return 1
	})
	return list
}
