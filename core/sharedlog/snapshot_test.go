package sharedlog

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"rallypoint/core/rendezvous"
)

// Snapshots are made, and nodes that come late or fall behind continue from them.
func TestSnapshots(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		w.memory.info.SnapshotEntries = 20
		nodes := w.some(4, 2, 4)
		form(t, nodes...)
		thaw := nodes[3].log.freeze()
		keys := nodes[0].Keys(1)
		for i := range 100 {
			if n, err := keys.Add(t.Context(), "sum", 1); err != nil || n != int64(i+1) {
				t.Fatalf("add: %d, %v", n, err)
			}
		}
		synctest.Wait()
		if w.memory.snapshot.Index == 0 || len(w.memory.entries) > 60 {
			t.Errorf("%d entries after snapshot %d", len(w.memory.entries), w.memory.snapshot.Index)
		}
		thaw() // within its lease: nothing has happened to it
		if v, err := nodes[3].Keys(1).Get(t.Context(), "sum"); err != nil || string(v) != "100" {
			t.Errorf("%s, %v", v, err)
		}
		nodes[2].log.kill()
		waiting(t, nodes[0], "n2")
		late := w.node(nodeParams("late", 2, 4))
		joins := []*joining{late.join(t.Context())}
		synctest.Wait()
		for _, n := range []*node{nodes[0], nodes[1], nodes[3]} {
			joins = append(joins, n.join(t.Context()))
		}
		if o := round(t, joins...); o.Round != 2 || o.World != 4 {
			t.Errorf("got %+v", o)
		}
	})
}

// A node that was dropped while it was behind a snapshot learns it and is back.
func TestDroppedBehindASnapshot(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		w.memory.info.SnapshotEntries = 10
		nodes := w.some(2, 1, 2)
		form(t, nodes...)
		thaw := nodes[1].log.freeze()
		waiting(t, nodes[0], "n1")
		form(t, nodes[0])
		w.compact(nodes[0], 2)
		thaw()
		comesBack(t, nodes)
	})
}

// comesBack sees that the second of two nodes learns that it was dropped, and that both
// form the third round.
func comesBack(t *testing.T, nodes []*node) {
	t.Helper()
	waiting(t, nodes[1], "dropped")
	j := nodes[1].join(t.Context())
	waiting(t, nodes[0], "n1")
	if o := round(t, j, nodes[0].join(t.Context())); o.Round != 3 {
		t.Errorf("got %+v", o)
	}
}

// A node that comes to its outcome and to its loss at once knows both.
func TestDroppedWithTheOutcome(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		var nodes []*node
		var joins []*joining
		for i := range 3 {
			p := nodeParams(fmt.Sprint("n", i), 2, 4)
			p.LeaseTimeout = p.LastCallTimeout + 10*time.Second
			nodes = append(nodes, w.node(p))
			joins = append(joins, nodes[i].join(t.Context()))
			synctest.Wait()
		}
		thaw := nodes[2].log.freeze()
		waiting(t, nodes[0], "n2")
		thaw()
		if o := round(t, joins...); o.Round != 1 {
			t.Errorf("got %+v", o)
		}
		waiting(t, nodes[2], "dropped")
		form(t, nodes[2], nodes[0], nodes[1])
	})
}

// A node whose first hello gets into the log once more, after the node was dropped, is
// known by its session, and yet not in the run; it learns that behind a snapshot, too.
func TestLateHelloBehindASnapshot(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		w.memory.info.SnapshotEntries = 20
		nodes := w.some(2, 1, 2)
		form(t, nodes...)
		late := w.hello(nodes[1])
		thaw := nodes[1].log.freeze()
		waiting(t, nodes[0], "n1")
		form(t, nodes[0])
		w.memory.mu.Lock()
		w.memory.addLocked([][]byte{late})
		w.memory.mu.Unlock()
		w.compact(nodes[0], 2)
		thaw()
		comesBack(t, nodes)
	})
}

// So does one that was dropped while it joined.
func TestLateHelloOfAJoinBehindASnapshot(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		w.memory.info.SnapshotEntries = 20
		nodes := w.some(3, 2, 4)
		j := nodes[2].join(t.Context())
		synctest.Wait()
		late := w.hello(nodes[2])
		thaw := nodes[2].log.freeze()
		form(t, nodes[:2]...) // which have lost it by the end of the last call
		w.memory.mu.Lock()
		w.memory.addLocked([][]byte{late})
		w.memory.mu.Unlock()
		w.compact(nodes[0], 1)
		thaw()
		waiting(t, nodes[0], "n2")
		if o := round(t, j, nodes[0].join(t.Context()), nodes[1].join(t.Context())); o.Round != 2 {
			t.Errorf("got %+v", o)
		}
	})
}

// compact has a node write until a snapshot has taken the place of all that was written
// before.
func (c *cluster) compact(n *node, round uint64) {
	c.memory.mu.Lock()
	last := c.memory.last
	c.memory.mu.Unlock()
	for {
		if _, err := n.Keys(round).Add(c.t.Context(), "sum", 1); err != nil {
			c.t.Fatal(err)
		}
		synctest.Wait()
		c.memory.mu.Lock()
		snapshot := c.memory.snapshot.Index
		c.memory.mu.Unlock()
		if snapshot >= last {
			return
		}
	}
}

// hello is the first one of a node, as it is in the log.
func (c *cluster) hello(n *node) []byte {
	c.memory.mu.Lock()
	defer c.memory.mu.Unlock()
	for _, e := range c.memory.entries {
		if ev, err := rendezvous.DecodeEvent(e.Data); err != nil {
			c.t.Fatal(err)
		} else if hello, ok := ev.(rendezvous.Hello); ok && hello.Node == n.name {
			return e.Data
		}
	}
	c.t.Fatalf("no hello of %s", n.name)
	return nil
}

// A node that falls behind a snapshot while it joins learns of its round and that the
// round has lost a member since.
func TestLossBehindASnapshot(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		w.memory.info.SnapshotEntries = 10
		var nodes []*node
		var joins []*joining
		for i := range 3 {
			p := nodeParams(fmt.Sprint("n", i), 2, 4)
			p.LeaseTimeout = 5 * time.Minute
			nodes = append(nodes, w.node(p))
			joins = append(joins, nodes[i].join(t.Context()))
			synctest.Wait()
		}
		thaw := nodes[2].log.freeze()
		<-joins[0].done // after the last call
		<-joins[1].done
		nodes[1].log.kill()
		waiting(t, nodes[0], "n1")
		w.compact(nodes[0], 1)
		thaw()
		if o := round(t, joins...); o.Round != 1 {
			t.Errorf("got %+v", o)
		}
		waiting(t, nodes[2], "n1")
		form(t, nodes[0], nodes[2])
	})
}

// Timers that a snapshot holds run on: the last call ends although every node is
// there by the snapshot.
func TestTimersOfASnapshot(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		w.memory.info.SnapshotEntries = 1
		nodes := w.some(2, 2, 3)
		form(t, nodes...)
	})
}
