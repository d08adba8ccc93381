package sharedlog

import (
	"time"

	"rallypoint/core/rendezvous"
)

// timers are the timers of the machine as this node runs them, by their names
// (Seq zero).
type timers map[rendezvous.Timer]timer

type timer struct {
	seq  uint64
	due  time.Time
	rung bool // this node has appended that it has run out
}

func nameOf(t rendezvous.Timer) rendezvous.Timer {
	t.Seq = 0
	return t
}

func (a timers) set(t rendezvous.SetTimer) {
	a[nameOf(t.Timer)] = timer{seq: t.Timer.Seq, due: time.Now().Add(t.After)}
}

// stop forgets a timer, unless it was set again since.
func (a timers) stop(t rendezvous.Timer) {
	if a[nameOf(t)].seq == t.Seq {
		delete(a, nameOf(t))
	}
}

// mostBehind bounds how many turns a node waits for others to fire a timer.
const mostBehind = 20

// turn is when the node at that place in the ring fires a timer: the first one
// when it is due, the others a little later each, so that mostly one does.
func (a timer) turn(place int, step time.Duration) time.Time {
	return a.due.Add(time.Duration(min(place, mostBehind)) * step)
}

// next is when this node is to fire a timer, if there is one.
func (a timers) next(place int, step time.Duration) (due time.Time, ok bool) {
	for _, t := range a {
		if turn := t.turn(place, step); !t.rung && (!ok || turn.Before(due)) {
			due, ok = turn, true
		}
	}
	return due, ok
}

// fireTimers appends which timers have run out.
func (f *applier) fireTimers() {
	now, place := time.Now(), f.place()
	for name, a := range f.timers {
		if a.rung || now.Before(a.turn(place, f.p.info.HeartbeatReadInterval)) {
			continue
		}
		a.rung = true
		f.timers[name] = a
		name.Seq = a.seq
		f.p.propose(proposal{event: rendezvous.TimerFired{Timer: name}})
	}
}
