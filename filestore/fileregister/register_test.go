package fileregister

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/lockedfile"
	"rallypoint/internal/testkit"
	"rallypoint/roundstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// both are a directory of this machine, and one that other machines write to.
var both = map[string]Options{"local": {}, "remote": {Remote: true}}

func set(t testing.TB, r *Register, state string, token []byte) (nowToken []byte, ok bool) {
	t.Helper()
	now, nowToken, ok, err := r.SetState(testkit.Within(t, testkit.Patience), []byte(state), token)
	testkit.Check(t, err)
	if ok && string(now) != state {
		t.Errorf("%q was set, %q is there", state, now)
	}
	return nowToken, ok
}

func get(t testing.TB, r *Register) (string, []byte) {
	t.Helper()
	state, token, err := r.GetState(testkit.Within(t, testkit.Patience))
	testkit.Check(t, err)
	return string(state), token
}

// TestRegister: of those that set a value at one time one does; the file does not grow; one that is set for
// no time leaves nothing.
func TestRegister(t *testing.T) {
	for name, options := range both {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			a, b := New(dir, "a/run", options), New(dir, "a/run", options)
			if state, token := get(t, a); state != "" || token != nil {
				t.Errorf("%q, %q", state, token)
			}
			_, ok := set(t, a, "first", nil)
			if _, again := set(t, b, "other", nil); !ok || again {
				t.Errorf("%v, %v", ok, again)
			}
			var all sync.WaitGroup
			const writers, each = 4, 50
			for i := range writers {
				all.Go(func() {
					r := New(dir, "a/run", options)
					for range each {
						for done := false; !done; {
							state, token := get(t, r)
							_, done = set(t, r, state+fmt.Sprint(i), token)
						}
					}
				})
			}
			all.Wait()
			state, token := get(t, b)
			testkit.Equal(t, len(state), len("first")+writers*each)
			info := testkit.Must(os.Stat(filepath.Join(dir, "rallypoint-a%2Frun")))(t)
			if info.Mode() != 0o600 || info.Size() > slots*slotSize {
				t.Errorf("mode %v, %d bytes", info.Mode(), info.Size())
			}
			testkit.Equal(t, fmt.Sprint(testkit.Must(Runs(t.Context(), dir))(t)), "[a/run]")
			if age := testkit.Must(a.Age(t.Context()))(t); age < 0 || age > testkit.Patience {
				t.Errorf("it is %v old", age)
			}
			if _, _, ok, err := a.SetFor(t.Context(), nil, []byte("1 x"), 0); ok || err != nil {
				t.Error(ok, err)
			}
			if _, _, ok, err := a.SetFor(t.Context(), nil, token, 0); !ok || err != nil {
				t.Error(ok, err)
			}
			if left := testkit.Must(os.ReadDir(dir))(t); len(left) > 0 {
				t.Errorf("it leaves %v", left)
			}
			if _, ok := set(t, b, "again", nil); !ok {
				t.Error("it cannot be set again")
			}
		})
	}
}

// TestWatch tells of each change where the kernel does.
func TestWatch(t *testing.T) {
	dir := t.TempDir()
	r, w := New(dir, "job", Options{}), New(dir, "job", Options{})
	token, _ := set(t, r, "0", nil)
	ctx, cancel := context.WithCancel(t.Context())
	states, done := make(chan string, 100), make(chan error, 1)
	go func() { done <- w.Watch(ctx, func(state, _ []byte) { states <- string(state) }) }()
	for i := range 5 {
		for want := fmt.Sprint(i); <-states != want; {
		}
		token, _ = set(t, r, fmt.Sprint(i+1), token)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestWatchOfTheNextRun: a file that takes the place of one that was removed is watched as that was.
func TestWatchOfTheNextRun(t *testing.T) {
	dir := t.TempDir()
	r, w := New(dir, "job", Options{}), New(dir, "job", Options{Clock: testkit.NewClock()}) // whose time stands still
	token, _ := set(t, r, "last", nil)
	ctx, cancel := context.WithCancel(t.Context())
	told, again, done := make(chan string, 100), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_ = w.Watch(ctx, func(state, _ []byte) {
				told <- string(state)
				<-again
			})
		}
	}()
	defer func() { cancel(); <-done }()
	await := func(want string) {
		t.Helper()
		for late := time.After(testkit.Patience); ; {
			select {
			case state := <-told:
				if state == want {
					return
				}
			case <-late:
				close(again)
				t.Fatalf("the watch does not tell of %q", want)
			}
		}
	}
	await("last")
	if _, _, ok, err := r.SetFor(t.Context(), nil, token, 0); !ok || err != nil {
		t.Fatal(ok, err)
	}
	token = nil
	for i := range 5 {
		token, _ = set(t, r, fmt.Sprint(i), token)
		again <- struct{}{}
		await(fmt.Sprint(i))
	}
	close(again)
}

