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

func (ti timers) set(t rendezvous.SetTimer) {
	ti[nameOf(t.Timer)] = timer{seq: t.Timer.Seq, due: time.Now().Add(t.After)}
}

// stop forgets a timer, unless it was set again since.
func (ti timers) stop(t rendezvous.Timer) {
	if ti[nameOf(t)].seq == t.Seq {
		delete(ti, nameOf(t))
	}
}

// mostBehind bounds how many turns a node waits for others to fire a timer.
const mostBehind = 20

// turn is when the node at that place in the ring fires a timer: the first one
// when it is due, the others a little later each, so that mostly one does.
func (t timer) turn(place int, step time.Duration) time.Time {
	return t.due.Add(time.Duration(min(place, mostBehind)) * step)
}

// next is when this node fires the next timer, if there is one.
func (ti timers) next(place int, step time.Duration) (due time.Time, ok bool) {
	for _, t := range ti {
		if turn := t.turn(place, step); !t.rung && (!ok || turn.Before(due)) {
			due, ok = turn, true
		}
	}
	return due, ok
}

// fireTimers appends which timers have run out.
func (ap *applier) fireTimers() {
	now, place := time.Now(), ap.place()
	for name, a := range ap.timers {
		if a.rung || now.Before(a.turn(place, ap.p.info.HeartbeatReadInterval)) {
			continue
		}
		a.rung = true
		ap.timers[name] = a
		name.Seq = a.seq
		ap.p.proposeLocked(proposal{event: rendezvous.TimerFired{Timer: name}})
	}
}
