package sharedlog

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"rallypoint/conformance"
	"rallypoint/core/rendezvous"
)

// wrongLog is a log that does not do what it promises.
type wrongLog struct {
	Log
	next func([]Entry) []Entry
	said func(rendezvous.Event) rendezvous.Event
}

func (w wrongLog) Next(ctx context.Context, after uint64) (Batch, error) {
	for {
		b, err := w.Log.Next(ctx, after)
		if err != nil || w.next == nil || len(b.Entries) == 0 {
			return b, err
		}
		after = b.Entries[len(b.Entries)-1].Index
		if b.Entries = w.next(b.Entries); len(b.Entries) > 0 {
			return b, nil
		}
	}
}

func (w wrongLog) Append(ctx context.Context, entries [][]byte) error {
	entries = slices.Clone(entries)
	for i, data := range entries {
		ev, err := rendezvous.DecodeEvent(data)
		if err != nil {
			return err
		}
		if w.said != nil {
			ev = w.said(ev)
		}
		if entries[i], err = rendezvous.EncodeEvent(ev); err != nil {
			return err
		}
	}
	return w.Log.Append(ctx, entries)
}

// isJoin tells whether an entry is a join.
func isJoin(e Entry) bool {
	ev, err := rendezvous.DecodeEvent(e.Data)
	_, join := ev.(rendezvous.Join)
	return err == nil && join
}

// expireLease puts in the place of a node's first request after a minute that its lease has
// run out.
func expireLease(l Log) Log {
	began, done := time.Now(), false
	return wrongLog{Log: l, said: func(ev rendezvous.Event) rendezvous.Event {
		r, request := rendezvous.RequestOf(ev)
		if !request || done || time.Since(began) < time.Minute {
			return ev
		}
		done = true
		return rendezvous.LeaseExpired{Session: r.Session}
	}}
}

// swapJoins hands out the first two joins in each other's place.
func swapJoins(l Log) Log {
	var held []Entry // the first join, until the second has come
	return wrongLog{Log: l, next: func(list []Entry) (out []Entry) {
		for _, e := range list {
			switch {
			case len(held) > 0 && e.Index == held[0].Index: // asked for again
			case isJoin(e) && held == nil:
				held = []Entry{e}
			case isJoin(e) && len(held) == 1:
				first := held[0]
				held = append(held, e)
				out = append(out, Entry{first.Index, e.Data}, Entry{e.Index, first.Data})
			default:
				out = append(out, e)
			}
		}
		return out
	}}
}

// loseKeyRequest hands out all but the first request for the agents' keys.
func loseKeyRequest(l Log) Log {
	missed := uint64(0)
	return wrongLog{Log: l, next: func(list []Entry) []Entry {
		return slices.DeleteFunc(list, func(e Entry) bool {
			ev, err := rendezvous.DecodeEvent(e.Data)
			_, key := ev.(rendezvous.KeyRequest)
			if err == nil && key && missed == 0 {
				missed = e.Index
			}
			return e.Index == missed
		})
	}}
}

// workForALease has two nodes in a round, of which one works for more than a minute.
func workForALease(t *testing.T, w *cluster) {
	nodes := w.some(2, 1, 2)
	form(t, nodes...)
	work(t, nodes[0])
}

// joinInTurn has two nodes join one after the other; they get the same rank.
func joinInTurn(t *testing.T, w *cluster) {
	nodes := w.some(2, 2, 2)
	for _, n := range nodes {
		if err := n.plane.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var joins []*joining
	for _, n := range nodes {
		joins = append(joins, n.join(t.Context()))
		synctest.Wait()
	}
	for _, j := range joins {
		<-j.done
	}
	if a, b := joins[0].outcome, joins[1].outcome; a.Rank != b.Rank {
		t.Errorf("%+v, %+v: the ranks differ", a, b)
	}
}

// addTwice has one of two nodes in a round change a key twice.
func addTwice(t *testing.T, w *cluster) {
	nodes := w.some(2, 2, 2)
	form(t, nodes...)
	for range 2 {
		if _, err := nodes[1].Keys(1).Add(t.Context(), "sum", 1); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWrongLogsAreFound: the checker of the other tests finds logs that break their
// guarantees, by what their nodes then make of the run.
func TestWrongLogsAreFound(t *testing.T) {
	for name, c := range map[string]struct {
		guarantee int
		bend      func(l Log) Log
		play      func(t *testing.T, w *cluster)
	}{
		"a lease that ends too early":               {6, expireLease, workForALease},
		"two orders, so that a rank is given twice": {10, swapJoins, joinInTurn},
		"an entry that one node misses":             {10, loseKeyRequest, addTwice},
	} {
		t.Run(name, func(t *testing.T) {
			runCluster(t, func(t *testing.T, w *cluster) {
				w.rec = newRecorder() // whose history runCluster does not check
				nodes := 0
				w.bend = func(l *memoryLog) Log {
					if nodes++; nodes > 1 {
						return l
					}
					return c.bend(l) // the first node's
				}
				c.play(t, w)
				synctest.Wait() // until all have applied it
				w.rec.mu.Lock()
				defer w.rec.mu.Unlock()
				found := w.rec.logs["g1"].audit.Violations()
				t.Log(found)
				if !slices.ContainsFunc(found, func(b conformance.Violation) bool { return b.Guarantee == c.guarantee }) {
					t.Errorf("guarantee %d: found %v", c.guarantee, found)
				}
			})
		})
	}
}
