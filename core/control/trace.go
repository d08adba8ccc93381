package control

import (
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/core/trace"
)

// traceEvent records an event that came at a time and was applied; mu is
// held. Timers are set after that time and run out before their event's, so that by
// the record none runs out early.
func (r *run) traceEvent(at time.Time, ev rendezvous.Event, effects []rendezvous.Effect) {
	r.applied++
	if record := r.server.cfg.Trace; record != nil {
		record(trace.Record{At: at, Run: r.id, Number: r.applied, Event: ev, Effects: effects})
	}
}

// traceRead records a request that was answered without a change.
func (r *run) traceRead(ev rendezvous.Event, effects []rendezvous.Effect) {
	if record := r.server.cfg.Trace; record != nil {
		record(trace.Record{At: r.server.clock.Now(), Run: r.id, Number: r.applied, Event: ev, Effects: effects, Aside: true})
	}
}

// traceBegin records that a run begins.
func (r *run) traceBegin() {
	if record := r.server.cfg.Trace; record != nil {
		rec := trace.Record{At: r.server.clock.Now(), Run: r.id, State: r.machine.Snapshot(), Host: r.server.cfg.HostNode}
		if rec.Host != "" {
			s := r.machine.Succession()
			s.Term = max(s.Term, 1)
			rec.Succession = &s
		}
		record(rec)
	}
}

// traceRestored records a run that goes on: an earlier process may have
// been killed before it recorded all that it had stored.
func (r *run) traceRestored(found storedRun) {
	record := r.server.cfg.Trace
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
