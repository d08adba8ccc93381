package filelog

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/rendezvous"
	"rallypoint/core/sharedlog"
	"rallypoint/internal/changewatch"
	"rallypoint/internal/filetest"
	"rallypoint/internal/lockedfile"
	"rallypoint/internal/testkit"
)

const logPatience = 20 * time.Second

// openLog opens a run's log in dir; it is closed with the test.
func openLog(t testing.TB, dir string, options *Options) *Log {
	t.Helper()
	l := New(dir, "job", options)
	if _, err := l.Open(testkit.Within(t, logPatience)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	if _, err := l.Latest(testkit.Within(t, logPatience)); err != nil {
		t.Fatal(err)
	}
	return l
}

// crash ends a log as SIGKILL would: the kernel closes its files.
func (l *Log) crash() {
	l.close.Do(func() {
		l.release()
		if l.heartbeat != nil {
			l.heartbeat.file.Close()
		}
	})
}

func appendTexts(t testing.TB, l *Log, texts ...string) {
	t.Helper()
	var entries [][]byte
	for _, s := range texts {
		entries = append(entries, []byte(s))
	}
	testkit.Check(t, l.Append(testkit.Within(t, logPatience), entries))
}

// readTexts reads the next n entries behind after.
func readTexts(t testing.TB, l *Log, after uint64, n int) []string {
	t.Helper()
	var texts []string
	for len(texts) < n {
		b := testkit.Must(l.Next(testkit.Within(t, logPatience), after))(t)
		for _, e := range b.Entries {
			if e.Index != after+1 {
				t.Fatalf("index %d after %d", e.Index, after)
			}
			after = e.Index
			texts = append(texts, string(e.Data))
		}
	}
	return texts
}

func TestLogIsShared(t *testing.T) {
	for name, options := range map[string]*Options{"local": nil, "remote": {Remote: true}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			a, b := openLog(t, dir, options), openLog(t, dir, options)
			if a.generation != b.generation {
				t.Error("two nodes open two generations")
			}
			waited := make(chan []string)
			go func() { waited <- readTexts(t, b, 0, 3) }()
			appendTexts(t, a, "1", "")
			appendTexts(t, b, "3")
			if got := <-waited; !slices.Equal(got, []string{"1", "", "3"}) {
				t.Errorf("got %q", got)
			}
			if got := readTexts(t, a, 0, 3); !slices.Equal(got, []string{"1", "", "3"}) {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestLogNextEndsWithItsContext(t *testing.T) {
	for name, options := range map[string]*Options{"inotify": nil, "poll": {Remote: true}} {
		t.Run(name, func(t *testing.T) {
			l := openLog(t, t.TempDir(), options)
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(20*time.Millisecond, cancel)
			if _, err := l.Next(ctx, 0); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		})
	}
}

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
	wantLogError(t, err, rendezvous.ErrState, dir, "damaged", "anew")
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
	testkit.Check(t, c.checkDamage(size)) // whatever was there, now a frame is, with another behind it
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

// A node that was idle while others stored snapshots finds its file gone, and goes on in
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

// Readers at all positions go on over snapshots; one that starts late gets the
// snapshot and what is behind it.
func TestLogSnapshots(t *testing.T) {
	dir := t.TempDir()
	l, slow := openLog(t, dir, nil), openLog(t, dir, nil)
	for i := range 10 {
		appendTexts(t, l, fmt.Sprint(i+1))
		if i == 3 {
			if got := readTexts(t, slow, 0, 4); len(got) != 4 {
				t.Fatalf("got %q", got)
			}
		}
	}
	testkit.Check(t, l.Snapshot(testkit.Within(t, logPatience), sharedlog.Snapshot{Index: 8, State: []byte("eight")}))
	testkit.Check(t, l.Snapshot(testkit.Within(t, logPatience), sharedlog.Snapshot{Index: 5, State: []byte("older: nothing happens")}))
	appendTexts(t, l, "11")
	appendTexts(t, slow, "12") // its writer has not moved on yet
	if got := readTexts(t, slow, 4, 8); !slices.Equal(got, strings.Fields("5 6 7 8 9 10 11 12")) {
		t.Errorf("got %q", got)
	}
	late := openLog(t, dir, nil)
	s := testkit.Must(late.Latest(testkit.Within(t, logPatience)))(t)
	if s.Index != 8 || string(s.State) != "eight" {
		t.Errorf("got %d %q", s.Index, s.State)
	}
	if got := readTexts(t, late, 8, 4); !slices.Equal(got, strings.Fields("9 10 11 12")) {
		t.Errorf("got %q", got)
	}
	// A reader that two files were taken away from has to begin from a snapshot.
	behind := openLog(t, dir, nil)
	for i := range uint64(3) {
		testkit.Check(t, l.Snapshot(testkit.Within(t, logPatience), sharedlog.Snapshot{Index: 10 + i, State: []byte("s")}))
	}
	b, err := behind.Next(testkit.Within(t, logPatience), 8)
	for err == nil {
		b, err = behind.Next(testkit.Within(t, logPatience), b.Entries[len(b.Entries)-1].Index)
	}
	if !errors.Is(err, sharedlog.ErrCompacted) {
		t.Errorf("got %v", err)
	}
	s = testkit.Must(behind.Latest(testkit.Within(t, logPatience)))(t)
	if s.Index != 12 {
		t.Errorf("got %d", s.Index)
	}
	if seqs := testkit.Must(l.list())(t); len(seqs) > 2 {
		t.Errorf("files %v", seqs)
	}
}

// A node that is killed while it puts a snapshot in place has done nothing.
func TestLogKilledInSnapshot(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir, nil)
	appendTexts(t, l, "1", "2")
	h := logHeader{"job", l.generation, 2}
	b := appendFrame(appendFrame(nil, frameHeader, 0, h.encode()), frameSnapshot, 1, []byte("stale"))
	testkit.Check(t, l.writeWhole(l.logPath(2), b))
	appendTexts(t, l, "3")
	late := openLog(t, dir, nil)
	if got := readTexts(t, late, 0, 3); !slices.Equal(got, []string{"1", "2", "3"}) {
		t.Errorf("got %q", got)
	}
	testkit.Check(t, late.Snapshot(testkit.Within(t, logPatience), sharedlog.Snapshot{Index: 3, State: []byte("three")}))
	if s := testkit.Must(openLog(t, dir, nil).Latest(testkit.Within(t, logPatience)))(t); s.Index != 3 || string(s.State) != "three" {
		t.Errorf("got %d %q", s.Index, s.State)
	}
}

// A run whose nodes are all dead is not met by the next one of that name; one of
// which a node lives is.
func TestLogGenerations(t *testing.T) {
	dir := t.TempDir()
	a, b := openLog(t, dir, nil), openLog(t, dir, nil)
	appendTexts(t, a, "old")
	testkit.Check(t, a.Heartbeat(t.Context(), "A", time.Second))
	a.crash()
	c := openLog(t, dir, nil)
	if c.generation != b.generation {
		t.Error("a generation ended of which a node lives")
	}
	b.crash()
	c.crash()
	d := openLog(t, dir, nil)
	if d.generation == c.generation {
		t.Error("a dead run was met")
	}
	appendTexts(t, d, "new")
	if got := readTexts(t, d, 0, 1); got[0] != "new" {
		t.Errorf("got %q", got)
	}
	names := testkit.Must(os.ReadDir(d.dir))(t)
	for _, n := range names {
		if n.Name() != "run" && !strings.Contains(n.Name(), d.generation) {
			t.Errorf("%s is left", n.Name())
		}
	}
}

func TestLogLastOneCleansUp(t *testing.T) {
	dir := t.TempDir()
	a, b := openLog(t, dir, nil), openLog(t, dir, nil)
	testkit.Check(t, a.Heartbeat(t.Context(), "A", time.Second))
	testkit.Check(t, a.Close(t.Context()))
	if _, err := os.Stat(b.livePath()); err != nil {
		t.Error(err)
	}
	testkit.Check(t, b.Close(t.Context()))
	if names := testkit.Must(os.ReadDir(dir))(t); len(names) > 0 {
		t.Errorf("%v is left", names)
	}
}

// lockCheckingWatcher checks whether the file run can be locked while it closes.
type lockCheckingWatcher struct {
	changewatch.Watcher
	run  string
	free bool
}

func (n *lockCheckingWatcher) Close() {
	n.Watcher.Close()
	if run, err := lockedfile.OpenFile(n.run, unix.O_RDWR, 0); err == nil {
		n.free, _ = run.TryLock(unix.LOCK_EX)
		run.Close()
	}
}

// To close a watcher takes the kernel a while, for each of many nodes that leave
// together: none holds the run's lock meanwhile.
func TestLogReleasesItsLockBeforeItClosesFiles(t *testing.T) {
	l := openLog(t, t.TempDir(), nil)
	n := &lockCheckingWatcher{Watcher: changewatch.New(l.reader.file.Path, l.local, l.options.Clock, l.options.PollMin, l.options.PollMax), run: filepath.Join(l.dir, "run")}
	l.watcher = n
	testkit.Check(t, l.Close(testkit.Within(t, logPatience)))
	if !n.free {
		t.Error("the lock was held meanwhile")
	}
}

// Nodes that come and go at once, the last one of which cleans up each time,
// never meet in a log that is about to go.
func TestLogComingAndGoing(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				l := New(dir, "job", nil)
				if _, err := l.Open(testkit.Within(t, logPatience)); err != nil {
					t.Error(err)
					return
				}
				if err := l.Append(testkit.Within(t, logPatience), [][]byte{[]byte("x")}); err != nil {
					t.Error(err)
				}
				if err := l.Close(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if names := testkit.Must(os.ReadDir(dir))(t); len(names) > 0 {
		t.Errorf("%v is left", names)
	}
}

func TestLogHeartbeats(t *testing.T) {
	dir := t.TempDir()
	a, b := openLog(t, dir, nil), openLog(t, dir, nil)
	look := func(session rendezvous.SessionID) sharedlog.Liveness {
		t.Helper()
		return testkit.Must(b.ReadHeartbeats(t.Context(), []rendezvous.SessionID{session}))(t)[0]
	}
	testkit.Check(t, a.Heartbeat(t.Context(), "A/1", time.Second))
	first := look("A/1")
	if first.State != sharedlog.LivenessHeartbeats || look("A/1") != first {
		t.Errorf("got %+v", first)
	}
	testkit.Check(t, a.Heartbeat(t.Context(), "A/1", time.Second))
	if s := look("A/1"); s.State != sharedlog.LivenessHeartbeats || s.Heartbeats == first.Heartbeats {
		t.Errorf("got %+v after %+v", s, first)
	}
	testkit.Check(t, a.Heartbeat(t.Context(), "A/2", time.Second))
	if s := look("A/1"); s.State != sharedlog.LivenessDisconnected {
		t.Errorf("a session that was replaced: %+v", s)
	}
	if s := look("A/2"); s.State != sharedlog.LivenessHeartbeats {
		t.Errorf("got %+v", s)
	}
	a.crash()
	if s := look("A/2"); s.State != sharedlog.LivenessDisconnected {
		t.Errorf("a session whose process has died: %+v", s)
	}
}

func TestLogModes(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	l := openLog(t, t.TempDir(), nil)
	testkit.Check(t, l.Heartbeat(t.Context(), "A", time.Second))
	appendTexts(t, l, "1")
	testkit.Check(t, l.Snapshot(t.Context(), sharedlog.Snapshot{Index: 1, State: []byte("s")}))
	testkit.Check(t, filepath.Walk(l.dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	}))
}

func TestLogRefuses(t *testing.T) {
	open := func(dir string) error {
		l := New(dir, "job", nil)
		_, err := l.Open(testkit.Within(t, logPatience))
		l.crash()
		return err
	}
	t.Run("no directory", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "missing")
		wantLogError(t, open(dir), rendezvous.ErrInvalid, dir, "mount it")
	})
	t.Run("a file", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "file")
		testkit.WriteFile(t, path, nil)
		wantLogError(t, open(path), rendezvous.ErrInvalid, path, "not a directory")
	})
	t.Run("writable by others", func(t *testing.T) {
		dir := t.TempDir()
		run := filepath.Join(dir, "rallypoint-job")
		testkit.Check(t, os.Mkdir(run, 0o700))
		testkit.Check(t, os.Chmod(run, 0o777))
		wantLogError(t, open(dir), rendezvous.ErrState, run, "by others")
	})
	t.Run("of another user", func(t *testing.T) {
		if os.Getuid() != 0 {
			t.Skip("only root can give a directory away")
		}
		dir := t.TempDir()
		run := filepath.Join(dir, "rallypoint-job")
		testkit.Check(t, os.Mkdir(run, 0o700))
		testkit.Check(t, os.Chown(run, 65534, 65534))
		wantLogError(t, open(dir), rendezvous.ErrState, run, "belongs to user 65534")
		if names := testkit.Must(os.ReadDir(run))(t); len(names) > 0 {
			t.Errorf("left behind: %v", names)
		}
	})
	t.Run("a link", func(t *testing.T) {
		dir := t.TempDir()
		testkit.Check(t, os.Symlink(t.TempDir(), filepath.Join(dir, "rallypoint-job")))
		wantLogError(t, open(dir), rendezvous.ErrState, "no directory")
	})
	t.Run("another release", func(t *testing.T) {
		dir := t.TempDir()
		l := openLog(t, dir, nil)
		b := bytes.Replace(logHeader{"job", l.generation, 0}.encode(), []byte("log 1"), []byte("log 7"), 1)
		testkit.WriteFile(t, filepath.Join(l.dir, "run"), appendFrame(nil, frameHeader, 0, b))
		wantLogError(t, open(dir), rendezvous.ErrState, "version 7")
	})
}

