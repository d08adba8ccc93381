package rendezvous

import (
	"cmp"

	"rallypoint/core/store"
)

// Usage is about how much memory a run takes, in bytes, by what for. Names is what outlives
// sessions: the members of the last round, the ids of those of earlier ones, drained nodes.
type Usage struct{ Sessions, Answers, Waits, Keys, Names int64 }

// Total returns the sum.
func (u Usage) Total() int64 { return u.Sessions + u.Answers + u.Waits + u.Keys + u.Names }

// About what each takes beside its texts and values; of a drained node and a directive with
// them, which have bounds.
const (
	sessionCost     = 1 << 10
	answerCost      = 288
	partCost        = 32 // a key or value of an answer or wait
	waitCost        = 288
	awaitCost       = 64
	participantCost = 256
	seenCost        = 64
	drainedCost     = 2 << 10
	directiveCost   = 4 << 10
)

// DefaultMaxBytes is how much a run may take of a server.
const DefaultMaxBytes = 512 << 20

// Limits bounds what a run takes. A zero field of Keys is its default.
type Limits struct {
	Keys store.Limits
	// Bytes bounds Usage.Total: a request that would take more is refused, and above it by
	// a quarter the nodes are lost that hold most. It also bounds a single answer by what a
	// frame carries. 0: there is no bound but those of each node.
	Bytes int64
}

func (l Limits) withDefaults() Limits {
	l.Keys.MaxBytes = cmp.Or(l.Keys.MaxBytes, DefaultMaxKeyBytes)
	l.Keys.MaxEntries = cmp.Or(l.Keys.MaxEntries, DefaultMaxKeys)
	return l
}

// costOfDirective is about what a standing directive takes at most.
func costOfDirective(d Direct) int64 {
	return directiveCost + (partCost+MaxNameLen)*int64(len(d.Nodes))
}

// CostOfHello returns how much more a run takes at most after a hello.
func CostOfHello(h Hello) int64 {
	world := max(h.LastRound.World, h.LastRound.Facts.World, 0)
	return sessionCost + 8*MaxNameLen + maxDigest + participantCost*int64(world)
}

// costOf is about what the lists of a request take.
func costOf(ev Event) (cost int64) {
	switch r := ev.(type) {
	case KeyRequest:
		for _, key := range r.Keys {
			cost += partCost + int64(len(key))
		}
		for _, value := range r.Values {
			cost += partCost + int64(len(value))
		}
	case GiveDirective:
		cost = costOfDirective(r.Directive)
	}
	return cost
}

// Default limits of the agents' keys of one round. They are small: a few hundred
// bytes a node.
const (
	DefaultMaxKeyBytes = 256 << 20
	DefaultMaxKeys     = 1 << 22
)
