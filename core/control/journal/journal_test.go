package journal

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	syscall.Umask(0o022) // a directory that a group may write to is refused
	goleak.VerifyTestMain(m)
}

func open(t *testing.T, dir string) *Journal {
	t.Helper()
	j, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func write(t *testing.T, j *Journal, changes ...WriteBatch) {
	t.Helper()
	if err := j.Write(changes); err != nil {
		t.Fatal(err)
	}
}

func events(from, to int) (list [][]byte) {
	for i := from; i <= to; i++ {
		list = append(list, fmt.Appendf(nil, "event %d", i))
	}
	return list
}

// again closes the journal and opens it again.
func again(t *testing.T, j *Journal) *Journal {
	t.Helper()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	return open(t, filepath.Dir(j.path))
}

func wantRuns(t *testing.T, j *Journal, want ...Run) {
	t.Helper()
	got, err := j.Runs()
	if err != nil {
		t.Fatal(err)
	}
	if len(got)+len(want) > 0 && !reflect.DeepEqual(got, want) {
		t.Fatalf("got  %+v\nwant %+v", got, want)
	}
}

func TestRunsAreKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "data")
	j := open(t, dir)
	if !j.Fresh() {
		t.Error("a new journal is not fresh")
	}
	write(t, j,
		WriteBatch{Run: 1, Snapshot: &Snapshot{ID: "one", State: []byte("s0")}, First: 1, Events: events(1, 3)},
		WriteBatch{Run: 300, Snapshot: &Snapshot{ID: "", State: nil}})
	write(t, j, WriteBatch{Run: 1, First: 4, Events: events(4, 5)}, WriteBatch{Run: 2, Snapshot: &Snapshot{ID: "two", State: []byte("t0")}, First: 1, Events: events(1, 1)})
	j = again(t, j)
	if j.Fresh() {
		t.Error("an old journal is fresh")
	}
	two := Run{Number: 2, ID: "two", Snapshot: []byte("t0"), Events: events(1, 1)}
	empty := Run{Number: 300, Snapshot: []byte{}}
	wantRuns(t, j, Run{Number: 1, ID: "one", Snapshot: []byte("s0"), Events: events(1, 5)}, two, empty)

	write(t, j, WriteBatch{Run: 1, Snapshot: &Snapshot{ID: "one", Through: 4, State: []byte("s4")}, First: 6, Events: events(6, 6)})
	j = again(t, j)
	wantRuns(t, j, Run{Number: 1, ID: "one", Through: 4, Snapshot: []byte("s4"), Events: events(5, 6)}, two, empty)

	write(t, j, WriteBatch{Run: 1, Snapshot: &Snapshot{ID: "one", Through: 6, State: []byte("s6")}}, WriteBatch{Run: 2, First: 2, Events: events(2, 2), Forget: true})
	j = again(t, j)
	wantRuns(t, j, Run{Number: 1, ID: "one", Through: 6, Snapshot: []byte("s6")}, empty)
	j.Close()

	for path, want := range map[string]os.FileMode{dir: 0o700, j.path: 0o600, filepath.Join(dir, lockName): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
}

func TestOneProcessAtATime(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	_, err := Open(dir, Options{LockWait: time.Nanosecond})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("in use by another server (pid %d", os.Getpid())) ||
		!strings.Contains(err.Error(), "--data-dir") {
		t.Errorf("a second one: %v", err)
	}
	write(t, j, WriteBatch{Run: 1, Snapshot: &Snapshot{ID: "one"}}) // the first one continues
	j = again(t, j)
	j.Close()
}

// TestUnfinishedFile has a process killed while it made the file.
func TestUnfinishedFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, FileName+".new"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	j := open(t, dir)
	defer j.Close()
	if !j.Fresh() {
		t.Error("not fresh")
	}
}

