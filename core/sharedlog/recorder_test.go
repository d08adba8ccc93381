package sharedlog

import (
	"sync"
	"testing"
	"time"

	"rallypoint/conformance"
	"rallypoint/core/rendezvous"
	"rallypoint/core/trace"
)

// recorder keeps the history of each log that nodes of a test apply.
type recorder struct {
	began time.Time

	mu   sync.Mutex
	logs map[string]*recorded // by generation
}

// recorded is one log's: each entry when the first of the nodes applies it. What another
// node makes of the same entry must be the same.
type recorded struct {
	audit   conformance.Audit
	numbers map[uint64]uint64 // of the events, by their entries' indexes
	last    uint64            // index
	late    []uint64          // entries that no node had applied before one after them was
}

func newRecorder() *recorder {
	return &recorder{began: time.Now().Add(-time.Second), logs: map[string]*recorded{}}
}

// watch applies what a node applies.
func (r *recorder) watch(p *Replica) {
	p.applied = func(index uint64, ev rendezvous.Event, effects []rendezvous.Effect) {
		r.mu.Lock()
		defer r.mu.Unlock()
		run, generation := p.params.RunID, p.info.Generation
		log := r.logs[generation]
		if log == nil {
			log = &recorded{numbers: map[uint64]uint64{}}
			log.audit.Add(trace.Record{Run: run, State: newMachine(run, generation).Snapshot()})
			r.logs[generation] = log
		}
		number, known := log.numbers[index]
		if !known {
			if index < log.last {
				log.late = append(log.late, index)
				return
			}
			number = uint64(len(log.numbers) + 1)
			log.numbers[index], log.last = number, index
		}
		log.audit.Add(trace.Record{Run: run, Number: number, Event: ev, Effects: effects, Seconds: time.Since(r.began).Seconds()})
	}
}

// judge holds the runs against the guarantees.
func (r *recorder) check(t *testing.T) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, log := range r.logs {
		if !log.audit.Kept() || len(log.late) > 0 {
			t.Errorf("%s\nentries out of order: %v", &log.audit, log.late)
		}
	}
}
