package rendezvous

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// output is what the event that is being applied has the driver do, and the timers that
// the driver runs for the machine.
type output struct {
	effects []Effect
	running map[Timer]runningTimer // Seq is zero in the key
	seq     uint64                 // of the timer that was set last
}

// runningTimer is what tells a timer from others of its name.
type runningTimer struct {
	seq   uint64
	after time.Duration
}

func (o *output) emit(e Effect) { o.effects = append(o.effects, e) }

func (o *output) note(format string, args ...any) {
	o.emit(HistoryEntry{Text: fmt.Sprintf(format, args...)})
}

func (o *output) take() []Effect {
	effects := o.effects
	o.effects = nil
	return effects
}

// set starts a timer, again if it runs.
func (o *output) set(t Timer, after time.Duration) {
	o.seq++
	o.running[t] = runningTimer{o.seq, after}
	t.Seq = o.seq
	o.emit(SetTimer{Timer: t, After: after})
}

func (o *output) stop(t Timer) {
	if running, ok := o.running[t]; ok {
		delete(o.running, t)
		t.Seq = running.seq
		o.emit(StopTimer{Timer: t})
	}
}

// fired has a timer run no more that has run out; false if that timer was stopped or set again.
func (o *output) fired(t Timer) bool {
	seq := t.Seq
	t.Seq = 0
	if running, ok := o.running[t]; !ok || running.seq != seq {
		return false
	}
	delete(o.running, t)
	return true
}

// timers returns the running timers as the effects that set them, oldest first.
func (o *output) timers() []SetTimer {
	list := make([]SetTimer, 0, len(o.running))
	for t, running := range o.running {
		t.Seq = running.seq
		list = append(list, SetTimer{Timer: t, After: running.after})
	}
	slices.SortFunc(list, func(a, b SetTimer) int { return cmp.Compare(a.Timer.Seq, b.Timer.Seq) })
	return list
}

// timersOf returns the running timers of a kind, oldest first.
func (o *output) timersOf(kind TimerKind) (list []Timer) {
	for _, t := range o.timers() {
		if t.Timer.Kind == kind {
			list = append(list, Timer{Kind: kind, Session: t.Timer.Session})
		}
	}
	return list
}

func (o *output) stopAll(kind TimerKind) {
	for _, t := range o.timersOf(kind) {
		o.stop(t)
	}
}
