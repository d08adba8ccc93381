package sharedlog

import (
	"context"
	"errors"
	"slices"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/internal/backoff"
)

// proposal is an event on its way into the log. A request is stamped when it is
// appended, since the session may change before.
type proposal struct {
	event  rendezvous.Event
	number uint64 // of a request; 0: the event is complete
	// The session that the event accuses of silence, and until when that may be said; "": it
	// accuses none.
	accused rendezvous.SessionID
	until   time.Time
}

// proposeLocked queues a proposal.
func (r *Replica) proposeLocked(d proposal) {
	r.queue = append(r.queue, d)
	r.more.Set()
}

// renewLocked rebuilds the queue: a hello, and all requests that have no answer. A batch that is
// just being appended belongs to an old session, or is applied only once. This node will notice
// again what it was about to report about others.
func (r *Replica) renewLocked() {
	r.withdrawLocked()
	r.queue = append(r.queue[:0:0], proposal{event: r.helloLocked()})
	r.reproposePendingLocked()
}

// repeatLocked queues all requests that have no answer once more. Those that were
// applied are not applied again.
func (r *Replica) repeatLocked() {
	r.queue = slices.DeleteFunc(r.queue, func(d proposal) bool { return d.number > 0 })
	r.reproposePendingLocked()
}

// reproposePendingLocked appends all requests that have no answer to a queue that was made again.
func (r *Replica) reproposePendingLocked() {
	r.epoch++
	for _, c := range r.calls.Pending() {
		r.queue = append(r.queue, proposal{event: c.Event, number: c.Call.Number})
	}
	r.more.Set()
}

// withdrawLocked drops this node's proposals about silent nodes, and continues to watch them:
// they may have come back since it judged them.
func (r *Replica) withdrawLocked() {
	rest := r.queue[:0:0]
	for _, d := range r.queue {
		if d.accused == "" {
			rest = append(rest, d)
		} else if peer := r.applier.ring.peers[d.accused]; peer != nil {
			peer.gone, peer.suspect = false, false
		}
	}
	if len(rest) < len(r.queue) {
		r.epoch++ // an append that is under way may be repeated
		r.queue = rest
	}
}

// appendAtOnce limits the bytes of one append.
const appendAtOnce = 256

// append appends the queue, in order, until the replica ends.
func (r *Replica) append() {
	pause := newBackoff()
	for {
		epoch, batch, until, err := r.batch()
		if err != nil {
			r.report(broken{"append", err})
			return
		}
		if len(batch) == 0 {
			select {
			case <-r.more:
				continue
			case <-r.life.Done():
				return
			}
		}
		err = r.appendUntil(until, batch)
		late := err != nil && !until.IsZero() && !time.Now().Before(until) // which is no trouble
		if !late && !r.report(broken{"append", err}) {
			return
		}
		if err != nil {
			r.mu.Lock()
			r.withdrawLocked()
			r.mu.Unlock()
			pause.Wait(r.life)
			continue
		}
		pause.Reset()
		r.mu.Lock()
		if r.epoch == epoch {
			r.queue = r.queue[len(batch):]
		}
		r.mu.Unlock()
	}
}

// appendUntil appends entries that are valid only until then; the zero time means always.
func (r *Replica) appendUntil(until time.Time, batch [][]byte) error {
	if until.IsZero() {
		return r.shared.Append(r.life, batch)
	}
	ctx, cancel := context.WithDeadline(r.life, until)
	defer cancel()
	if err := store.ContextError(ctx); err != nil {
		return err
	}
	return r.shared.Append(ctx, batch)
}

// batch encodes the head of the queue. This node's reports about others come in batches of their
// own, which are good until a time.
func (r *Replica) batch() (epoch uint64, batch [][]byte, until time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shown != r.session {
		return r.epoch, nil, until, nil // its heartbeat comes first
	}
	size := 0
	for _, d := range r.queue[:min(len(r.queue), appendAtOnce)] {
		if len(batch) == 0 {
			until = d.until
		} else if d.until != until {
			break
		}
		ev := d.event
		if d.number > 0 {
			ev = rendezvous.Stamp(ev, rendezvous.Request{Session: r.session, Number: d.number, Acked: r.calls.Acked()})
		}
		data, err := rendezvous.EncodeEvent(ev)
		if err != nil {
			return 0, nil, until, rendezvous.Errorf(rendezvous.CodeInternal, "run %q: a %T cannot be written: %v", r.params.RunID, ev, err)
		}
		if size += len(data); size > r.info.MaxEntry && len(batch) > 0 {
			break
		}
		batch = append(batch, data)
	}
	return r.epoch, batch, until, nil
}

// read delivers the entries of the log, from the latest snapshot on.
func (r *Replica) read() {
	pause := newBackoff()
	after, load := uint64(0), true
	for {
		var got message
		var err error
		if load {
			var s Snapshot
			if s, err = r.shared.Latest(r.life); err == nil {
				load, after, got = false, s.Index, s
			}
		} else {
			var b Batch
			if b, err = r.shared.Next(r.life, after); err == nil {
				if n := len(b.Entries); n > 0 {
					after = b.Entries[n-1].Index
				}
				got = b
			}
		}
		if errors.Is(err, ErrCompacted) {
			load = true
			continue
		}
		if !r.report(broken{"read", err}) || got != nil && !r.report(got) {
			return
		}
		if err != nil {
			pause.Wait(r.life)
		} else {
			pause.Reset()
		}
	}
}

// save stores snapshots. One that cannot be stored is no trouble: the next one
// may.
func (r *Replica) save() {
	for {
		select {
		case s := <-r.saving:
			if err := r.shared.Snapshot(r.life, s); err != nil && r.life.Err() == nil {
				r.log.Debug("a snapshot of the run could not be stored", "error", err)
			}
		case <-r.life.Done():
			return
		}
	}
}

// broken tells how one of the goroutines that do I/O fares.
type broken struct {
	op  string
	err error // nil: it works
}

// final reports whether an error of a log is final, see Log.
func final(err error) bool {
	own, is := errors.AsType[*rendezvous.Error](err)
	return is && !own.Code.Retryable()
}

// report hands something to the goroutine that applies. It reports false when the
// plane has ended.
func (r *Replica) report(m message) bool {
	if b, ok := m.(broken); ok && r.reported(b) {
		return r.life.Err() == nil
	}
	select {
	case r.in <- m:
		return true
	case <-r.life.Done():
		return false
	}
}

// reported reports whether a state of affairs needs no telling: that all is well, as was
// said last.
func (r *Replica) reported(b broken) bool {
	if b.err != nil && r.life.Err() != nil {
		return true // failures because it ends are no trouble
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.failing[b.op]
	r.failing[b.op] = b.err != nil
	return !was && b.err == nil
}

// Bounds of the pauses between tries.
const (
	pauseMin = 20 * time.Millisecond
	pauseMax = 2 * time.Second
)

func newBackoff() *backoff.Backoff { return backoff.New(pauseMin, pauseMax) }
