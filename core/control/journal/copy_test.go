package journal

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCopyWhileItIsWritten: each copy is the file as it was at one moment between two
// writes, never half of one, and the journal continues.
func TestCopyWhileItIsWritten(t *testing.T) {
	dir, copies := t.TempDir(), t.TempDir()
	j := open(t, dir)
	defer func() { j.Close() }()
	write(t, j, WriteBatch{Run: 1, Snapshot: &Snapshot{ID: "a", State: []byte("s")}}, WriteBatch{Run: 2, Snapshot: &Snapshot{ID: "b", State: []byte("s")}})
	var writer sync.WaitGroup
	stop := make(chan struct{})
	writer.Go(func() {
		for n := 1; ; n++ {
			select {
			case <-stop:
				return
			default: // both runs in one batch of many pages, which the next one replaces
				batch := make([]WriteBatch, 2)
				for i := range batch {
					batch[i] = WriteBatch{Run: uint64(i + 1), First: uint64(n), Events: [][]byte{bytes.Repeat([]byte{byte(n)}, 1<<13)}}
					if n%8 == 0 {
						batch[i].Snapshot = &Snapshot{ID: string(rune('a' + i)), Through: uint64(n - 1), State: []byte("s")}
					}
				}
				if err := j.Write(batch); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	for i := range 10 {
		path := filepath.Join(copies, string(rune('a'+i)), FileName)
		if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := j.Copy(path); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
			t.Errorf("the copy: %v, %v", info, err)
		}
		c := open(t, filepath.Dir(path))
		runs, err := c.Runs()
		if err != nil || len(runs) != 2 || len(runs[0].Events) != len(runs[1].Events) {
			t.Errorf("the copy holds %d runs, %v", len(runs), err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	writer.Wait()
	if _, err := j.file.file.Stat(); err != nil {
		t.Errorf("what is closed after a fault is the file of a copy: %v", err)
	}
	j = again(t, j) // bbolt's lock is given back by the file that is ours
	if runs, err := j.Runs(); err != nil || len(runs) != 2 {
		t.Errorf("after the copies: %d runs, %v", len(runs), err)
	}
}

// TestCopyIsWholeOrNotThere: a failed copy leaves nothing of its own, and the earlier copy as it was.
func TestCopyIsWholeOrNotThere(t *testing.T) {
	j := open(t, t.TempDir())
	defer j.Close()
	dir := t.TempDir()
	taken := filepath.Join(dir, "taken") // a folder that is not empty cannot be replaced
	if err := os.MkdirAll(filepath.Join(taken, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := j.Copy(taken); err == nil {
		t.Error("a folder was replaced")
	}
	if err := j.Copy(filepath.Join(dir, "none", "x")); err == nil {
		t.Error("a folder was made")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.new")); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
	link := filepath.Join(dir, "y.new")
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), link); err != nil {
		t.Fatal(err)
	}
	if err := j.Copy(filepath.Join(dir, "y")); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "elsewhere")); err == nil {
		t.Error("a link was followed")
	}
}

func TestHolder(t *testing.T) {
	dir := t.TempDir()
	lock := filepath.Join(dir, lockName)
	if _, err := Holder(dir); err == nil {
		t.Error("a directory without a lock has a holder")
	}
	if err := unix.Mkfifo(lock, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Holder(dir); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("of a FIFO: %v", err)
	}
	if err := os.Remove(lock); err != nil {
		t.Fatal(err)
	}
	j := open(t, dir)
	if pid, err := Holder(dir); err != nil || pid != os.Getpid() {
		t.Errorf("%d, %v", pid, err)
	}
	for text, want := range map[string]string{
		"pid of nobody\n":      "does not say",
		"pid 1 on elsewhere\n": "run this there",
		"pid 1\n":              "not by process 1",
	} {
		if err := os.WriteFile(lock, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if pid, err := Holder(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("of %q: %d, %v", text, pid, err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if pid, err := Holder(dir); err != nil || pid != 0 {
		t.Errorf("a closed one: %d, %v", pid, err)
	}
}