func TestLogRemovedUnderItsNodes(t *testing.T) {
	dir := t.TempDir()
	filetest.NeedsRemoval(t, dir)
	l := openLog(t, dir, nil)
	waiting := make(chan error)
	go func() {
		_, err := l.Next(testkit.Within(t, logPatience), 0)
		waiting <- err
	}()
	testkit.Check(t, os.RemoveAll(l.dir))
	wantLogError(t, <-waiting, rendezvous.ErrState, "removed")
	wantLogError(t, l.Append(testkit.Within(t, logPatience), [][]byte{nil}), rendezvous.ErrState, "removed")
}

func TestRunDir(t *testing.T) {
	long := strings.Repeat("x", 500)
	names := map[string]string{}
	for _, id := range []string{"job", "Job_1.2-3", "a/b", "..", "a%2Fb", "\x00", "é", long, long + "y"} {
		name := runDir(id)
		if strings.ContainsAny(name, "/\x00") || len(name) > 255 || name == "." || name == ".." {
			t.Errorf("%q: %q", id, name)
		}
		if other, taken := names[name]; taken {
			t.Errorf("%q and %q share %q", id, other, name)
		}
		names[name] = id
	}
}

// playAppend appends entries "name i" until it is killed, and says each that is in
// the log for good.
func playAppend(dir, name string) error {
	l := New(dir, "job", nil)
	ctx := context.Background()
	if _, err := l.Open(ctx); err != nil {
		return err
	}
	if err := l.Heartbeat(ctx, rendezvous.SessionID(name), time.Second); err != nil {
		return err
	}
	for i := 0; ; i++ {
		text := fmt.Sprintf("%s %d %s", name, i, strings.Repeat("x", rand.IntN(9000)))
		if err := l.Append(ctx, [][]byte{[]byte(text)}); err != nil {
			return err
		}
		fmt.Println(i)
		if i%100 == 99 && strings.HasPrefix(name, "w0") { // as a plane does, of what it has read up to
			if err := l.Snapshot(ctx, sharedlog.Snapshot{Index: l.writer.index - 1, State: []byte("state")}); err != nil {
				return err
			}
		}
	}
}

