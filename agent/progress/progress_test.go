package progress

import (
	"encoding/binary"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/training"
)

// rig is a tracker with a clock and a log of the test's.
type rig struct {
	*Tracker
	t    *testing.T
	dir  string
	time time.Time
	log  strings.Builder
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, dir: t.TempDir(), time: time.Unix(1e9, 0)}
	r.Tracker = NewTracker([]string{EnvDir + "=" + r.dir}, slog.New(slog.NewTextHandler(&r.log, nil)))
	r.now = func() time.Time { return r.time }
	t.Cleanup(r.Close)
	return r
}

// store writes a step as a worker does, by a mapping.
func store(t *testing.T, path string, step int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := unix.Mmap(int(f.Fd()), 0, recordSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(b) }()
	binary.LittleEndian.PutUint64(b[offsetStep:], uint64(step))
}

// after moves the clock and samples.
func (r *rig) after(d time.Duration) {
	r.time = r.time.Add(d)
	r.Sample()
}

func (r *rig) want(want *training.Report) {
	r.t.Helper()
	got := r.Report()
	switch {
	case want == nil && got != nil:
		r.t.Errorf("got %+v, want none", *got)
	case want != nil && got == nil:
		r.t.Errorf("got none, want %+v", *want)
	case want != nil && *got != *want:
		r.t.Errorf("got  %+v\nwant %+v", *got, *want)
	}
}

// TestRecord holds the bytes that docs/progress.md describes.
func TestRecord(t *testing.T) {
	r := newRig(t)
	paths := r.Begin(1, 2, CauseFailure)
	got, err := os.ReadFile(paths[1])
	if err != nil {
		t.Fatal(err)
	}
	want := "rp-steps\x01\x00\x00\x00\x40\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff" + strings.Repeat("\x00", 40)
	if string(got) != want {
		t.Errorf("got %q", got)
	}
	for path, mode := range map[string]os.FileMode{paths[0]: 0o600, filepath.Dir(paths[0]): 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	r.Close()
	if left, _ := os.ReadDir(r.dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestReports follows two workers through two rounds. In the second one the steps begin
// behind those of the first.
func TestReports(t *testing.T) {
	const s = time.Second
	r := newRig(t)
	r.want(nil)
	paths := r.Begin(4, 2, CauseFailure)
	r.after(s)
	r.want(nil)
	store(t, paths[0], 100)
	r.after(s)
	r.want(&training.Report{Round: 4, Workers: 2, Reporting: 1, Smallest: 100, Largest: 100})
	store(t, paths[1], 101)
	r.after(2 * s)
	store(t, paths[0], 103)
	r.after(4 * s)
	r.want(&training.Report{Round: 4, Workers: 2, Reporting: 2, Smallest: 101, Largest: 103, SinceFirst: 6 * s, SinceSlowest: 4 * s, PerStep: 2 * s})
	r.time = r.time.Add(s)
	r.want(&training.Report{Round: 4, Workers: 2, Reporting: 2, Smallest: 101, Largest: 103, SinceFirst: 7 * s, SinceChange: s, SinceSlowest: 5 * s, PerStep: 2 * s})
	if round, step, recorded := r.Highest(); round != 4 || step != 103 || !recorded {
		t.Errorf("highest is %d, %v", step, recorded)
	}
	r.End()
	if _, err := os.Stat(paths[0]); !os.IsNotExist(err) {
		t.Errorf("after the round its record is there: %v", err)
	}

	paths = r.Begin(5, 2, CauseFailure)
	if _, step, recorded := r.Highest(); step != noStep || !recorded {
		t.Errorf("before the first step the highest is %d, %v", step, recorded)
	}
	r.want(nil)
	store(t, paths[0], 90)
	store(t, paths[1], 90)
	r.after(20 * s)
	r.want(&training.Report{Round: 5, Workers: 2, Reporting: 2, Smallest: 90, Largest: 90, Gap: 21 * s})
	store(t, paths[0], 95) // and back, and on: a script that loads a checkpoint
	r.after(5 * s)
	store(t, paths[0], 80)
	store(t, paths[1], 80)
	r.after(s)
	store(t, paths[0], 81)
	store(t, paths[1], 81)
	r.after(3 * s)
	r.want(&training.Report{Round: 5, Workers: 2, Reporting: 2, Smallest: 81, Largest: 81, SinceFirst: 9 * s, PerStep: 3 * s, Gap: 21 * s})
	if _, step, _ := r.Highest(); step != 95 || r.Lost(CauseFailure) != 21*s {
		t.Errorf("highest is %d, lost %v", step, r.Lost(CauseFailure))
	}
	if r.log.Len() > 0 {
		t.Errorf("the log has %s", &r.log)
	}
}

// TestHostileRecords are what a worker may make of its record. Each is refused with one
// line, and does not touch the other worker's.
func TestHostileRecords(t *testing.T) {
	number := func(offset int, value uint64, size int) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			b := binary.LittleEndian.AppendUint64(nil, value)[:size]
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteAt(b, int64(offset)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name, want string
		spoil      func(*testing.T, string)
	}{
		{"version", "its version is 2, this release knows 1", number(offsetVersion, 2, 4)},
		{"size", "it says that it has 128 bytes, it must be 64", number(offsetSize, 128, 4)},
		{"magic", "it does not begin like one", number(0, 0, 8)},
		{"negative", "its step is -2, which is negative", number(offsetStep, ^uint64(1), 8)},
		{"short", "it has 20 bytes instead of 64", func(t *testing.T, path string) {
			if err := os.Truncate(path, 20); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			paths := r.Begin(1, 2, CauseFailure)
			c.spoil(t, paths[1])
			store(t, paths[0], 3)
			r.after(time.Second)
			r.after(time.Second)
			if text := r.log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "local rank 1") || !strings.Contains(text, c.want) {
				t.Errorf("the log has %q", text)
			}
			if got := r.Report(); got == nil || got.Reporting != 1 || got.Largest != 3 {
				t.Errorf("got %+v", got)
			}
			if _, _, recorded := r.Highest(); recorded {
				t.Error("the steps of the round count as known")
			}
		})
	}
}

// TestReplacedRecord is a worker that puts something else in the place of its record.
func TestReplacedRecord(t *testing.T) {
	r := newRig(t)
	path := r.Begin(1, 1, CauseFailure)[0]
	store(t, path, 3)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/zero", path); err != nil {
		t.Fatal(err)
	}
	r.after(time.Second)
	if got := r.Report(); got == nil || got.Largest != 3 {
		t.Errorf("got %+v", got)
	}
}

// TestNoFolder: the job runs without records.
func TestNoFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	tracker := NewTracker([]string{EnvDir + "=" + file}, slog.New(slog.NewTextHandler(&log, nil)))
	defer tracker.Close()
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "progress cannot be recorded") || !strings.Contains(text, file) || !strings.Contains(text, EnvDir) {
		t.Errorf("the log has %q", text)
	}
	if paths := tracker.Begin(1, 2, CauseFailure); paths[0] != "" || paths[1] != "" || tracker.Folder() != "" {
		t.Errorf("paths %q in %q", paths, tracker.Folder())
	}
	tracker.Sample()
	if _, _, recorded := tracker.Highest(); recorded || tracker.Report() != nil {
		t.Error("there is a report")
	}
	if strings.Count(log.String(), "\n") != 1 {
		t.Errorf("the log has %q", log.String())
	}
}