// boltOf makes a database of bbolt that is filled so.
func boltOf(fill func(*bbolt.Tx) error) func(t *testing.T, path string) {
	return func(t *testing.T, path string) {
		db, err := bbolt.Open(path, 0o600, nil)
		if err == nil {
			err = db.Update(fill)
		}
		if err := errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// bytesOf makes a file of b.
func bytesOf(b []byte) func(t *testing.T, path string) {
	return func(t *testing.T, path string) {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFilesThatAreRefused(t *testing.T) {
	whole := t.TempDir()
	j := open(t, whole)
	write(t, j, WriteBatch{Run: 1, Snapshot: &Snapshot{ID: "one", State: bytes.Repeat([]byte("state"), 1000)}, First: 1, Events: events(1, 300)})
	var used int64
	if err := j.file.db.View(func(tx *bbolt.Tx) error { used = tx.Size(); return nil }); err != nil {
		t.Fatal(err)
	}
	j.Close()
	content, err := os.ReadFile(j.path)
	if err != nil {
		t.Fatal(err)
	}
	newer := func(tx *bbolt.Tx) error {
		meta, err := tx.CreateBucket(metaBucket)
		if err != nil {
			return err
		}
		return errors.Join(meta.Put(kindKey, []byte(kind)), meta.Put(formatKey, number(fileFormat+1)))
	}
	tests := map[string]struct {
		make func(t *testing.T, path string)
		want string
	}{
		"empty":        {bytesOf(nil), "is empty"},
		"text":         {bytesOf(bytes.Repeat([]byte("hello, world\n"), 5000)), "torn, or not a data file of Rallypoint"},
		"short text":   {bytesOf([]byte("hello")), "torn, or not a data file of Rallypoint"},
		"half":         {bytesOf(content[:len(content)/2]), "torn"},
		"a byte short": {bytesOf(content[:used-1]), "torn"},
		"foreign":      {boltOf(func(tx *bbolt.Tx) error { _, err := tx.CreateBucket([]byte("x")); return err }), "of another program"},
		"newer":        {boltOf(newer), "newer release"},
		"a directory":  {func(t *testing.T, path string) { os.Mkdir(path, 0o700) }, "not a regular file"},
		"a link":       {func(t *testing.T, path string) { os.Symlink(j.path, path) }, "not a regular file"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			test.make(t, filepath.Join(dir, FileName))
			before, _ := os.ReadFile(filepath.Join(dir, FileName))
			j, err := Open(dir, Options{})
			if err == nil {
				_, err = j.Runs()
				j.Close()
			}
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "--data-dir") || !strings.Contains(err.Error(), dir) {
				t.Errorf("%v; want an error that says %q", err, test.want)
			}
			if after, _ := os.ReadFile(filepath.Join(dir, FileName)); !bytes.Equal(before, after) {
				t.Error("the refused file was changed")
			}
		})
	}
}

// TestDamagedFiles changes bytes anywhere: the file is refused, or what was
// stored is unchanged.
func TestDamagedFiles(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	want := Run{Number: 1, ID: "one", Snapshot: bytes.Repeat([]byte("state"), 100), Events: events(1, 200)}
	write(t, j, WriteBatch{Run: 1, Snapshot: &Snapshot{ID: "one", State: want.Snapshot}, First: 1, Events: want.Events})
	j.Close()
	content, err := os.ReadFile(j.path)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	refused := 0
	for range 300 {
		damaged := slices.Clone(content)
		at := random.IntN(len(damaged))
		for i := at; i < min(at+1+random.IntN(600), len(damaged)); i++ {
			damaged[i] = byte(random.Uint32())
		}
		if err := os.WriteFile(j.path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		j, err := Open(dir, Options{})
		if err != nil {
			refused++
			continue
		}
		runs, err := j.Runs()
		switch {
		case err != nil:
			refused++
		case len(runs) != 1 || !reflect.DeepEqual(runs[0], want):
			t.Errorf("bytes from %d on are changed, and so is what is read", at)
		}
		j.Close()
	}
	if refused == 0 {
		t.Error("no damage was found")
	}
}

// TestFullFile fills the file up to a limit and makes room again.
func TestFullFile(t *testing.T) {
	j, err := Open(t.TempDir(), Options{MaxSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { j.Close() }()
	fillUp(t, j)
}

// TestFullDisk does the same on a disk of its own.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m,mode=700"); err != nil {
		t.Skipf("mounting a disk is not allowed here (%v); TestFullFile does the same with a limit", err)
	}
	defer syscall.Unmount(dir, syscall.MNT_DETACH)
	j := open(t, dir)
	fillUp(t, j)
	j = again(t, j)
	if runs, err := j.Runs(); err != nil || len(runs) == 0 {
		t.Errorf("%d runs, %v", len(runs), err)
	}
	j.Close()
}

func fillUp(t *testing.T, j *Journal) {
	t.Helper()
	state := bytes.Repeat([]byte("x"), 20_000)
	var stored uint64
	var full error
	for run := uint64(1); full == nil; run++ {
		if run == 1000 {
			t.Fatal("it is never full")
		}
		if full = j.Write([]WriteBatch{{Run: run, Snapshot: &Snapshot{ID: "r", State: state}}}); full == nil {
			stored = run
		}
	}
	if !strings.Contains(full.Error(), j.path) {
		t.Errorf("the error does not name the file: %v", full)
	}
	runs, err := j.Runs()
	if err != nil || uint64(len(runs)) != stored {
		t.Fatalf("%d runs are there, %d were stored; %v", len(runs), stored, err)
	}
	for run := range stored / 2 {
		if err := j.Write([]WriteBatch{{Run: run + 1, Forget: true}}); err != nil {
			t.Fatalf("forgetting on a full disk: %v", err)
		}
	}
	write(t, j, WriteBatch{Run: 1001, Snapshot: &Snapshot{ID: "r", State: state}})
}

// TestTheFileDoesNotGrow stores and forgets many runs.
func TestTheFileDoesNotGrow(t *testing.T) {
	j := open(t, t.TempDir())
	defer j.Close()
	state := bytes.Repeat([]byte("x"), 2000)
	size := int64(0)
	for run := range uint64(300) {
		write(t, j, WriteBatch{Run: run, Snapshot: &Snapshot{ID: "r", State: state}, First: 1, Events: events(1, 50)})
		write(t, j, WriteBatch{Run: run, Snapshot: &Snapshot{ID: "r", Through: 30, State: state}})
		write(t, j, WriteBatch{Run: run, Forget: true})
		if run == 20 {
			size = j.Size()
		}
	}
	if now := j.Size(); now > 2*size {
		t.Errorf("it grew from %d to %d bytes", size, now)
	}
	wantRuns(t, j)
}
