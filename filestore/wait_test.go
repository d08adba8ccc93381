package filestore

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/store"
	"rallypoint/internal/changewatch"
	"rallypoint/internal/testkit"
)

// waits reports whether so many calls wait on s, soon.
func waits(t testing.TB, s *Store, n int) {
	t.Helper()
	for deadline := time.Now().Add(testkit.Patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		s.mu.Lock()
		now := s.waiting
		s.mu.Unlock()
		if now == n {
			return
		}
	}
	t.Fatalf("no %d calls wait", n)
}

// onlyNotified is a clock by which no watcher looks at its file again unless the kernel tells
// of a change.
type onlyNotified struct{ RealClock }

func (o onlyNotified) After(d time.Duration) <-chan time.Time {
	if d == changewatch.RecheckInterval {
		return nil
	}
	return o.RealClock.After(d)
}

// With polls that never come, only inotify can wake.
func TestInotifyWakes(t *testing.T) {
	path := newPath(t)
	a := mustOpen(t, path, NeverRemove, &Options{PollMin: time.Hour, Clock: onlyNotified{}})
	if !a.local {
		t.Skip("the file system has no inotify")
	}
	b := mustOpen(t, path, NeverRemove, nil)
	ctx := testkit.Within(t, testkit.Patience)
	for range 20 {
		done := testkit.Go(func() error { return a.Wait(ctx, []string{"k"}) })
		waits(t, a, 1)
		testkit.Check(t, b.Set(ctx, "k", nil))
		testkit.Check(t, <-done)
		testkit.Must(b.Delete(ctx, "k"))(t)
	}
}

func TestPollWakes(t *testing.T) {
	path := newPath(t)
	a := mustOpen(t, path, NeverRemove, &Options{Remote: true})
	b := mustOpen(t, path, NeverRemove, nil)
	ctx := testkit.Within(t, testkit.Patience)
	done := testkit.Go(func() error { return a.Wait(ctx, []string{"k"}) })
	waits(t, a, 1)
	testkit.Check(t, b.Set(ctx, "k", nil))
	testkit.Check(t, <-done)
}

// The poll grows from its least to its greatest time and starts again with each
// change.
func TestPollAdapts(t *testing.T) {
	path := newPath(t)
	clock := testkit.NewClock()
	a := mustOpen(t, path, NeverRemove, &Options{
		Remote: true, Clock: clock, PollMin: 4 * time.Millisecond, PollMax: 10 * time.Millisecond,
	})
	b := mustOpen(t, path, NeverRemove, nil)
	ctx := testkit.Within(t, testkit.Patience)
	done := testkit.Go(func() error { return a.Wait(ctx, []string{"k"}) })
	near := func(want time.Duration) time.Duration {
		t.Helper()
		have := clock.AwaitTimers(t, 1)
		if have.Round(time.Microsecond) != want {
			t.Fatalf("have %v, want %v", have, want)
		}
		return have
	}
	for range 2 {
		for _, ms := range []time.Duration{4, 6, 9} {
			clock.Advance(near(ms * time.Millisecond))
		}
		last := near(10 * time.Millisecond)
		testkit.Check(t, b.Set(ctx, "other", nil))
		clock.Advance(last)
	}
	last := near(4 * time.Millisecond)
	testkit.Check(t, b.Set(ctx, "k", nil))
	clock.Advance(last)
	testkit.Check(t, <-done)
}

// All calls that wait on one store are woken by one watch, each by its own keys.
func TestManyWait(t *testing.T) {
	path := newPath(t)
	a := mustOpen(t, path, NeverRemove, nil)
	b := mustOpen(t, path, NeverRemove, nil)
	ctx := testkit.Within(t, testkit.Patience)
	got := testkit.Go(func() error {
		value, err := a.Get(ctx, "x")
		if err == nil && string(value) != "1" {
			err = errors.New(string(value))
		}
		return err
	})
	both := testkit.Go(func() error { return a.Wait(ctx, []string{"x", "y"}) })
	all := testkit.Go(func() error {
		values, err := a.MultiGet(ctx, []string{"x", "y", "z"})
		if err == nil && len(values) != 3 {
			err = errors.New("too few values")
		}
		return err
	})
	waits(t, a, 3)
	testkit.Check(t, b.Set(ctx, "x", []byte("1")))
	testkit.Check(t, <-got)
	waits(t, a, 2)
	testkit.Must(b.Delete(ctx, "x"))(t)
	testkit.Check(t, b.Set(ctx, "y", nil))
	testkit.Check(t, <-both) // x was written once
	testkit.Check(t, a.Set(ctx, "z", nil))
	waits(t, a, 1)
	testkit.Check(t, a.Set(ctx, "x", nil)) // its own writes wake as well
	testkit.Check(t, <-all)
	waits(t, a, 0)
}

