package member

import (
	"cmp"
	"maps"
	"slices"

	"rallypoint/core/rendezvous"
)

// Calls numbers the requests of a control plane and remembers those without an answer.
// The zero value is ready; it is not safe for concurrent use.
type Calls struct {
	last    uint64 // highest number given
	acked   uint64 // answers up to this number have arrived
	pending map[uint64]*PendingCall
}

// PendingCall is a request that has no answer yet.
type PendingCall struct {
	Event rendezvous.Event // its Request part is zero
	Call  *Call
}

// Add numbers a request.
func (c *Calls) Add(ev rendezvous.Event) *PendingCall {
	c.last++
	p := &PendingCall{ev, &Call{Number: c.last, Done: make(chan struct{})}}
	if c.pending == nil {
		c.pending = map[uint64]*PendingCall{}
	}
	c.pending[c.last] = p
	return p
}

// Take removes an answered request; nil if it is not pending.
func (c *Calls) Take(number uint64) *PendingCall {
	p := c.pending[number]
	delete(c.pending, number)
	for c.acked < c.last && c.pending[c.acked+1] == nil {
		c.acked++
	}
	return p
}

// Acked is the number up to which all answers have arrived.
func (c *Calls) Acked() uint64 { return c.acked }

// Pending returns the pending requests in the order of their numbers.
func (c *Calls) Pending() []*PendingCall {
	return slices.SortedFunc(maps.Values(c.pending), func(a, b *PendingCall) int { return cmp.Compare(a.Call.Number, b.Call.Number) })
}

// Clear forgets all pending requests and returns them.
func (c *Calls) Clear() []*PendingCall {
	list := c.Pending()
	c.pending = nil
	return list
}