// TestFolderInTheWay: what is there is neither used nor removed.
func TestFolderInTheWay(t *testing.T) {
	r := newRig(t)
	victim := filepath.Join(r.dir, "victim")
	if err := os.WriteFile(victim, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, filepath.Join(r.Folder(), "1.1")); err != nil {
		t.Fatal(err)
	}
	if paths := r.Begin(1, 2, CauseFailure); paths[0] != "" || paths[1] != "" {
		t.Errorf("paths %q", paths)
	}
	if text := r.log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "file exists") {
		t.Errorf("the log has %q", text)
	}
	if left, err := os.ReadFile(victim); err != nil || string(left) != "mine" {
		t.Errorf("%q, %v", left, err)
	}
	if paths := r.Begin(2, 1, CauseFailure); paths[0] == "" {
		t.Error("the next round has no records either")
	}
}

// TestFullFileSystem: a page that cannot be had is found when the record is made, and not
// by a worker that dies of its first step.
func TestFullFileSystem(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("there is no /dev/full")
	}
	f, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := fill(f); err == nil {
		t.Error("a record was written where there is no room")
	}
}

// TestNilTracker is an agent that ends before it has one.
func TestNilTracker(t *testing.T) {
	var tracker *Tracker
	tracker.Sample()
	tracker.End()
	tracker.Close()
	if tracker.Report() != nil || tracker.Lost(CauseRegroup) != 0 || tracker.Begin(1, 1, CauseFailure)[0] != "" {
		t.Error("a nil tracker knows something")
	}
}
