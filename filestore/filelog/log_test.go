package filelog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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

// readTexts reads the next n entries that follow after.
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

// Readers at all positions continue over snapshots; one that starts late gets the
// snapshot and what follows it.
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

func (l *lockCheckingWatcher) Close() {
	l.Watcher.Close()
	if run, err := lockedfile.OpenFile(l.run, unix.O_RDWR, 0); err == nil {
		l.free, _ = run.TryLock(unix.LOCK_EX)
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
	t.Run("not a directory", func(t *testing.T) {
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
		wantLogError(t, open(dir), rendezvous.ErrState, "not a directory")
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