// Processes that append are killed at any moment; nothing that was acknowledged is
// lost or doubled, and all readers read the same.
func TestLogWritersAreKilled(t *testing.T) {
	dir := t.TempDir()
	a, b := openLog(t, dir, nil), openLog(t, dir, &Options{Remote: true})
	var behind atomic.Bool // a reader was too slow, and went on from a snapshot
	read := func(l *Log, out *[]string) func() {
		return func() {
			var after uint64
			for {
				got, err := l.Next(testkit.Within(t, logPatience), after)
				if errors.Is(err, sharedlog.ErrCompacted) {
					behind.Store(true)
					after = testkit.Must(l.Latest(testkit.Within(t, logPatience)))(t).Index
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				for _, e := range got.Entries {
					after = e.Index
					if string(e.Data) == "end" {
						return
					}
					*out = append(*out, string(e.Data))
				}
			}
		}
	}
	var seenA, seenB []string
	var readers, writers sync.WaitGroup
	readers.Go(read(a, &seenA))
	readers.Go(read(b, &seenB))
	var mu sync.Mutex
	acked := map[string]int{} // name -> highest number acknowledged
	for w := range 4 {
		writers.Go(func() {
			for life := range 6 {
				name := fmt.Sprintf("w%d.%d", w, life)
				cmd := exec.Command(os.Args[0], filetest.Elsewhere(dir), name)
				cmd.Env = append(os.Environ(), roleVariable+"=append")
				cmd.Stderr = os.Stderr
				out := testkit.Must(cmd.StdoutPipe())(t)
				testkit.Check(t, cmd.Start())
				lines := bufio.NewScanner(out)
				last := -1
				for after := rand.IntN(40); lines.Scan(); {
					last = testkit.Must(strconv.Atoi(lines.Text()))(t)
					if last == after {
						go func() {
							time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
							_ = cmd.Process.Kill()
						}()
					}
				}
				_ = cmd.Wait()
				mu.Lock()
				acked[name] = last
				mu.Unlock()
				if s := testkit.Must(a.readHeartbeat(rendezvous.SessionID(name)))(t); s.State != sharedlog.LivenessDisconnected {
					t.Errorf("%s is dead, its heartbeat is %+v", name, s)
				}
			}
		})
	}
	writers.Wait()
	appendTexts(t, a, "end")
	readers.Wait()
	if behind.Load() {
		t.Log("a reader fell behind: not all entries can be accounted for")
	} else if !slices.Equal(seenA, seenB) {
		t.Errorf("two readers read different logs: %d and %d entries", len(seenA), len(seenB))
	}
	next := map[string]int{}
	for _, text := range seenA {
		var name string
		var i int
		if _, err := fmt.Sscan(text, &name, &i); err != nil || i < next[name] || i > next[name] && !behind.Load() {
			t.Fatalf("%.40q where number %d of %s is next: %v", text, next[name], name, err)
		}
		next[name] = i + 1
	}
	for name, last := range acked {
		if got := next[name]; got <= last && !behind.Load() || got > last+2 {
			t.Errorf("%s has %d entries, %d were acknowledged", name, got, last+1)
		}
	}
}

// playNarrow makes a file system as small, or as read-only, as its name says and
// opens a log in it. It runs in name spaces of its own.
func playNarrow(dir, kind string) error {
	options, flags := "size=64k", uintptr(0)
	if err := unix.Mount("none", dir, "tmpfs", flags, options); err != nil {
		return fmt.Errorf("skip: %w", err)
	}
	if kind == "read-only" {
		if err := unix.Mount("none", dir, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, options); err != nil {
			return fmt.Errorf("skip: %w", err)
		}
	}
	if kind == "full" {
		err := os.WriteFile(filepath.Join(dir, "big"), make([]byte, 1<<20), 0o600)
		if !errors.Is(err, unix.ENOSPC) {
			return fmt.Errorf("the disk is not full: %v", err)
		}
	}
	l := New(dir, "job", nil)
	ctx, cancel := context.WithTimeout(context.Background(), logPatience)
	defer cancel()
	_, err := l.Open(ctx)
	if kind == "filling" && err == nil {
		for i := 0; err == nil; i++ {
			err = l.Append(ctx, [][]byte{make([]byte, 3000), make([]byte, 3000)})
		}
		before := l.writer.index
		if again := l.Append(ctx, [][]byte{make([]byte, 3000), make([]byte, 3000)}); again == nil {
			return errors.New("an append to a full disk succeeded")
		}
		if size, _ := l.writer.size(); size != l.writer.pos || l.writer.index < before {
			return fmt.Errorf("%d bytes are left where %d were written", size, l.writer.pos)
		}
		if err := l.Append(ctx, [][]byte{[]byte("small")}); err != nil && !errors.Is(err, rendezvous.ErrConnection) {
			return err
		}
	}
	fmt.Printf("%d %v\n", rendezvous.CodeOf(err), err)
	return nil
}

// A full or read-only file system is said in one error, at once.
func TestLogNarrowFileSystems(t *testing.T) {
	for kind, want := range map[string]struct {
		code rendezvous.Code
		says string
	}{
		"read-only": {rendezvous.CodeInvalid, "mounted read-only"},
		"full":      {rendezvous.CodeConnection, "make room"},
		"filling":   {rendezvous.CodeConnection, "make room"},
	} {
		t.Run(kind, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], t.TempDir(), kind)
			cmd.Env = append(os.Environ(), roleVariable+"=narrow")
			cmd.SysProcAttr = &syscall.SysProcAttr{
				Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
				UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
				GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
			}
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) || strings.Contains(stderr.String(), "skip: ") {
				t.Skipf("this machine makes no name spaces for its users: %v %s", err, stderr.String())
			}
			if err != nil {
				t.Fatalf("%v: %s", err, stderr.String())
			}
			if got := string(out); !strings.HasPrefix(got, fmt.Sprint(want.code, " ")) || !strings.Contains(got, want.says) {
				t.Errorf("got %s", got)
			}
		})
	}
}

