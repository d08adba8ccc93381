package filestore

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/store"
	"rallypoint/internal/lockedfile"
	"rallypoint/internal/testkit"
)

// Whatever is done to the file of an open store, each call says so at once, and
// so do the calls that wait.
func TestFileTakenAway(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(t *testing.T, path string)
		want  error
	}{
		"removed":           {func(t *testing.T, path string) { testkit.Check(t, os.Remove(path)) }, ErrVanished},
		"renamed":           {func(t *testing.T, path string) { testkit.Check(t, os.Rename(path, path+"2")) }, ErrVanished},
		"directory removed": {func(t *testing.T, path string) { testkit.Check(t, os.RemoveAll(filepath.Dir(path))) }, ErrVanished},
		"renamed over": {func(t *testing.T, path string) {
			testkit.WriteFile(t, path+"2", testkit.ReadFile(t, path))
			testkit.Check(t, os.Rename(path+"2", path))
		}, ErrReplaced},
		"cut":       {func(t *testing.T, path string) { testkit.Check(t, os.Truncate(path, 30)) }, ErrReplaced},
		"emptied":   {func(t *testing.T, path string) { testkit.Check(t, os.Truncate(path, 0)) }, ErrReplaced},
		"rewritten": {func(t *testing.T, path string) { testkit.WriteFile(t, path, rec("/k", strings.Repeat("x", 1000))) }, ErrReplaced},
	} {
		for _, remote := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "dir", "store")
				testkit.Check(t, os.Mkdir(filepath.Dir(path), 0o755))
				if name == "directory removed" {
					needsRemoval(t, filepath.Dir(path))
				}
				s := mustOpen(t, path, 0, &Options{Remote: remote})
				ctx := testkit.Within(t, testkit.Patience)
				testkit.Check(t, s.Set(ctx, "k", []byte("value")))
				testkit.Check(t, s.Set(ctx, "l", []byte("value")))
				done := make(chan error, 1)
				go func() { done <- s.Wait(ctx, []string{"missing"}) }()
				time.Sleep(time.Millisecond)
				c.spoil(t, path)
				time.Sleep(lockedfile.PathCheckAge)
				_, err := s.Get(ctx, "k")
				isError(t, err, c.want)
				isError(t, <-done, c.want)
				isError(t, s.Set(ctx, "k", nil), c.want)
				_, err = s.Add(ctx, "n", 1)
				isError(t, err, c.want)
				err = s.Close()
				if c.want == ErrVanished {
					testkit.Check(t, err)
				} else {
					isError(t, err, c.want)
				}
			})
		}
	}
}

func newFile(t *testing.T, path string) {
	testkit.Check(t, os.Remove(path))
	testkit.WriteFile(t, path, rec("/k", strings.Repeat("x", 1000)))
}

// A waiting call alone finds out too, without another one's help.
func TestFileTakenAwayWhileWaiting(t *testing.T) {
	for _, remote := range []bool{false, true} {
		path := newPath(t)
		options := &Options{Remote: remote}
		if !remote {
			options.Clock = onlyNotified{} // inotify tells of it
		}
		s := mustOpen(t, path, 0, options)
		ctx := testkit.Within(t, testkit.Patience)
		done := make(chan error, 1)
		go func() {
			_, err := s.Get(ctx, "missing")
			done <- err
		}()
		time.Sleep(10 * time.Millisecond)
		testkit.Check(t, os.Remove(path))
		isError(t, <-done, ErrVanished)
	}
}

// Nothing is written to a file that came in the place of another.
func TestReplacementIsLeftAlone(t *testing.T) {
	path := newPath(t)
	s := mustOpen(t, path, 0, nil)
	newFile(t, path)
	isError(t, s.Set(testkit.Within(t, testkit.Patience), "k", nil), ErrReplaced)
	before := string(testkit.ReadFile(t, path))
	isError(t, s.Set(testkit.Within(t, testkit.Patience), "k", nil), ErrReplaced)
	isError(t, s.Close(), ErrReplaced)
	testkit.Equal(t, string(testkit.ReadFile(t, path)), before)
}

// A directory that is missing ends Open, whose context does not.
func TestDirectoryMissing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "nowhere")
	_, err := Open(t.Context(), filepath.Join(dir, "store"), 1, nil)
	isError(t, err, fs.ErrNotExist)
	if !strings.Contains(err.Error(), "directory "+dir) {
		t.Errorf("the error does not name the directory: %v", err)
	}
}

func TestFileMode(t *testing.T) {
	path := newPath(t)
	old := unix.Umask(0o026)
	defer unix.Umask(old)
	mustOpen(t, path, 1, nil)
	testkit.Equal(t, testkit.Must(os.Stat(path))(t).Mode(), 0o640)
}

