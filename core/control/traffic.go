package control

import "sync/atomic"

// traffic counts what the connections of a process carry. It only grows, and any
// goroutine may use it.
type traffic struct {
	bytesIn   atomic.Uint64
	bytesOut  atomic.Uint64
	framesIn  kindCounts
	framesOut kindCounts
}

// kindNames are the kinds in metrics; the place in the list is the kind, 0 is what
// this version does not know.
var kindNames = [...]string{"unknown", "hello", "welcome", "refuse", "request", "reply", "notice", "progress", "drop", "beat", "goodbye", "admin", "admin_answer", "challenge", "proof"}

// kindCounts counts frames by kind.
type kindCounts [len(kindNames)]atomic.Uint64

func (c *kindCounts) add(k kind) {
	if k >= kind(len(c)) {
		k = 0
	}
	c[k].Add(1)
}
