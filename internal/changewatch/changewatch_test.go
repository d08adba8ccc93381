package changewatch

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"rallypoint/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// watch makes a watcher by inotify of a new file, whose clock stands still: nothing but
// inotify ends its waits.
func watch(t *testing.T) (Watcher, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w := New(path, true, testkit.NewClock(), time.Hour, time.Hour)
	if _, ok := w.(*inotifyWatcher); !ok {
		w.Close()
		t.Skip("this user has no inotify left")
	}
	t.Cleanup(w.Close)
	return w, path
}

// A change before Wait ends it as one during it does.
func TestWaitEndsWithAChange(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"written": func(path string) error { return os.WriteFile(path, []byte("x"), 0o600) },
		"removed": os.Remove,
		"renamed": func(path string) error { return os.Rename(path, path+"2") },
		"renamed over": func(path string) error {
			if err := os.WriteFile(path+"2", nil, 0o600); err != nil {
				return err
			}
			return os.Rename(path+"2", path)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, path := watch(t)
			if err := change(path); err != nil {
				t.Fatal(err)
			}
			ctx := testkit.Within(t, testkit.Patience)
			if w.Wait(ctx, false); ctx.Err() != nil {
				t.Error("nothing was noticed")
			}
		})
	}
}

// A burst of changes that no call has waited for does not hinder Close.
func TestCloseWithUnreadChanges(t *testing.T) {
	w, path := watch(t)
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for i := range 1000 {
		if _, err := file.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := file.Chmod(0o600 | os.FileMode(i%2)); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
}

func TestWaitEndsWithItsContext(t *testing.T) {
	w, _ := watch(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	w.Wait(ctx, false)
}

// await fails the test if no token comes.
func await(t *testing.T, changed <-chan struct{}) (open bool) {
	t.Helper()
	select {
	case _, open = <-changed:
	case <-time.After(testkit.Patience):
		t.Fatal("nothing was noticed")
	}
	return open
}

// One file by two names is one watch of the kernel; a file that is renamed is watched no
// more, which its readers learn.
func TestFiles(t *testing.T) {
	f := NewFiles()
	if f == nil {
		t.Skip("this user has no inotify left")
	}
	defer f.Close()
	dir := t.TempDir()
	path, link, other := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "other")
	for _, p := range []string{path, other} {
		if err := os.WriteFile(p, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(path, link); err != nil {
		t.Fatal(err)
	}
	if f.Watch(filepath.Join(dir, "missing")) != nil {
		t.Error("a missing file is watched")
	}
	one, two, still := f.Watch(path), f.Watch(link), f.Watch(other)
	for range 3 {
		if err := os.WriteFile(link, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if !await(t, one) || !await(t, two) {
			t.Fatal("the watch has ended")
		}
	}
	if err := os.Rename(path, path+"2"); err != nil {
		t.Fatal(err)
	}
	for _, changed := range []<-chan struct{}{one, two} {
		for await(t, changed) {
		}
	}
	if len(still) > 0 {
		t.Error("another file's change woke a reader")
	}
	if err := os.WriteFile(other, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !await(t, still) {
		t.Error("the other watch has ended")
	}
}
