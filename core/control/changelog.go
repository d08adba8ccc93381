package control

import (
	"fmt"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/internal/pack"
)

// Limits of what a run remembers of its past: enough to explain its present
// state, and at most 32 KiB.
const (
	maxChanges    = 64
	maxChangeText = wire.MaxName
)

// changelog is a ring of a run's last changes.
type changelog struct {
	ring  []StatusChange
	total uint64 // all that there were
	came  int    // arrivals that the last change stands for; 0: it is another one
	bytes int    // about what the ring takes
}

// changeCost is about what a change takes beside its text.
const changeCost = 64

// put stores a change in its place of the ring.
func (h *changelog) put(i uint64, c StatusChange) {
	h.bytes += len(c.Text) - len(h.ring[i].Text)
	h.ring[i] = c
}

// add keeps a change; the oldest one gives way.
func (h *changelog) add(at time.Time, round uint64, text string) {
	c := StatusChange{At: *stamp(at), Text: pack.CutText(text, maxChangeText), Round: round}
	if len(h.ring) < maxChanges {
		h.ring = append(h.ring, StatusChange{})
		h.bytes += changeCost
	}
	h.put(h.total%maxChanges, c)
	h.total++
	h.came = 0
}

// arrive keeps that a node came. Those that come one after the other are one
// change, so that they leave room for what explains more.
func (h *changelog) arrive(at time.Time, round uint64, name string) {
	came := h.came + 1
	if came == 1 {
		h.add(at, round, name+" came")
	} else {
		last := (h.total - 1) % maxChanges
		c := h.ring[last]
		c.At, c.Text = *stamp(at), pack.CutText(fmt.Sprintf("%d nodes came, the last one: %s", came, name), maxChangeText)
		h.put(last, c)
	}
	h.came = came
}

// list returns the changes, oldest first.
func (h *changelog) list() []StatusChange {
	first := 0
	if len(h.ring) == maxChanges {
		first = int(h.total % maxChanges)
	}
	list := append(make([]StatusChange, 0, len(h.ring)), h.ring[first:]...)
	return append(list, h.ring[:first]...)
}
