package control

import (
	"time"

	"rallypoint/core/pack"
)

// Limits of what a run remembers of its past: enough to explain its present
// state, and at most 32 KiB.
const (
	maxChanges    = 64
	maxChangeText = maxName
)

// history is a ring of a run's last changes.
type history struct {
	ring  []Change
	total uint64 // all that there were
}

// add keeps a change; the oldest one gives way.
func (h *history) add(at time.Time, text string) {
	c := Change{At: *stamp(at), Text: pack.CutText(text, maxChangeText)}
	if len(h.ring) < maxChanges {
		h.ring = append(h.ring, c)
	} else {
		h.ring[h.total%maxChanges] = c
	}
	h.total++
}

// list returns the changes, oldest first.
func (h *history) list() []Change {
	first := 0
	if len(h.ring) == maxChanges {
		first = int(h.total % maxChanges)
	}
	list := append(make([]Change, 0, len(h.ring)), h.ring[first:]...)
	return append(list, h.ring[:first]...)
}
