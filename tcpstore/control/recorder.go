package control

import (
	"rallypoint/core/promises"
	"rallypoint/core/rendezvous"
)

// record tells the recorder of an event that was applied; mu is held.
func (r *run) record(ev rendezvous.Event, effects []rendezvous.Effect) {
	r.applied++
	if record := r.server.cfg.Recorder; record != nil {
		record(promises.Record{Run: r.id, Number: r.applied, Event: ev, Effects: effects})
	}
}

// recordBegin tells the recorder of a run that begins.
func (r *run) recordBegin() {
	if record := r.server.cfg.Recorder; record != nil {
		record(promises.Record{Run: r.id, State: r.machine.Snapshot()})
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
	number := found.through
	record(promises.Record{Run: r.id, Number: number, State: found.snapshot})
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
		record(promises.Record{Run: r.id, Number: number, Event: ev, Effects: m.Apply(ev)})
	}
}
