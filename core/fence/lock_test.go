package fence

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/filetest"
	"rallypoint/internal/lockedfile"
	"rallypoint/internal/testkit"
)

// TestLostLock: the lock does not exclude anybody, as if the server of the files had given a
// writer's lock to another. That one comes, loads, and saves, before each operation of the first, and
// may stop when its data are in place. What it saved stays: the first one, which has not loaded it, saves nothing
// over it, then or later.
func TestLostLock(t *testing.T) {
	defer func() { lockedfile.Flock = unix.Flock }()
	lockedfile.Flock = func(int, int) error { return nil }
	for _, k := range kinds {
		for _, stops := range []bool{false, true} {
			t.Run(fmt.Sprint(k.name, ", the other stops: ", stops), func(t *testing.T) {
				for stop := 1; lostLock(t, k, stop, stops); stop++ {
				}
			})
		}
	}
}

// lostLock is TestLostLock before one operation; false: there are fewer.
func lostLock(t *testing.T, k kind, stop int, stops bool) bool {
	intercept(t, plain)
	path := filepath.Join(t.TempDir(), "checkpoint")
	testkit.Check(t, k.start(t, path, "first").save("a"))
	w := k.start(t, path, "writer")
	at, loaded, inPlace, there := "", "", false, false
	other := func() {
		there = true
		defer func() { there = false }()
		o := k.start(t, path, "other")
		loaded = o.state
		testkit.Check(t, o.save("x"))
	}
	intercept(t, k.withoutExchange(func(name string, do func() error) error {
		if stop--; stop == 0 {
			at = name
			crashed(other)
		}
		if stops && there && inPlace {
			panic(crash{})
		}
		err := do()
		inPlace = inPlace || there && (name == "rename the data" || name == "exchange the data") && err == nil
		return err
	}))
	first := w.save("b")
	if at == "" || k.into && at == "sync the folder" { // it has claimed: Release tells it
		return false
	}
	intercept(t, plain)
	if loaded == "a" && first == nil {
		t.Errorf("before %q: the writer is told that it saved", at)
	}
	again := w.save("c")
	if last := k.start(t, path, "last"); last.state != loaded+"x" {
		t.Errorf("before %q another saved %q; the checkpoint is %q; the writer got %v, and then %v", at, loaded+"x", last.state, first, again)
	}
	return true
}

// TestBusy: the error of a lock that cannot be had names who has it, and who wrote last; Close ends the wait for it.
func TestBusy(t *testing.T) {
	k := kinds[3]
	path := filepath.Join(t.TempDir(), "out")
	holder, other := k.start(t, path, "gpu-a"), k.start(t, path, "gpu-b")
	testkit.Check(t, holder.fence.Claim(soon()))
	testkit.Check(t, holder.fence.Claim(soon())) // nothing
	err := other.fence.Claim(time.Now())
	if rendezvous.CodeOf(err) != rendezvous.CodeTimeout {
		t.Fatal(err)
	}
	for _, part := range []string{path, "on gpu-a", fmt.Sprintf("held by process %d", os.Getpid())} {
		if !strings.Contains(strings.Replace(err.Error(), "another process", fmt.Sprint("process ", os.Getpid()), 1), part) { // overlays, which /proc/locks knows by another number
			t.Errorf("%q is not in %q", part, err)
		}
	}
	done := make(chan error)
	go func() { done <- other.fence.Claim(time.Time{}) }()
	other.fence.Close()
	if err := <-done; rendezvous.CodeOf(err) != rendezvous.CodeCanceled {
		t.Errorf("Close: %v", err)
	}
	testkit.Check(t, holder.fence.Release())
	testkit.Check(t, holder.fence.Release()) // nothing
	testkit.Check(t, k.start(t, path, "gpu-b").fence.Claim(time.Now()))
}

// TestLostClaim: the lock did not keep another one out; the writer is told when it is done.
func TestLostClaim(t *testing.T) {
	k := kinds[3]
	path := filepath.Join(t.TempDir(), "out")
	w := k.start(t, path, "gpu-a")
	testkit.Check(t, w.fence.Claim(soon()))
	defer func() { lockedfile.Flock = unix.Flock }()
	lockedfile.Flock = func(int, int) error { return nil }
	testkit.Check(t, k.start(t, path, "gpu-b").save("b"))
	if err := w.fence.Release(); !errors.Is(err, rendezvous.ErrFenced) || !strings.Contains(err.Error(), "on gpu-b") || strings.Contains(err.Error(), unchanged) {
		t.Error(err)
	}
}

// TestNoLocks: a file system without flock is refused by name.
func TestNoLocks(t *testing.T) {
	defer func() { lockedfile.Flock = unix.Flock }()
	lockedfile.Flock = func(int, int) error { return unix.ENOLCK }
	if _, err := Open(Options{Path: filepath.Join(t.TempDir(), "checkpoint")}, soon()); !errors.Is(err, lockedfile.ErrNoLocks) {
		t.Error(err)
	}
}

// TestLockIsReplaced: somebody removes the lock's file while another waits for it.
func TestLockIsReplaced(t *testing.T) {
	k := kinds[3]
	path := filepath.Join(t.TempDir(), "out")
	w := k.start(t, path, "gpu-a")
	testkit.Check(t, w.fence.Claim(soon()))
	waiting := make(chan struct{})
	var once sync.Once
	defer func() { lockedfile.Flock = unix.Flock }()
	lockedfile.Flock = func(fd, how int) error {
		once.Do(func() { close(waiting) })
		return unix.Flock(fd, how)
	}
	done := make(chan error)
	other := testkit.Must(Open(Options{Path: path + "x", Into: true}, soon()))(t)
	other.names, other.held = w.fence.names, w.fence.Version()
	defer other.Close()
	go func() { done <- other.Claim(soon()) }()
	<-waiting
	testkit.Check(t, os.Remove(w.fence.lock))
	testkit.Check(t, w.fence.Release())
	testkit.Check(t, <-done)
	if other.file.CheckPath() != nil {
		t.Error("a lock that nobody sees is held")
	}
}

// TestFIFO: nothing waits for a FIFO at a path of the fence.
func TestFIFO(t *testing.T) {
	filetest.AtFIFO(t, func(path string) {
		lock := path + ".fence.lock"
		if err := os.Link(path, lock); err == nil {
			defer os.Remove(lock)
		}
		if _, err := Open(Options{Path: path}, soon()); err == nil {
			t.Error("the lock is a FIFO")
		}
	})
}
