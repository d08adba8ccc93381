package sharedlog

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"rallypoint/core/rendezvous"
)

// TestNodesThatCannotShowThemselves: when the heartbeats of all nodes fail for longer than a
// lease, none of them is lost, also where existing files can still be read.
func TestNodesThatCannotShowThemselves(t *testing.T) {
	kept := &leases{shown: map[rendezvous.SessionID]time.Time{}}
	memory := func(w *cluster) []*node { return w.some(3, 2, 3) }
	for name, c := range map[string]struct {
		begin func(w *cluster) []*node
		fail  func(w *cluster, fails bool)
	}{
		"a log out of reach": {memory, func(w *cluster, fails bool) {
			w.memory.setDown(map[bool]error{true: errors.New("no route")}[fails])
		}},
		"a log that can be read only": {memory, func(w *cluster, fails bool) {
			w.memory.mu.Lock()
			defer w.memory.mu.Unlock()
			w.memory.unshown = map[bool]int{true: 1 << 30}[fails]
		}},
		"a log that keeps leases": {func(w *cluster) []*node {
			w.bend = func(l *memoryLog) Log { return leasedLog{l, kept, time.Duration(len(w.nodes)) * 2 * time.Second} }
			return memory(w)
		}, func(_ *cluster, fails bool) {
			kept.mu.Lock()
			defer kept.mu.Unlock()
			kept.fails, kept.back = fails, time.Now()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			runCluster(t, func(t *testing.T, w *cluster) {
				nodes := c.begin(w)
				joinAll(t, nodes...)
				time.Sleep(time.Minute)
				c.fail(w, true)
				time.Sleep(time.Minute)
				c.fail(w, false)
				time.Sleep(time.Minute)
				for _, n := range nodes {
					if n.NodesWaiting() > 0 {
						t.Errorf("%s: %s", n.name, n.Reason())
					}
				}
			})
		})
	}
}

// leases are those that a log keeps itself, of heartbeats that may not get through.
type leases struct {
	mu    sync.Mutex
	shown map[rendezvous.SessionID]time.Time
	fails bool
	back  time.Time // when they got through again
}

// leasedLog is one node's log that keeps leases. Its heartbeats get through late after they failed.
type leasedLog struct {
	*memoryLog
	*leases
	late time.Duration
}

func (l leasedLog) Heartbeat(ctx context.Context, session rendezvous.SessionID, lease time.Duration) error {
	l.leases.mu.Lock()
	defer l.leases.mu.Unlock()
	if l.fails || time.Since(l.back) < l.late {
		return errors.New("no route")
	}
	l.shown[session] = time.Now().Add(lease)
	return l.memoryLog.Heartbeat(ctx, session, lease)
}

func (l leasedLog) ReadHeartbeats(_ context.Context, sessions []rendezvous.SessionID) ([]Liveness, error) {
	l.leases.mu.Lock()
	defer l.leases.mu.Unlock()
	list := make([]Liveness, len(sessions))
	for i, s := range sessions {
		list[i].Heartbeats = uint64(time.Now().UnixNano()) // the lease lives: nothing else counts
		if time.Now().After(l.shown[s]) {
			list[i].State = LivenessExpired
		}
	}
	return list, nil
}

// strayWord is a log in which what is said of silent nodes gets in when said is closed,
// though it seems to be there at once.
type strayWord struct {
	*memoryLog
	held chan<- [][]byte
}

func (s strayWord) Append(ctx context.Context, entries [][]byte) error {
	ev, err := rendezvous.DecodeEvent(entries[0])
	if err != nil {
		return err
	}
	if _, ok := ev.(rendezvous.LeaseExpired); !ok {
		return s.memoryLog.Append(ctx, entries)
	}
	select {
	case s.held <- entries:
	default:
	}
	return nil
}