// Open that waits for the lock of a file which its last user removes begins again.
func TestOpenWhileRemoved(t *testing.T) {
	path := newPath(t)
	ctx := testkit.Within(t, testkit.Patience)
	for range 200 {
		a := testkit.Must(Open(ctx, path, 0, nil))(t)
		closed := make(chan error, 1)
		go func() { closed <- a.Close() }()
		b := testkit.Must(Open(ctx, path, 0, nil))(t)
		testkit.Check(t, b.Set(ctx, "k", nil))
		testkit.Check(t, <-closed)
		testkit.Check(t, b.Set(ctx, "k", nil))
		testkit.Check(t, b.Close())
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Fatal("the file is left over")
		}
	}
}

// A relative path is that of the time of Open.
func TestRelativePath(t *testing.T) {
	t.Chdir(t.TempDir())
	s := mustOpen(t, "store", 0, nil)
	testkit.Check(t, os.Chdir("/"))
	testkit.Check(t, s.Set(testkit.Within(t, testkit.Patience), "k", nil))
	testkit.Equal(t, filepath.Base(s.Path()), "store")
}

func TestCloseTwiceAndAfter(t *testing.T) {
	s := mustOpen(t, newPath(t), NeverRemove, nil)
	testkit.Check(t, s.Close())
	testkit.Check(t, s.Close())
	ctx := testkit.Within(t, testkit.Patience)
	_, err := s.Get(ctx, "k")
	isError(t, err, store.ErrClosed)
	isError(t, s.Barrier(ctx, "b", 1), store.ErrClosed)
	isError(t, s.QueuePush(ctx, "q", nil), store.ErrClosed)
}

// Close ends every call of every goroutine, whatever it is at.
func TestCloseWhileBusy(t *testing.T) {
	for _, remote := range []bool{false, true} {
		path := newPath(t)
		s := mustOpen(t, path, 0, &Options{Remote: remote})
		ctx := testkit.Within(t, testkit.Patience)
		calls := []func() error{
			func() error { return s.Set(ctx, "k", []byte("v")) },
			func() error { _, err := s.Add(ctx, "n", 1); return err },
			func() error { _, err := s.Get(ctx, "k"); return err },
			func() error { _, err := s.ListKeys(ctx); return err },
			func() error { return s.Wait(ctx, []string{"never"}) },
			func() error { _, err := s.MultiGet(ctx, []string{"k", "never"}); return err },
		}
		var ends []<-chan error
		for _, call := range calls {
			ends = append(ends, testkit.Go(func() error {
				for {
					if err := call(); err != nil {
						return err
					}
				}
			}))
		}
		waits(t, s, 2)
		time.Sleep(5 * time.Millisecond)
		testkit.Check(t, s.Close())
		for _, end := range ends {
			isError(t, <-end, store.ErrClosed)
		}
		_, err := os.Stat(path)
		isError(t, err, fs.ErrNotExist)
	}
}

// On NFS the lock tells that another machine has removed the file.
func TestFileStale(t *testing.T) {
	s := mustOpen(t, newPath(t), 0, &Options{Remote: true})
	ctx := testkit.Within(t, testkit.Patience)
	testkit.Check(t, s.Set(ctx, "k", nil))
	makeStale(t, s.file)
	for range 2 {
		if _, err := s.Get(ctx, "k"); !errors.Is(err, ErrVanished) {
			t.Error(err)
		}
	}
	testkit.Check(t, s.Close())
}

// An open that is called off once it has made the file takes the file away, as the last Close
// would have.
func TestOpenThatIsCalledOff(t *testing.T) {
	for name, c := range map[string]struct {
		worldSize int
		content   []byte
		stays     bool
	}{
		"new":                {0, nil, false},
		"stays":              {NeverRemove, nil, true},
		"has another user's": {0, rec("/k", "value"), true},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "store")
			if c.content != nil {
				testkit.WriteFile(t, path, c.content)
			}
			ctx, cancel := context.WithCancel(t.Context())
			lockedfile.Flock = func(fd, how int) error {
				cancel() // the file is open, and there if it was not
				return unix.Flock(fd, how)
			}
			defer func() { lockedfile.Flock = unix.Flock }()
			_, err := Open(ctx, path, c.worldSize, nil)
			isError(t, err, context.Canceled)
			if _, err := os.Stat(path); (err == nil) != c.stays {
				t.Errorf("after the open: %v", err)
			}
		})
	}
}

// needsRemoval skips a test that removes a folder whose files are open, where the file
// system keeps those there under other names (FUSE, NFS).
func needsRemoval(t testing.TB, dir string) {
	t.Helper()
	f, err := os.CreateTemp(dir, "open")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(names) > 0 {
		t.Skipf("this file system keeps open files in their folder: %v", names)
	}
}

// makeStale makes the lock of a file fail until the test ends, as that of one on NFS does
// which another machine has removed.
func makeStale(t testing.TB, stale *lockedfile.File) {
	t.Cleanup(func() { lockedfile.Flock = unix.Flock })
	lockedfile.Flock = func(fd, how int) error {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Ino == stale.Ino {
			return unix.ESTALE
		}
		return unix.Flock(fd, how)
	}
}
