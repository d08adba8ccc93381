package sharedlog

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"rallypoint/core/rendezvous"
)

// unreadLog is a log of which a node reads nothing more, until it may.
type unreadLog struct {
	*memoryLog
	unread chan struct{} // not nil: closed when it may read
}

func (u *unreadLog) Next(ctx context.Context, after uint64) (Batch, error) {
	b, err := u.memoryLog.Next(ctx, after)
	u.mu.Lock()
	unread := u.unread
	u.mu.Unlock()
	if unread == nil || err != nil {
		return b, err
	}
	select {
	case <-unread:
	case <-ctx.Done():
		return Batch{}, ctx.Err()
	}
	return u.memoryLog.Next(ctx, after)
}

// TestGoodbyeBehindASnapshot: a node whose run is ended by a directive, to be queued again,
// knows that when it has left, though it learns of both by a snapshot only; also when it
// was taken for lost meanwhile, and all others are gone.
func TestGoodbyeBehindASnapshot(t *testing.T) {
	for name, lost := range map[string]bool{"in time": false, "after its lease": true} {
		t.Run(name, func(t *testing.T) {
			runCluster(t, func(t *testing.T, w *cluster) {
				w.memory.info.SnapshotEntries = 10
				var slow *unreadLog
				w.bend = func(l *memoryLog) Log {
					slow = &unreadLog{memoryLog: l}
					return slow
				}
				nodes := w.some(2, 1, 2)
				form(t, nodes...)
				unread := make(chan struct{})
				slow.mu.Lock()
				slow.unread = unread
				slow.mu.Unlock()
				stop, err := rendezvous.EncodeEvent(rendezvous.Direct{ID: "d", Kind: rendezvous.DirectiveStop, By: "an admin", Reason: "why"})
				if err != nil {
					t.Fatal(err)
				}
				w.memory.mu.Lock()
				w.memory.addLocked([][]byte{stop})
				w.memory.mu.Unlock()
				waiting(t, nodes[0], "why")
				left := make(chan error, 1)
				go func() { left <- nodes[1].Shutdown(t.Context(), rendezvous.EndLeave, "a signal") }()
				synctest.Wait() // the goodbye is in the log
				if lost {
					thaw := nodes[1].log.freeze()
					time.AfterFunc(2*nodes[1].plane.params.LeaseTimeout+time.Second, thaw) // in time for the end of its goodbye
					time.Sleep(2 * nodes[1].plane.params.LeaseTimeout)
					w.compact(nodes[0], 1)
					if err := nodes[0].Shutdown(t.Context(), rendezvous.EndLeave, "done"); err != nil {
						t.Error(err)
					}
				} else {
					w.compact(nodes[0], 1)
				}
				close(unread)
				if err := <-left; err != nil {
					t.Error(err)
				}
				if reason, requeued := nodes[1].Requeued(); !requeued {
					t.Errorf("it does not know that the run should be queued again (%s)", reason)
				}
			})
		})
	}
}