// TestStrayWordOfANodeThatIsBack: the finding about a silent node has no effect when it gets
// into the log after the node is back, whether or not that has anything to ask.
func TestStrayWordOfANodeThatIsBack(t *testing.T) {
	for name, work := range map[string]bool{"at work": true, "idle": false} {
		t.Run(name, func(t *testing.T) {
			runCluster(t, func(t *testing.T, w *cluster) {
				held := make(chan [][]byte, 1)
				w.bend = func(l *memoryLog) Log { return strayWord{l, held} }
				land := func(word [][]byte) {
					w.memory.mu.Lock()
					defer w.memory.mu.Unlock()
					w.memory.addLocked(word)
				}
				nodes := w.some(2, 2, 2)
				form(t, nodes...)
				thaw := nodes[1].log.freeze()
				word := <-held
				thaw()
				if work {
					if _, err := nodes[1].Keys(1).Add(t.Context(), "sum", 1); err != nil {
						t.Fatal(err)
					}
				} else {
					time.Sleep(time.Second)
				}
				land(word)
				synctest.Wait()
				for _, n := range nodes {
					if n.NodesWaiting() > 0 {
						t.Fatalf("%s: %s", n.name, n.Reason())
					}
				}
				nodes[1].log.freeze() // once more, and for good
				land(<-held)
				waiting(t, nodes[0], "n1")
			})
		})
	}
}

// deafLog is a log by which a node hears nothing of the others' heartbeats.
type deafLog struct {
	Log
	says Liveness // of each of them
}

func (d deafLog) ReadHeartbeats(ctx context.Context, sessions []rendezvous.SessionID) ([]Liveness, error) {
	list, err := d.Log.ReadHeartbeats(ctx, sessions)
	for i := range list {
		list[i] = d.says
	}
	return list, err
}

// TestNodeThatWorksHasALease: a node whose entries are read is not taken for lost, whatever
// the log says of its lease or its heartbeats; when nothing more comes of it, it is.
func TestNodeThatWorksHasALease(t *testing.T) {
	for name, says := range map[string]Liveness{
		"leases that have run out": {State: LivenessExpired}, "heartbeats that stand still": {Heartbeats: 1},
	} {
		t.Run(name, func(t *testing.T) {
			runCluster(t, func(t *testing.T, w *cluster) {
				w.bend = func(l *memoryLog) Log {
					if len(w.nodes) > 0 {
						return l
					}
					return deafLog{l, says} // the first node's
				}
				nodes := w.some(2, 1, 2)
				form(t, nodes...)
				work(t, nodes[1])
				for _, n := range nodes {
					if n.NodesWaiting() > 0 {
						t.Errorf("%s: %s", n.name, n.Reason())
					}
				}
				waiting(t, nodes[0], "n1")
			})
		})
	}
}

// TestLifeAfterALoss: a node that was dropped while it was stopped, and shows its old heartbeat
// again before it has read that, does not begin its old session again.
func TestLifeAfterALoss(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		var slow *unreadLog
		w.bend = func(l *memoryLog) Log {
			slow = &unreadLog{memoryLog: l}
			return slow
		}
		nodes := w.some(2, 1, 2)
		form(t, nodes...)
		old := nodes[1].plane.session
		unread := make(chan struct{})
		slow.mu.Lock()
		slow.unread = unread
		slow.mu.Unlock()
		thaw := nodes[1].log.freeze()
		waiting(t, nodes[0], "n1")
		thaw()
		time.Sleep(time.Second) // it has shown its heartbeat, and that it is back
		plane := nodes[0].plane
		plane.mu.Lock()
		if plane.applier.machine.Has(old) {
			t.Error("the session that is lost is there again")
		}
		plane.mu.Unlock()
		close(unread)
		waiting(t, nodes[1], "dropped")
	})
}

// work has a node in the first round work for more than a minute.
func work(t *testing.T, n *node) {
	for range 70 {
		_, _ = n.Keys(1).Add(t.Context(), "sum", 1)
		time.Sleep(time.Second)
	}
}