// TestDamage: a writer that was killed in the middle of a write leaves the value before; a file with no whole
// value is refused, and left alone.
func TestDamage(t *testing.T) {
	dir := t.TempDir()
	r := New(dir, "job", Options{})
	token, _ := set(t, r, "first", nil)
	set(t, r, "second", token)
	whole := testkit.Must(os.ReadFile(r.path))(t)
	for cut := slotSize; cut < len(whole); cut++ { // the second slot is not whole
		testkit.Check(t, os.WriteFile(r.path, whole[:cut], 0o600))
		if state, token := get(t, r); state != "first" || token == nil {
			t.Fatalf("%d bytes: %q", cut, state)
		}
	}
	flipped := bytes.Clone(whole)
	flipped[len(flipped)-1] ^= 1
	testkit.Check(t, os.WriteFile(r.path, flipped, 0o600))
	if state, _ := get(t, r); state != "first" {
		t.Errorf("%q", state)
	}
	for _, foreign := range []string{"x", strings.Repeat("another program's ", 1000)} {
		testkit.Check(t, os.WriteFile(r.path, []byte(foreign), 0o600))
		_, _, _, err := r.SetState(t.Context(), []byte("x"), nil)
		if rendezvous.CodeOf(err) != rendezvous.CodeState || !errors.Is(err, rendezvous.ErrState) || !strings.Contains(err.Error(), "is damaged") {
			t.Error(err)
		}
		testkit.Equal(t, string(testkit.Must(os.ReadFile(r.path))(t)), foreign)
	}
}

// TestFirstValueIsBeingWritten: who reads meanwhile waits until it is whole.
func TestFirstValueIsBeingWritten(t *testing.T) {
	r := New(t.TempDir(), "run", Options{})
	file, err := lockedfile.OpenFile(r.path, unix.O_RDWR|unix.O_CREAT, fileMode)
	testkit.Check(t, err)
	defer file.Close()
	testkit.Check(t, file.Lock(lockedfile.WaitLimit{Ctx: t.Context()}, r.clock, unix.LOCK_EX))
	whole := slot{1, []byte("first")}.encode()
	_, err = file.WriteAt(whole[:20], 0)
	testkit.Check(t, err)
	read := make(chan error)
	go func() {
		state, _, err := r.GetState(t.Context())
		if err == nil && string(state) != "first" {
			err = fmt.Errorf("it has read %q", state)
		}
		read <- err
	}()
	select {
	case err := <-read:
		t.Fatal("it has not waited: ", err)
	case <-time.After(50 * time.Millisecond): // what is tested
	}
	_, err = file.WriteAt(whole[20:], 20)
	testkit.Check(t, err)
	file.Unlock()
	testkit.Check(t, <-read)
}

// TestRemovedWhileItIsRead: who has opened the file of a run that ends just then looks again.
func TestRemovedWhileItIsRead(t *testing.T) {
	for name, options := range both {
		t.Run(name, func(t *testing.T) {
			r := New(t.TempDir(), "run", options)
			for _, after := range []func(){func() {}, func() { set(t, r, "next", nil) }} {
				token, _ := set(t, r, "last", nil)
				file := testkit.Must(lockedfile.OpenFile(r.path, unix.O_RDONLY, 0))(t)
				defer file.Close()
				if _, _, ok, err := r.SetFor(t.Context(), nil, token, 0); !ok || err != nil {
					t.Fatal(ok, err)
				}
				after()
				again, err := r.locked(t.Context(), file, unix.LOCK_SH, func(f *lockedfile.File) error {
					_, _, err := read(f)
					return err
				})
				if !again {
					t.Errorf("it gives up: %v", err)
				}
			}
		})
	}
}

