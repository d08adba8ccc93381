package control

import (
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/core/trace"
)

// record tells the recorder of an event that came at a time and was applied; mu is
// held. Timers are set after that time and run out before their event's, so that by
// the record none runs out early.
func (r *run) record(at time.Time, ev rendezvous.Event, effects []rendezvous.Effect) {
	r.applied++
	if record := r.server.cfg.Recorder; record != nil {
		record(trace.Record{At: at, Run: r.id, Number: r.applied, Event: ev, Effects: effects})
	}
}

// recordAside tells the recorder of a request that was answered without a change.
func (r *run) recordAside(ev rendezvous.Event, effects []rendezvous.Effect) {
	if record := r.server.cfg.Recorder; record != nil {
		record(trace.Record{At: r.server.clock.Now(), Run: r.id, Number: r.applied, Event: ev, Effects: effects, Aside: true})
	}
}

// recordBegin tells the recorder of a run that begins.
func (r *run) recordBegin() {
	if record := r.server.cfg.Recorder; record != nil {
		record(trace.Record{At: r.server.clock.Now(), Run: r.id, State: r.machine.Snapshot()})
	}
}

// recordTakenUp tells the recorder of a run that goes on: an earlier process may have
// been killed before it recorded all that it had stored.
func (r *run) recordTakenUp(found storedRun) {
	record := r.server.cfg.Recorder
	r.applied = found.seq
	if record == nil {
		return
	}
	now, number := r.server.clock.Now(), found.through
	record(trace.Record{At: now, Run: r.id, Number: number, State: found.snapshot})
	m, err := rendezvous.Restore(found.snapshot)
	if err != nil {
		return // OpenData has read it before
	}
	for _, b := range found.events {
		ev, err := rendezvous.DecodeEvent(b)
		if err != nil {
			return
		}
		number++
		record(trace.Record{At: now, Run: r.id, Number: number, Event: ev, Effects: m.Apply(ev)})
	}
}
