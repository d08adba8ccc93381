package sharedlog

import (
	"context"
	"log/slog"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/core/trace"
)

// Watcher reads the entries of one run's nodes without being one of them. It is for one
// goroutine.
type Watcher interface {
	// Poll returns the entries since the last call, in order, or the zero Record if there is no
	// run. They follow the entries that were returned last. If some in between are gone, or the
	// run has begun again (another Generation), they follow the Record's Snapshot. Entries that a
	// call does not return were written after it began.
	Poll(ctx context.Context) (Record, error)

	// Close releases the Watcher's resources.
	Close()
}

// history makes the history of a run, the records that conformance checks, from the results of a
// Watcher. It applies the same entries as all nodes, so its machine does the same as theirs.
type history struct {
	record     func(trace.Record)
	generation string // "": nothing was found yet
	machine    *rendezvous.Machine
	index      uint64 // of the last entry
	number     uint64 // of its event
}

// take applies what was found at now; before was a time before which what is found now
// had not been written. A run that is first seen when the beginning of its log is gone
// has a history that begins with a later event; a gap shows in the numbers. The error is
// final: ErrState, nodes of another release have written that.
func (h *history) take(r Record, before, now time.Time) error {
	if r.Generation == "" {
		return nil
	}
	if r.Generation != h.generation || r.Snapshot.Index > h.index {
		if err := h.begin(r, before, now); err != nil {
			return err
		}
	}
	for _, e := range r.Entries {
		if e.Index <= h.index {
			continue
		}
		ev, err := rendezvous.DecodeEvent(e.Data)
		if err != nil {
			return unreadable(r.RunID, e.Index, err)
		}
		h.index = e.Index
		h.number++
		h.record(trace.Record{
			At: now, Slack: now.Sub(before).Seconds(), Run: r.RunID, Number: h.number, Event: ev, Effects: h.machine.Apply(ev),
		})
	}
	return nil
}

// begin begins again with a generation, or after entries that are gone.
func (h *history) begin(r Record, before, now time.Time) error {
	m, err := r.start()
	if err != nil {
		return err
	}
	number := r.Snapshot.Index
	if r.Generation == h.generation {
		number = h.number + number - h.index
	}
	h.generation, h.machine, h.index, h.number = r.Generation, m, r.Snapshot.Index, number
	h.record(trace.Record{At: now, Slack: now.Sub(before).Seconds(), Run: r.RunID, Number: number, State: m.Snapshot()})
	return nil
}

// longAgo is before whatever is found first.
const longAgo = 1000 * time.Hour

// lastLook bounds what a Watch does after its ctx has ended.
const lastLook = time.Second

// Watch records a run until ctx ends, telling record its history; f is asked once in each pause,
// and at the end. While the log is out of reach it retries, and logs that; other errors are final.
func Watch(ctx context.Context, f Watcher, pause time.Duration, record func(trace.Record), log *slog.Logger) error {
	h := &history{record: record}
	before := time.Now().Add(-longAgo)
	tick := time.Tick(pause)
	lost := false
	look := func(ctx context.Context) error {
		began := time.Now()
		r, err := f.Poll(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case final(err):
			return err
		case err != nil && !lost:
			log.Warn("cannot follow the run just now, trying again: " + err.Error())
		case err == nil && lost:
			log.Info("following the run again")
		}
		if lost = err != nil; lost {
			return nil
		}
		err = h.take(r, before, time.Now())
		before = began
		return err
	}
	for {
		if err := look(ctx); err != nil {
			return err
		}
		select {
		case <-tick:
		case <-ctx.Done():
			if lost {
				return nil
			}
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastLook)
			defer cancel()
			return look(last)
		}
	}
}
