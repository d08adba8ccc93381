package forward

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"rallypoint/core/params"
	"rallypoint/core/peer"
	"rallypoint/internal/testkit"
)

// exhausted calls f while this process can open no descriptor.
func exhausted[T any](t *testing.T, f func() T) T {
	var old syscall.Rlimit
	testkit.Check(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old))
	tight := syscall.Rlimit{Cur: 3, Max: old.Max} // those below are open
	testkit.Check(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &tight))
	defer func() { testkit.Check(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old)) }()
	return f()
}

// wantServed has a new worker get an answer.
func wantServed(t *testing.T, f *Forwarder) {
	t.Helper()
	c := worker(t, f.Addr())
	defer c.Close()
	_, _ = io.WriteString(c, "x")
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Error(err)
	}
}

// TestForwarderWithoutDescriptorForTheStore: a connection for which the store cannot be
// reached, since there is no descriptor, is reset, and leaves nothing behind.
func TestForwarderWithoutDescriptorForTheStore(t *testing.T) {
	s := newFar(t, true, echo)
	var none atomic.Bool
	f, _ := newForwarder(t, s, func(o *Options) {
		o.Dial = func(ctx context.Context, port int) (conn Conn, err error) {
			if none.Load() {
				return nil, exhausted(t, func() error {
					_, err := s.dial(ctx, port)
					return err
				})
			}
			return s.dial(ctx, port)
		}
	})
	idle := testkit.Descriptors(t)
	for range 3 {
		none.Store(true)
		wantNoConnection(t, f.Addr())
		testkit.Eventually(t, "the forwarder knows why", func() bool { return errors.Is(f.Err(), syscall.EMFILE) })
		none.Store(false)
		wantServed(t, f)
	}
	testkit.Check(t, f.Err())
	testkit.Eventually(t, "nothing is left", func() bool { return f.open() == 0 && testkit.Descriptors(t) <= idle })
}

// TestForwarderWithoutDescriptorForTheCheck: where it cannot be asked whose a connection is,
// it is refused, by a line that says why.
func TestForwarderWithoutDescriptorForTheCheck(t *testing.T) {
	s := newFar(t, false, echo)
	var none atomic.Bool
	var refused Refusals
	check := peer.NewLoopbackCheck(params.LoopbackUsers{})
	f, lines := newForwarder(t, s, func(o *Options) {
		o.Refusals = &refused
		o.Accept = admitting(func(conn net.Conn) error {
			if none.Load() {
				return exhausted(t, func() error { return check.Admit(conn) })
			}
			return check.Admit(conn)
		})
	})
	wantServed(t, f)
	none.Store(true)
	c := worker(t, f.Addr())
	if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("without a descriptor: %d bytes, %v; want a closed connection", n, err)
	}
	none.Store(false)
	lines.Await(t, "too many open files", 1)
	if n := len(s.dialed()); n != 1 || refused.Counts()["other_user"] != 1 {
		t.Errorf("%d connections went on to the store, %v were refused", n, refused.Counts())
	}
	wantServed(t, f)
}

// TestForwarderOfAStoreThatHangs: a store that accepts and says nothing holds up no other
// connection, and those that wait for it end with the forwarder.
func TestForwarderOfAStoreThatHangs(t *testing.T) {
	release := make(chan struct{})
	hangs := make(chan struct{}, 1)
	hangs <- struct{}{} // for the first that comes
	waiting := make(chan struct{})
	f, _ := newForwarder(t, newFar(t, true, func(c Conn) {
		select {
		case <-hangs:
			close(waiting)
			<-release
		default:
			echo(c)
		}
	}))
	defer close(release)
	stuck := worker(t, f.Addr())
	_, _ = io.WriteString(stuck, "x")
	<-waiting
	for range 3 {
		wantServed(t, f)
	}
	stuck.SetReadDeadline(time.Now().Add(20 * time.Millisecond)) // it has no answer, however long this is
	if n, err := stuck.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes, %v", n, err)
	}
	stuck.SetReadDeadline(time.Now().Add(guard))
	testkit.Check(t, f.Close())
	if _, err := stuck.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection of a closed forwarder: %v", err)
	}
}
