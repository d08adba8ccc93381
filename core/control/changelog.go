package control

import (
	"fmt"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/pack"
)

// Limits of a run's change log: enough to explain its present state, and at most 32 KiB.
const (
	maxChanges    = 64
	maxChangeText = wire.MaxName
)

// changelog is a ring of a run's last changes.
type changelog struct {
	ring  []StatusChange
	total uint64 // all that there were
	bytes int    // about what the ring takes

	joined int    // arrivals that the last change stands for; 0: it is another one
	names  string // of the first of these
}

// changeCost is about the memory of a change without its text.
const changeCost = 64

// put stores a change in its place of the ring.
func (ch *changelog) put(i uint64, c StatusChange) {
	ch.bytes += len(c.Text) - len(ch.ring[i].Text)
	ch.ring[i] = c
}

// newChange is a change as it is kept.
func newChange(at time.Time, round uint64, text string) StatusChange {
	return StatusChange{At: *rendezvous.StatusTime(at), Text: pack.CutText(text, maxChangeText), Round: round}
}

// add keeps a change; the oldest one gives way.
func (ch *changelog) add(at time.Time, round uint64, text string) {
	c := newChange(at, round, text)
	if len(ch.ring) < maxChanges {
		ch.ring = append(ch.ring, StatusChange{})
		ch.bytes += changeCost
	}
	ch.put(ch.total%maxChanges, c)
	ch.total++
	ch.joined = 0
}

// maxJoined is how many nodes a change names that have joined.
const maxJoined = 8

// arrive records the arrival of a node. Consecutive arrivals are one change, to leave room for
// changes that explain more.
func (ch *changelog) arrive(at time.Time, round uint64, name string) {
	joined := ch.joined + 1
	if joined == 1 {
		ch.names = name
		ch.add(at, round, name+" joined")
	} else {
		more := ""
		if joined <= maxJoined {
			ch.names += ", " + name
		} else {
			more = fmt.Sprintf(" and %d more", joined-maxJoined)
		}
		last := (ch.total - 1) % maxChanges
		c := ch.ring[last]
		c.At, c.Text = *rendezvous.StatusTime(at), pack.CutText(fmt.Sprintf("%d nodes joined (%s%s)", joined, ch.names, more), maxChangeText)
		ch.put(last, c)
	}
	ch.joined = joined
}

// list returns the changes, oldest first.
func (ch *changelog) list() []StatusChange {
	first := 0
	if len(ch.ring) == maxChanges {
		first = int(ch.total % maxChanges)
	}
	list := append(make([]StatusChange, 0, len(ch.ring)), ch.ring[first:]...)
	return append(list, ch.ring[:first]...)
}

// StatusChange is one line of a run's history.
type StatusChange struct {
	At    time.Time `json:"at"`
	Text  string    `json:"text"`
	Round uint64    `json:"round"` // the last completed one then; of its completion, that one
}