// asStranger plays a role with dir as a user who may only read dir, and returns what it
// prints.
func asStranger(t *testing.T, role, dir string) string {
	t.Helper()
	cmd := exec.Command(os.Args[0], dir, role)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		testkit.Check(t, os.Chmod(filepath.Dir(dir), 0o755))
		cmd.Path = "/proc/self/exe"
	} else {
		testkit.Check(t, os.Chmod(dir, 0o500))
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// A directory that its user may not write to is said in one error, at once.
func TestLogForbidden(t *testing.T) {
	if got := asStranger(t, "forbidden", t.TempDir()); !strings.HasPrefix(got, fmt.Sprint(rendezvous.CodeInvalid, " ")) || !strings.Contains(got, "may not write there") {
		t.Errorf("got %s", got)
	}
}

// Another user's run does not hinder a listing of all; one that names it fails.
func TestInspectForbidden(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir, nil)
	if os.Getuid() != 0 {
		testkit.Check(t, os.Chmod(l.dir, 0))
		t.Cleanup(func() { testkit.Check(t, os.Chmod(l.dir, logDirMode)) })
	}
	if got := asStranger(t, "listing", dir); !strings.HasPrefix(got, "0 <nil>\n0 run \"job\"") || !strings.Contains(got, "permission denied") {
		t.Errorf("got %s", got)
	}
}

func playListing(dir string) error {
	for _, run := range []string{"", "job"} {
		records, err := Inspect(dir, run)
		fmt.Println(len(records), err)
	}
	return nil
}

func playForbidden(dir string) error {
	l := New(dir, "job", nil)
	_, err := l.Open(context.Background())
	fmt.Printf("%d %v\n", rendezvous.CodeOf(err), err)
	return nil
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