// TestRefusals: errors that no repetition helps against say what to do.
func TestRefusals(t *testing.T) {
	root := os.Geteuid() == 0
	for name, c := range map[string]struct {
		prepare func(t *testing.T, dir, path string)
		code    rendezvous.Code
		says    string
	}{
		"no directory": {func(t *testing.T, dir, _ string) { testkit.Check(t, os.Remove(dir)) }, rendezvous.CodeInvalid, "it has to be there"},
		"a directory":  {func(t *testing.T, _, path string) { testkit.Check(t, os.Mkdir(path, 0o700)) }, rendezvous.CodeState, ""},
		"others may write": {func(t *testing.T, _, path string) {
			testkit.Check(t, os.WriteFile(path, nil, 0o666))
			testkit.Check(t, os.Chmod(path, 0o666))
		}, rendezvous.CodeState, "may be written to by others"},
		"another user's": {func(t *testing.T, _, path string) {
			testkit.Check(t, os.WriteFile(path, nil, 0o600))
			testkit.Check(t, os.Chown(path, 1, 1))
		}, rendezvous.CodeState, "belongs to user 1"},
		"a symbolic link": {func(t *testing.T, _, path string) { testkit.Check(t, os.Symlink("/etc/passwd", path)) }, rendezvous.CodeInvalid, "without links"},
		"a pipe":          {func(t *testing.T, _, path string) { testkit.Check(t, unix.Mkfifo(path, 0o600)) }, rendezvous.CodeState, "not a regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "another user's" && !root {
				t.Skip("only root gives files away")
			}
			dir := filepath.Join(t.TempDir(), "dir")
			testkit.Check(t, os.Mkdir(dir, 0o700))
			r := New(dir, "job", Options{})
			c.prepare(t, dir, r.path)
			_, _, err := r.GetState(t.Context())
			if name == "a directory" || name == "a pipe" {
				_, _, _, err = r.SetState(t.Context(), []byte("x"), nil)
			}
			if rendezvous.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), dir) {
				t.Errorf("%d: %v", rendezvous.CodeOf(err), err)
			}
		})
	}
}

// TestLockThatIsHeld: a process that hangs with the lock is named.
func TestLockThatIsHeld(t *testing.T) {
	r := New(t.TempDir(), "job", Options{})
	set(t, r, "x", nil)
	f := testkit.Must(lockedfile.OpenFile(r.path, unix.O_RDWR, 0))(t)
	defer f.Close()
	testkit.Must(f.TryLock(unix.LOCK_EX))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, _, err := r.SetState(ctx, []byte("y"), nil); rendezvous.CodeOf(err) != rendezvous.CodeConnection || !strings.Contains(err.Error(), "held by") {
		t.Error(err)
	}
	if state, _ := get(t, r); state != "x" { // a reader on this machine needs no lock
		t.Errorf("%q", state)
	}
}

func aNode(t *testing.T, dir, name string, options Options) *member.Member {
	t.Helper()
	p := params.Default()
	p.RunID, p.Endpoint, p.NodeID, p.Min, p.Max, p.LeaseTimeout, p.LastCallTimeout = "job", "file://"+dir, name, 2, 3, time.Second, 50*time.Millisecond
	m := testkit.Must(roundstore.OpenRegister(p, New(dir, "job", options), func() string { return "127.0.0.1" }, nil, slog.New(slog.DiscardHandler)))(t)
	t.Cleanup(func() { m.Close() })
	return m
}

// TestRemovedUnderItsNodes: a file that is removed while a job runs is written anew by the leader; one that is
// damaged interrupts nobody.
func TestRemovedUnderItsNodes(t *testing.T) {
	for name, options := range both {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			a, b := aNode(t, dir, "a", options), aNode(t, dir, "b", options)
			joined := testkit.Go(func() error { _, err := b.Next(testkit.Within(t, testkit.Patience)); return err })
			testkit.Must(a.Next(testkit.Within(t, testkit.Patience)))(t)
			testkit.Check(t, <-joined)
			path := New(dir, "job", options).path
			testkit.Check(t, os.Remove(path))
			testkit.Eventually(t, "it is there again", func() bool { _, err := os.Stat(path); return err == nil })
			testkit.Check(t, os.WriteFile(path, []byte("damage"), 0o600))
			time.Sleep(2 * time.Second) // two leases
			if a.NodesWaiting()+b.NodesWaiting() > 0 || a.Closed() || b.Closed() {
				t.Errorf("%s; %s", a.Reason(), b.Reason())
			}
			testkit.Check(t, os.Remove(path))
			testkit.Check(t, a.SetClosed(testkit.Within(t, testkit.Patience), "enough"))
			testkit.Eventually(t, "the other knows", b.Closed)
		})
	}
}
