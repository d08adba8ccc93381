package fence

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/internal/testkit"
)

// kind is a form of checkpoint.
type kind struct {
	name   string
	folder bool // the checkpoint is a folder
	into   bool // and is written into
	old    bool // the file system cannot exchange two names
}

var kinds = []kind{
	{name: "file"}, {name: "folder", folder: true}, {name: "folder, no exchange", folder: true, old: true},
	{name: "into a folder", into: true},
}

// intercept has each operation on files pass through f until the test ends.
func intercept(t testing.TB, f func(name string, do func() error) error) {
	own := operate
	operate = f
	t.Cleanup(func() { operate = own })
}

// withoutExchange makes the file system one that cannot exchange two names.
func (k kind) withoutExchange(next func(string, func() error) error) func(string, func() error) error {
	return func(name string, do func() error) error {
		if k.old && name == "exchange the data" {
			return next(name, func() error { return unix.EINVAL })
		}
		return next(name, do)
	}
}

func plain(_ string, do func() error) error { return do() }

// writer is a process that trains: its state is the text that it loaded, and what it added.
type writer struct {
	kind
	path  string
	fence *Fence
	state string
}

func soon() time.Time { return time.Now().Add(10 * time.Second) }

// start opens the fence, and then loads the checkpoint.
func (k kind) start(t testing.TB, path, id string) *writer {
	t.Helper()
	w := &writer{kind: k, path: path}
	w.fence = testkit.Must(Open(Options{Path: path, Into: k.into, Writer: Writer{Run: "job", Round: 2, Machine: id, PID: 1}}, soon()))(t)
	t.Cleanup(w.fence.Close)
	w.state = k.load(t, path)
	return w
}

// load is the checkpoint's content; "" if there is none. In a folder that is written into, it is
// the longest file's, as that of the highest step would be.
func (k kind) load(t testing.TB, path string) (state string) {
	t.Helper()
	switch {
	case k.into:
		files, _ := filepath.Glob(filepath.Join(path, "step-*"))
		slices.Sort(files)
		if len(files) == 0 {
			return ""
		}
		path = files[len(files)-1]
	case k.folder:
		path = filepath.Join(path, "part", "data")
	}
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return string(content)
}

// save adds to the state and writes it.
func (w *writer) save(id string) error {
	next := w.state + id
	if w.into {
		if err := w.fence.Claim(soon()); err != nil {
			return err
		}
		err := os.WriteFile(filepath.Join(w.path, fmt.Sprintf("step-%06d", len(next))), []byte(next), 0o666)
		if err = errors.Join(err, w.fence.Release()); err == nil {
			w.state = next
		}
		return err
	}
	temporary, err := w.fence.Prepare(soon())
	if err != nil {
		return err
	}
	if err := w.write(temporary, next); err != nil {
		_, refused := w.fence.Prepare(soon()) // who has written meanwhile has removed the temporary
		return cmp.Or(refused, err)
	}
	if err := w.fence.Commit(soon()); err != nil {
		return err
	}
	w.state = next
	return nil
}

func (w *writer) write(path, content string) error {
	if w.folder {
		if err := os.MkdirAll(filepath.Join(path, "part"), 0o777); err != nil {
			return err
		}
		path = filepath.Join(path, "part", "data")
	}
	return os.WriteFile(path, []byte(content), 0o666)
}

// clean fails the test if anything but the checkpoint, its record and its lock is there.
func clean(t testing.TB, path string) {
	t.Helper()
	entries := testkit.Must(os.ReadDir(filepath.Dir(path)))(t)
	for _, entry := range entries {
		if rest := strings.TrimPrefix(entry.Name(), filepath.Base(path)); rest != "" && rest != ".fence" && rest != ".fence.lock" {
			t.Errorf("%s is left", entry.Name())
		}
	}
}
