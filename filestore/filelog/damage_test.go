package filelog

import (
	"bytes"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/rendezvous"
	"rallypoint/core/sharedlog"
	"rallypoint/internal/filetest"
	"rallypoint/internal/lockedfile"
	"rallypoint/internal/testkit"
)

// A writer killed at any byte of what it wrote disturbs no other: what it had
// written wholly stays, the rest goes.
func TestLogTornAtEveryByte(t *testing.T) {
	whole := appendFrame(appendFrame(nil, frameEntry, 2, []byte("two")), frameEntry, 3, []byte("three"))
	first := len(appendFrame(nil, frameEntry, 2, []byte("two")))
	for cut := range len(whole) + 1 {
		dir := t.TempDir()
		l, reader := openLog(t, dir, nil), openLog(t, dir, nil)
		appendTexts(t, l, "one")
		_, err := l.writer.file.WriteAt(whole[:cut], l.writer.pos)
		testkit.Check(t, err)
		seen := readTexts(t, reader, 0, 1)
		appendTexts(t, openLog(t, dir, nil), "after")
		want := []string{"one", "after"}
		switch {
		case cut == len(whole):
			want = []string{"one", "two", "three", "after"}
		case cut >= first:
			want = []string{"one", "two", "after"}
		}
		seen = append(seen, readTexts(t, reader, uint64(len(seen)), len(want)-len(seen))...)
		if !slices.Equal(seen, want) {
			t.Errorf("cut %d: got %q, want %q", cut, seen, want)
		}
	}
}

// A wrong byte in the middle is not taken for the end of what a killed writer
// wrote: nothing is cut off.
func TestLogDamaged(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir, nil)
	appendTexts(t, l, "one")
	middle := l.writer.pos
	appendTexts(t, l, "two", "three")
	b := testkit.ReadFile(t, l.writer.file.Path)
	b[middle+frameHeadBytes+bodyHeadBytes]++
	testkit.WriteFile(t, l.writer.file.Path, b)
	again := New(dir, "job", nil)
	_, err := again.Open(testkit.Within(t, logPatience))
	wantLogError(t, err, rendezvous.ErrState, dir, "damaged", "again")
	again.crash()
	if got := testkit.ReadFile(t, l.writer.file.Path); !bytes.Equal(got, b) {
		t.Error("the file was changed")
	}
}

func wantLogError(t testing.TB, err error, want *rendezvous.Error, says ...string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got %v; want one like %v", err, want)
	}
	for _, s := range append(says, `run "job"`) {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("the error does not say %q: %v", s, err)
		}
	}
}

// A reader without the lock may see anything where a writer cuts off what a dead one has
// left, and appends: only what stays is damage.
func TestLogMomentaryDamage(t *testing.T) {
	l := openLog(t, t.TempDir(), nil)
	appendTexts(t, l, "one", "two")
	c := testkit.Must(l.openFile(1))(t)
	defer c.close()
	size := testkit.Must(c.size())(t)
	testkit.Check(t, c.checkDamage(size)) // whatever was there before, now there is a frame, and another after it
	at := *c
	at.pos = size
	testkit.Check(t, at.checkDamage(size+100)) // it was cut off

	// The same with a real reader.
	w := l.writer
	end := time.Now().Add(500 * time.Millisecond)
	done := testkit.Go(func() error {
		for n := 0; time.Now().Before(end); n++ {
			frames := appendFrame(nil, frameEntry, w.index+1, make([]byte, n%3000))
			frames = appendFrame(frames, frameEntry, w.index+2, nil)
			torn := appendFrame(nil, frameEntry, w.index+1, make([]byte, 20000))[:len(frames)+500]
			if _, err := w.file.WriteAt(torn, w.pos); err != nil {
				return err
			}
			if err := errors.Join(w.file.Truncate(w.pos), w.append(frames, w.index+2)); err != nil {
				return err
			}
		}
		return nil
	})
	for time.Now().Before(end) {
		testkit.Check(t, c.catchUp(testkit.Must(c.size())(t)))
	}
	testkit.Check(t, <-done)
	testkit.Check(t, c.catchUp(testkit.Must(c.size())(t)))
	if c.index != w.index {
		t.Errorf("read up to %d of %d", c.index, w.index)
	}
}

// A node that was idle while others stored snapshots finds its file gone, and continues in
// the one where the log does.
func TestLogStaleFiles(t *testing.T) {
	dir := t.TempDir()
	a := openLog(t, dir, nil)
	b := openLog(t, dir, &Options{Remote: true})
	appendTexts(t, a, "one")
	readTexts(t, b, 0, 1)
	for i := range 3 {
		index := uint64(i + 1)
		testkit.Check(t, a.Snapshot(testkit.Within(t, logPatience), sharedlog.Snapshot{Index: index, State: []byte("s")}))
		appendTexts(t, a, "more")
	}
	filetest.MakeStale(t, b.writer.file) // which the reader has open, too
	if _, err := b.Next(testkit.Within(t, logPatience), 1); !errors.Is(err, sharedlog.ErrCompacted) {
		t.Fatal(err)
	}
	if s := testkit.Must(b.Latest(testkit.Within(t, logPatience)))(t); s.Index != 3 {
		t.Errorf("got %+v", s)
	}
	appendTexts(t, b, "last")
	if got := readTexts(t, b, 3, 2); !slices.Equal(got, []string{"more", "last"}) {
		t.Errorf("got %q", got)
	}
}

// Trouble with reading is not taken for a run that is dead, or for a writer that was killed.
func TestLogUnreadable(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir, nil)
	appendTexts(t, l, "one")
	run := testkit.Must(lockedfile.OpenFile(filepath.Join(l.dir, "run"), unix.O_WRONLY, 0))(t)
	defer run.Close()
	if alive, err := l.findGeneration(run); !errors.Is(err, unix.EBADF) {
		t.Errorf("alive: %v, error: %v", alive, err)
	}
	c := &cursor{file: run}
	if err := c.checkDamage(testkit.Must(c.size())(t)); !errors.Is(err, unix.EBADF) {
		t.Errorf("damage: %v", err)
	}
}

// No file makes a reader panic, or take what is no log for one.
func FuzzLogFile(f *testing.F) {
	header := appendFrame(nil, frameHeader, 0, logHeader{"job", "G", 1}.encode())
	f.Add(header)
	f.Add(appendFrame(appendFrame(header, frameSnapshot, 7, []byte("s")), frameEntry, 8, []byte("e")))
	f.Add(append(slices.Clone(header), 255, 255, 255, 255, 0, 0, 0, 0, 3))
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), "log")
		testkit.WriteFile(t, path, content)
		c, err := openCursor(path, unix.O_RDWR, logHeader{"job", "G", 1})
		if err != nil {
			return
		}
		defer c.close()
		size := testkit.Must(c.size())(t)
		if _, err := c.state(size); err == nil {
			_ = c.catchUp(size)
		}
		if c.pos > size {
			t.Errorf("position %d of %d", c.pos, size)
		}
	})
}