func TestBarrier(t *testing.T) {
	path := newPath(t)
	ctx := testkit.Within(t, testkit.Patience)
	var all sync.WaitGroup
	for range 4 {
		s := mustOpen(t, path, NeverRemove, nil)
		all.Go(func() {
			if err := s.Barrier(ctx, "b", 4); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

func TestWaitEnds(t *testing.T) {
	s := mustOpen(t, newPath(t), NeverRemove, nil)
	err := s.Wait(soon(t), []string{"k"})
	isError(t, err, store.ErrTimeout)
	isError(t, err, context.DeadlineExceeded)
	if text := err.Error(); !strings.Contains(text, s.Path()) || !strings.Contains(text, `"k"`) || !strings.Contains(text, "waited") {
		t.Errorf("the error says too little: %v", err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	done := testkit.Go(func() error { return s.Wait(ctx, []string{"k"}) })
	waits(t, s, 1)
	cancel()
	isError(t, <-done, context.Canceled)
	isError(t, s.Set(ctx, "k", nil), context.Canceled)

	done = testkit.Go(func() error { return s.Wait(context.Background(), []string{"k"}) })
	waits(t, s, 1)
	testkit.Check(t, s.Close())
	isError(t, <-done, store.ErrClosed)
}

// lockOf takes the lock of a file as another process would.
func lockOf(t *testing.T, path string, how int) (unlock func()) {
	t.Helper()
	f := testkit.Must(os.OpenFile(path, os.O_RDWR, 0))(t)
	testkit.Check(t, unix.Flock(int(f.Fd()), how))
	return func() { _ = f.Close() }
}

// While another holds the lock, reads of what is known continue, and every wait for
// the lock ends with its context or with Close.
func TestLockHeld(t *testing.T) {
	path := newPath(t)
	clock := RealClock{}
	s := mustOpen(t, path, 0, &Options{Clock: clock, CloseTimeout: 20 * time.Millisecond})
	ctx := testkit.Within(t, testkit.Patience)
	testkit.Check(t, s.Set(ctx, "k", []byte("v")))
	unlock := lockOf(t, path, unix.LOCK_EX)
	if s.local {
		testkit.Equal(t, string(testkit.Must(s.Get(ctx, "k"))(t)), "v")
	}
	err := s.Set(testkit.Within(t, time.Second), "k", nil) // until it has met the lock
	isError(t, err, store.ErrTimeout)
	if want := s.file.LockHolder(); !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "lock") {
		t.Errorf("the error does not say who holds the lock: %v", err)
	}
	_, err = Open(soon(t), path, 0, nil)
	isError(t, err, store.ErrTimeout)

	one := testkit.Go(func() error { return s.Set(ctx, "k", nil) })
	two := testkit.Go(func() error { return s.Set(soon(t), "k", nil) }) // waits for the turn
	isError(t, <-two, store.ErrTimeout)
	three := testkit.Go(func() error { return s.Set(ctx, "k", nil) })
	isError(t, s.Close(), store.ErrTimeout)
	isError(t, <-one, store.ErrClosed)
	isError(t, <-three, store.ErrClosed)
	unlock()
}

// A shared lock elsewhere lets readers in and writers wait.
func TestSharedLockHeld(t *testing.T) {
	path := newPath(t)
	s := mustOpen(t, path, 0, &Options{Remote: true})
	ctx := testkit.Within(t, testkit.Patience)
	testkit.Check(t, s.Set(ctx, "k", []byte("v")))
	unlock := lockOf(t, path, unix.LOCK_SH)
	testkit.Equal(t, string(testkit.Must(s.Get(ctx, "k"))(t)), "v")
	isError(t, s.Set(soon(t), "k", nil), store.ErrTimeout)
	done := testkit.Go(func() error { return s.Set(ctx, "k", nil) })
	unlock()
	testkit.Check(t, <-done)
}

// The lock is free between calls and while calls wait.
func TestLockIsGivenBack(t *testing.T) {
	path := newPath(t)
	s := mustOpen(t, path, 0, nil)
	ctx := testkit.Within(t, testkit.Patience)
	done := testkit.Go(func() error { return s.Wait(ctx, []string{"k"}) })
	waits(t, s, 1)
	_, err := s.Add(ctx, "refuse", 1)
	testkit.Check(t, err)
	testkit.Check(t, s.Set(ctx, "word", []byte("x")))
	_, err = s.Add(ctx, "word", 1)
	isError(t, err, store.ErrNotNumber)
	lockOf(t, path, unix.LOCK_EX)()
	testkit.Check(t, s.Set(ctx, "k", nil))
	testkit.Check(t, <-done)
}

// A full disk: the write fails, nothing of it stays, and the store continues.
func TestFullDisk(t *testing.T) {
	path := newPath(t)
	s := mustOpen(t, path, NeverRemove, nil)
	ctx := testkit.Within(t, testkit.Patience)
	testkit.Check(t, s.Set(ctx, "k", []byte("v")))
	before := testkit.ReadFile(t, path)
	var old unix.Rlimit
	testkit.Check(t, unix.Getrlimit(unix.RLIMIT_FSIZE, &old))
	testkit.Check(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: uint64(len(before)) + 50, Max: old.Max}))
	err := s.Set(ctx, "large", make([]byte, 1000))
	testkit.Check(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &old))
	isError(t, err, unix.EFBIG)
	testkit.Equal(t, string(testkit.ReadFile(t, path)), string(before))
	testkit.Check(t, s.Set(ctx, "large", make([]byte, 1000)))
	testkit.Equal(t, len(testkit.Must(s.Get(ctx, "large"))(t)), 1000)
}

// endsWhenAsked is a context that ends when a caller is about to wait for its end.
type endsWhenAsked struct {
	context.Context
	end context.CancelFunc
}

func (e endsWhenAsked) Done() <-chan struct{} {
	e.end()
	return e.Context.Done()
}

// A call that has no time to wait begins no watch and leaves nothing behind.
func TestWaitWithoutTime(t *testing.T) {
	path := newPath(t)
	a := mustOpen(t, path, NeverRemove, nil)
	b := mustOpen(t, path, NeverRemove, nil)
	keys := []string{"k"}
	for name, call := range map[string]func(ctx context.Context) error{
		"get":       func(ctx context.Context) error { _, err := a.Get(ctx, "k"); return err },
		"multi_get": func(ctx context.Context) error { _, err := a.MultiGet(ctx, keys); return err },
		"wait":      func(ctx context.Context) error { return a.Wait(ctx, keys) },
	} {
		ctx, end := context.WithCancel(context.Background())
		if err := call(endsWhenAsked{ctx, end}); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		a.mu.Lock()
		if a.watch != nil || a.waiting != 0 {
			t.Errorf("%s: left %d calls and the watch %v", name, a.waiting, a.watch)
		}
		a.mu.Unlock()
	}
	// A caller that waits with time is woken, and no other.
	done := testkit.Go(func() error { return a.Wait(testkit.Within(t, testkit.Patience), keys) })
	waits(t, a, 1)
	testkit.Check(t, b.Set(context.Background(), "k", nil))
	testkit.Check(t, <-done)
}

// A write that is called off while it waits for the lock is not made when the lock is
// free a moment later.
func TestCalledOffWhileLocked(t *testing.T) {
	path := newPath(t)
	s := mustOpen(t, path, NeverRemove, nil)
	other, err := os.Open(path)
	testkit.Check(t, err)
	defer other.Close()
	for range 100 {
		testkit.Check(t, unix.Flock(int(other.Fd()), unix.LOCK_EX))
		ctx, cancel := context.WithCancel(context.Background())
		done := testkit.Go(func() error { _, err := s.Add(ctx, "n", 1); return err })
		for len(s.turn) == 0 { // until it is about to ask for the lock
			time.Sleep(100 * time.Microsecond)
		}
		cancel()
		testkit.Check(t, unix.Flock(int(other.Fd()), unix.LOCK_UN))
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Fatalf("%v, want that it was called off", err)
		}
	}
	if n, err := s.Add(context.Background(), "n", 0); err != nil || n != 0 {
		t.Errorf("%d of them were made (%v)", n, err)
	}
}
