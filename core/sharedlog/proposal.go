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
	// Of whom this node has heard nothing, and until when that may be said; "": the event
	// is about something else.
	accused rendezvous.SessionID
	until   time.Time
}

// propose queues a proposal; mu is held.
func (p *Replica) propose(d proposal) {
	p.queue = append(p.queue, d)
	p.more.Set()
}

// renew rebuilds the queue: a hello, and all requests that have no answer; mu
// is held. What is being appended just now belongs to a session that is over, or
// is applied once only. What this node was about to say of others it finds again.
func (p *Replica) renew() {
	p.withdraw()
	p.queue = append(p.queue[:0:0], proposal{event: p.hello()})
	p.reproposePending()
}

// repeat queues all requests that have no answer once more; mu is held. Those that were
// applied are not applied again.
func (p *Replica) repeat() {
	p.queue = slices.DeleteFunc(p.queue, func(d proposal) bool { return d.number > 0 })
	p.reproposePending()
}

// reproposePending queues all requests that have no answer behind a queue that was made again; mu is
// held.
func (p *Replica) reproposePending() {
	p.epoch++
	for _, c := range p.calls.Pending() {
		p.queue = append(p.queue, proposal{event: c.Event, number: c.Call.Number})
	}
	p.more.Set()
}

// withdraw takes back what this node was about to say of silent nodes, and watches them
// on; mu is held. Time has passed since it was judged, in which they may have come back.
func (p *Replica) withdraw() {
	rest := p.queue[:0:0]
	for _, d := range p.queue {
		if d.accused == "" {
			rest = append(rest, d)
		} else if peer := p.applier.ring.peers[d.accused]; peer != nil {
			peer.gone, peer.suspect = false, false
		}
	}
	if len(rest) < len(p.queue) {
		p.epoch++ // what is being appended just now may be appended again
		p.queue = rest
	}
}

// appendAtOnce bounds what is appended by one call.
const appendAtOnce = 256

// append appends what is queued, in order, until the replica ends.
func (p *Replica) append() {
	pause := newBackoff()
	for {
		epoch, batch, until, err := p.batch()
		if err != nil {
			p.report(broken{"append", err, true})
			return
		}
		if len(batch) == 0 {
			select {
			case <-p.more:
				continue
			case <-p.life.Done():
				return
			}
		}
		err = p.appendUntil(until, batch)
		late := err != nil && !until.IsZero() && !time.Now().Before(until) // which is no trouble
		if !late && !p.report(asTrouble("append", err)) {
			return
		}
		if err != nil {
			p.mu.Lock()
			p.withdraw()
			p.mu.Unlock()
			pause.Wait(p.life)
			continue
		}
		pause.Reset()
		p.mu.Lock()
		if p.epoch == epoch {
			p.queue = p.queue[len(batch):]
		}
		p.mu.Unlock()
	}
}

// appendUntil appends what may be said until then only; the zero time is for ever.
func (p *Replica) appendUntil(until time.Time, batch [][]byte) error {
	if until.IsZero() {
		return p.shared.Append(p.life, batch)
	}
	ctx, cancel := context.WithDeadline(p.life, until)
	defer cancel()
	if err := store.ContextError(ctx); err != nil {
		return err
	}
	return p.shared.Append(ctx, batch)
}

// batch encodes the head of the queue. What this node has to say of others comes in
// batches of its own, which are good until a time.
func (p *Replica) batch() (epoch uint64, batch [][]byte, until time.Time, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown != p.session {
		return p.epoch, nil, until, nil // its heartbeat comes first
	}
	size := 0
	for _, d := range p.queue[:min(len(p.queue), appendAtOnce)] {
		if len(batch) == 0 {
			until = d.until
		} else if d.until != until {
			break
		}
		ev := d.event
		if d.number > 0 {
			ev = rendezvous.Stamp(ev, rendezvous.Request{Session: p.session, Number: d.number, Acked: p.calls.Acked()})
		}
		data, err := rendezvous.EncodeEvent(ev)
		if err != nil {
			return 0, nil, until, rendezvous.Errorf(rendezvous.CodeInternal, "run %q: a %T cannot be written: %v", p.params.RunID, ev, err)
		}
		if size += len(data); size > p.info.MaxEntry && len(batch) > 0 {
			break
		}
		batch = append(batch, data)
	}
	return p.epoch, batch, until, nil
}

// read hands over what is in the log, from the latest snapshot on.
func (p *Replica) read() {
	pause := newBackoff()
	after, load := uint64(0), true
	for {
		var got any
		var err error
		if load {
			var s Snapshot
			if s, err = p.shared.Latest(p.life); err == nil {
				load, after, got = false, s.Index, s
			}
		} else {
			var b Batch
			if b, err = p.shared.Next(p.life, after); err == nil {
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
		if !p.report(asTrouble("read", err)) || got != nil && !p.report(got) {
			return
		}
		if err != nil {
			pause.Wait(p.life)
		} else {
			pause.Reset()
		}
	}
}

// save stores snapshots. One that cannot be stored is no trouble: the next one
// may.
func (p *Replica) save() {
	for {
		select {
		case s := <-p.saving:
			if err := p.shared.Snapshot(p.life, s); err != nil && p.life.Err() == nil {
				p.log.Debug("a snapshot of the run could not be stored", "error", err)
			}
		case <-p.life.Done():
			return
		}
	}
}

// broken tells how one of the goroutines that do I/O fares.
type broken struct {
	op    string
	err   error // nil: it works
	final bool
}

func asTrouble(op string, err error) broken {
	var own *rendezvous.Error
	return broken{op, err, errors.As(err, &own) && !own.Code.Retryable()}
}

// report hands something to the goroutine that applies. It reports false when the
// plane has ended.
func (p *Replica) report(what any) bool {
	if b, ok := what.(broken); ok && p.reported(b) {
		return p.life.Err() == nil
	}
	select {
	case p.in <- what:
		return true
	case <-p.life.Done():
		return false
	}
}

// reported reports whether a state of affairs needs no telling: that all is well, as was
// said last.
func (p *Replica) reported(b broken) bool {
	if b.err != nil && p.life.Err() != nil {
		return true // what fails because it ends is no trouble
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.failing[b.op]
	p.failing[b.op] = b.err != nil
	return !was && b.err == nil
}

// Bounds of the pauses between tries.
const (
	pauseMin = 20 * time.Millisecond
	pauseMax = 2 * time.Second
)

func newBackoff() *backoff.Backoff { return backoff.New(pauseMin, pauseMax) }
