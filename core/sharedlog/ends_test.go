package sharedlog

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"rallypoint/core/rendezvous"
)

// TestRecoveryComesAfterLoss: that a log works again is reported although the news that it
// did not has been handed over only and is not processed yet.
func TestRecoveryComesAfterLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(nodeParams("a", 1, 1), ignoringObserver{}, &memoryLog{m: newMemory()}, nil)
		p.applier = newApplier(p)
		for _, err := range []error{errors.New("down"), nil} {
			go p.report(broken{"append", err})
			synctest.Wait()
			select {
			case got := <-p.in:
				if b, ok := got.(broken); !ok || b.err != err {
					t.Errorf("told %v", got)
				}
			default:
				t.Errorf("not told: %v", err)
			}
		}
		go p.report(broken{"append", nil}) // all continues well: it need not be reported
		synctest.Wait()
		select {
		case got := <-p.in:
			t.Errorf("told %v", got)
		default:
		}
	})
}

// slowLog is a log that is slow to show a heartbeat and to be read.
type slowLog struct {
	*memoryLog
	beat, read chan struct{} // closed to let it continue
	closed     chan struct{}
}

func (s *slowLog) Heartbeat(context.Context, rendezvous.SessionID, time.Duration) error {
	<-s.beat
	return nil
}

func (s *slowLog) Latest(context.Context) (Snapshot, error) {
	<-s.read
	return Snapshot{}, nil
}

func (s *slowLog) Close(context.Context) error {
	close(s.closed)
	return nil
}

// TestCloseDuringConnect waits also for what Connect begins meanwhile.
func TestCloseDuringConnect(t *testing.T) {
	l := &slowLog{&memoryLog{m: newMemory()}, make(chan struct{}), make(chan struct{}), make(chan struct{})}
	p := New(nodeParams("a", 1, 1), ignoringObserver{}, l, nil)
	connected, closed := make(chan error, 1), make(chan error, 1)
	go func() { connected <- p.Connect(t.Context()) }()
	for p.connecting.TryLock() { // until Connect has it
		p.connecting.Unlock()
	}
	go func() { closed <- p.Close(t.Context()) }()
	<-p.life.Done()
	close(l.beat)
	if err := <-connected; !errors.Is(err, rendezvous.ErrCanceled) {
		t.Errorf("connecting ended with %v", err)
	}
	select {
	case <-l.closed:
		t.Error("the log was closed while it was read")
	case <-time.After(100 * time.Millisecond): // it cannot be awaited that nothing happens
	}
	close(l.read)
	if err := <-closed; err != nil {
		t.Error(err)
	}
}
