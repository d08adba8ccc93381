package control

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"rallypoint/core/control/journal"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/internal/testkit"
)

// commitGate stands before a server's journal. When it holds, each commit waits until
// the test says what becomes of it.
type commitGate struct {
	write func([]journal.WriteBatch) error
	holds atomic.Bool
	came  chan *heldCommit
	over  chan struct{}
	once  sync.Once
}

// heldCommit is a commit that is on its way to the disk.
type heldCommit struct {
	changes []journal.WriteBatch
	goes    chan bool
}

var errDiskLost = errors.New("the test has lost it")

func newCommitGate(write func([]journal.WriteBatch) error) *commitGate {
	return &commitGate{write: write, came: make(chan *heldCommit), over: make(chan struct{})}
}

func (cg *commitGate) pass(changes []journal.WriteBatch) error {
	if cg.holds.Load() {
		c := &heldCommit{changes, make(chan bool)}
		select {
		case cg.came <- c:
			select {
			case goes := <-c.goes:
				if !goes {
					return errDiskLost
				}
			case <-cg.over:
				return errDiskLost
			}
		case <-cg.over:
			return errDiskLost
		}
	}
	return cg.write(changes)
}

// abandon lets a server that holds a commit end: it is lost.
func (cg *commitGate) abandon() { cg.once.Do(func() { close(cg.over) }) }

// next returns the next commit once it is held.
func (cg *commitGate) next(t *testing.T) *heldCommit {
	t.Helper()
	select {
	case c := <-cg.came:
		return c
	case <-time.After(testkit.Patience):
		t.Fatal("nothing is to be stored")
		return nil
	}
}

// store lets the commit continue to the disk.
func (h *heldCommit) store() { h.goes <- true }

// keys are the operations on keys that the commit stores.
func (h *heldCommit) keys(t *testing.T) (ops []store.Op) {
	t.Helper()
	for _, change := range h.changes {
		for _, b := range change.Events {
			ev, err := rendezvous.DecodeEvent(b)
			if err != nil {
				t.Fatal(err)
			}
			k, ok := ev.(rendezvous.KeyRequest)
			if !ok {
				t.Fatalf("a %T is stored", ev)
			}
			ops = append(ops, k.Op)
		}
	}
	return ops
}

// crash ends the server as a kill would while c is on its way to the disk, which it
// reached or not, and starts another one. A nil c is none.
func (d *durable) crash(c *heldCommit, reached bool) {
	d.t.Helper()
	for _, id := range d.runIDs() {
		d.lookUp(id).close() // from here on nothing is applied, nor said
	}
	if c != nil {
		c.goes <- reached
	}
	d.restart()
}
