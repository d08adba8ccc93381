package progress

import (
	"encoding/binary"
	"encoding/json"
	"io"
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

// begin begins a round, and returns where the records of its workers lie.
func begin(tracker *Tracker, number uint64, workers int, cause Cause) (paths []string) {
	tracker.Begin(number, workers, cause)
	for local := range workers {
		paths = append(paths, tracker.Path(local))
	}
	return paths
}

// store writes a step as a worker does, by a mapping.
func store(t *testing.T, path string, step int64) {
	t.Helper()
	storeAt(t, path, offsetStep, uint64(step))
}

// storeAt writes a word.
func storeAt(t *testing.T, path string, offset int, word uint64) {
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
	binary.LittleEndian.PutUint64(b[offset:], word)
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

// TestRecord holds the bytes that docs/progress-record.md describes.
func TestRecord(t *testing.T) {
	r := newRig(t)
	paths := begin(r.Tracker, 1, 2, CauseFailure)
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

// TestCountedSteps: the steps of optimizers are told, but are no step that a round has come to; the
// first step that a worker reports takes their place.
func TestCountedSteps(t *testing.T) {
	const s = time.Second
	r := newRig(t)
	paths := begin(r.Tracker, 4, 2, CauseFailure)
	r.after(s)
	storeAt(t, paths[0], offsetCounted, 100)
	storeAt(t, paths[1], offsetCounted, 100)
	r.after(s)
	storeAt(t, paths[0], offsetCounted, 102)
	r.after(4 * s)
	r.want(&training.Report{Round: 4, Workers: 2, Reporting: 2, Smallest: 100, Largest: 102, SinceFirst: 4 * s, SinceSlowest: 4 * s, PerStep: 2 * s, Counted: true})
	if steps := r.Steps(); len(steps) != 0 {
		t.Errorf("the steps are %v", steps)
	}
	if _, step, recorded := r.Highest(); step != noStep || !recorded {
		t.Errorf("highest is %d, %v", step, recorded)
	}
	store(t, paths[1], 7)
	r.after(s)
	r.want(&training.Report{Round: 4, Workers: 2, Reporting: 1, Smallest: 7, Largest: 7, SinceFirst: 5 * s})
	storeAt(t, paths[1], offsetCounted, 200)
	store(t, paths[1], 8)
	r.after(3 * s)
	r.want(&training.Report{Round: 4, Workers: 2, Reporting: 1, Smallest: 8, Largest: 8, SinceFirst: 8 * s, PerStep: 3 * s})
	if _, step, _ := r.Highest(); step != 8 {
		t.Errorf("highest is %d", step)
	}
	storeAt(t, paths[0], offsetCounted, 1<<63)
	r.after(s)
	if r.log.Len() != 0 || len(r.Steps()) != 1 {
		t.Errorf("a count that cannot be: %v, %s", r.Steps(), r.log.String())
	}
}

// TestReports follows two workers through two rounds. In the second one the steps begin
// after those of the first.
func TestReports(t *testing.T) {
	const s = time.Second
	r := newRig(t)
	r.want(nil)
	paths := begin(r.Tracker, 4, 2, CauseFailure)
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

	paths = begin(r.Tracker, 5, 2, CauseFailure)
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

// TestStandstill: it is longer than steps take, and workers that report none, or are busy on
// purpose, do not stand still.
func TestStandstill(t *testing.T) {
	r := newRig(t)
	want := func(still time.Duration) {
		t.Helper()
		if got := r.Standstill(); got != still {
			t.Errorf("it is %v, want %v", got, still)
		}
	}
	if r.Standstill() != 0 {
		t.Error("there is one without a round")
	}
	paths := begin(r.Tracker, 1, 2, CauseFailure)
	r.after(time.Hour)
	want(0)
	for step := range int64(6) {
		store(t, paths[0], step)
		r.after(100 * time.Millisecond)
	}
	r.after(LeastStandstill - 200*time.Millisecond)
	want(0)
	r.after(time.Second)
	want(LeastStandstill + 800*time.Millisecond)
	store(t, paths[1], 1)
	want(0)
	r.after(time.Minute)
	r.direct(0, true)
	want(0)

	paths = begin(r.Tracker, 2, 1, CauseFailure)
	for step := range int64(6) {
		store(t, paths[0], step)
		r.after(10 * time.Second)
	}
	r.after(80 * time.Second)
	want(0)
	r.after(30 * time.Second)
	want(110 * time.Second)
}

// TestGone: the last report of a failed worker says nothing of those that continue: it is not
// behind, does not stand still, and is neither busy nor held.
func TestGone(t *testing.T) {
	r := newRig(t)
	r.Gone(0)
	paths := begin(r.Tracker, 1, 3, CauseFailure)
	r.Gone(3)
	r.want(nil)
	r.Gone(2)
	r.want(&training.Report{Round: 1, Workers: 3, Failed: 1})
	for step := range int64(4) {
		store(t, paths[0], step)
		store(t, paths[1], 1000+step)
		r.after(time.Second)
	}
	storeAt(t, paths[0], offsetKnows, 1000000<<busyShift)
	r.direct(0, true)
	if _, _, announced := r.Pulse(); !announced {
		t.Error("a busy worker is not")
	}
	r.Gone(0)
	r.after(time.Minute)
	if _, _, announced := r.Pulse(); announced {
		t.Error("a worker that has failed is busy")
	}
	r.want(&training.Report{Round: 1, Workers: 3, Reporting: 1, Smallest: 1003, Largest: 1003, SinceFirst: 63 * time.Second,
		SinceChange: time.Minute, SinceSlowest: time.Minute, PerStep: time.Second, Failed: 2})
	if steps := r.Steps(); len(steps) != 1 || steps[1] != 1003 {
		t.Errorf("the steps are %v", steps)
	}
	r.Begin(2, 3, CauseRegroup)
	r.want(nil)
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
			paths := begin(r.Tracker, 1, 2, CauseFailure)
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
	path := begin(r.Tracker, 1, 1, CauseFailure)[0]
	store(t, path, 3)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/zero", path); err != nil {
		t.Fatal(err)
	}
	r.after(time.Second)
	if got := r.Report(); got != nil && got.Largest > 3 {
		t.Errorf("got %+v", got)
	}
	if text := r.log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "local rank 0 is no longer read") {
		t.Errorf("the log has %q", text)
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
	if paths := begin(tracker, 1, 2, CauseFailure); paths[0] != "" || paths[1] != "" || tracker.Folder() != "" {
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

// TestFolderInTheWay: whatever is in its place is neither used nor removed.
func TestFolderInTheWay(t *testing.T) {
	r := newRig(t)
	victim := filepath.Join(r.dir, "victim")
	if err := os.WriteFile(victim, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, filepath.Join(r.Folder(), "1.1")); err != nil {
		t.Fatal(err)
	}
	if paths := begin(r.Tracker, 1, 2, CauseFailure); paths[0] != "" || paths[1] != "" {
		t.Errorf("paths %q", paths)
	}
	if text := r.log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "file exists") {
		t.Errorf("the log has %q", text)
	}
	if left, err := os.ReadFile(victim); err != nil || string(left) != "mine" {
		t.Errorf("%q, %v", left, err)
	}
	if paths := begin(r.Tracker, 2, 1, CauseFailure); paths[0] == "" {
		t.Error("the next round has no records either")
	}
}

// TestSampleInterval: an agent whose workers' steps do not change samples them seldom, and
// often again after a change.
func TestSampleInterval(t *testing.T) {
	r := newRig(t)
	path := begin(r.Tracker, 1, 1, CauseStart)[0]
	want := func(quiet, want time.Duration) {
		t.Helper()
		r.time = r.time.Add(quiet)
		if got := r.Sample(); got != want {
			t.Errorf("again after %v, want %v", got, want)
		}
	}
	want(time.Second, SampleInterval)
	want(time.Minute, SampleInterval)
	want(3*time.Minute-time.Second, time.Second)
	want(time.Hour, longestSample)
	store(t, path, 1)
	want(time.Second, SampleInterval)
	want(6*time.Minute, 1500*time.Millisecond)
	r.Begin(2, 1, CauseFailure)
	want(time.Second, SampleInterval)
}

// TestStepsMade: samples add up the steps of the worker that makes most, which tell of steps that are
// too quick to be seen one by one.
func TestStepsMade(t *testing.T) {
	r := newRig(t)
	paths := begin(r.Tracker, 1, 2, CauseStart)
	for i, c := range []struct{ first, second, made int64 }{{41200, -1, 1}, {41210, 3, 10}, {41210, 5, 2}, {41000, 5, 1}, {41000, 5, 0}} {
		store(t, paths[0], c.first)
		if c.second >= 0 {
			store(t, paths[1], c.second)
		}
		_, before, _ := r.Pulse()
		r.Sample()
		if _, made, _ := r.Pulse(); made-before != c.made {
			t.Errorf("%d: %d steps, want %d", i, made-before, c.made)
		}
	}
	r.Begin(2, 1, CauseStart)
	if w := (&worker{step: noStep}); w.advance(20, true) != 20 || w.advance(20, false) != 1 {
		t.Error("a count begins at 0, a step anywhere")
	}
}

// TestNilTracker is the status of an agent that has none yet.
func TestNilTracker(t *testing.T) {
	var tracker *Tracker
	if _, shares := tracker.Waits(); shares != nil {
		t.Error("a nil tracker knows how much workers wait")
	}
	if tracker.Report() != nil || tracker.Lost(CauseRegroup) != 0 {
		t.Error("a nil tracker knows something")
	}
}

// TestDirectiveWords holds what docs/progress-record.md says of the words of a directive.
func TestDirectiveWords(t *testing.T) {
	r := newRig(t)
	path := begin(r.Tracker, 1, 1, CauseFailure)[0]
	asked := Asked{Number: 0x0102, Kind: 3, Named: true}
	for _, c := range []struct {
		name   string
		change func() error
		want   string
	}{
		{"held", func() error { return r.Hold(0, asked) }, "\x01\x03\x01\x02\x01\x00\x00\x00" + strings.Repeat("\x00", 32)},
		{"released", func() error { return r.Release(0, asked, 0x0506) }, "\x02\x03\x01\x02\x01\x00\x00\x00" + strings.Repeat("\x00", 16) + "\x06\x05" + strings.Repeat("\x00", 14)},
		{"another", func() error { return r.Release(0, Asked{Number: 0x0103, Kind: 1}, -1) }, "\x02\x01\x00\x03\x01\x00\x00\x00" + strings.Repeat("\x00", 32)},
		{"cleared", func() error { return r.Clear(0) }, strings.Repeat("\x00", 40)},
	} {
		if err := c.change(); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got[offsetAsked:]) != c.want {
			t.Errorf("%s: %q", c.name, got[offsetAsked:])
		}
	}
	for i := range 8 { // what a worker says
		b := binary.LittleEndian.AppendUint64(nil, uint64(i)<<24|uint64(i%5))
		write(t, path, offsetAnswer, string(b))
		write(t, path, offsetKnows, string([]byte{byte(i)}))
		want := Answer{Step: noStep, Holds: i&1 == 1, Number: uint64(i), State: State(i % 5)}
		if i%5 > int(StateSaved) {
			want.State = StateNone
		}
		if got, err := r.Answer(0); err != nil || got != want {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
	if _, err := r.Answer(1); err == nil {
		t.Error("a worker that is not there has an answer")
	}
	write(t, path, 0, "x")
	if _, err := r.Answer(0); err == nil {
		t.Error("a spoiled record has an answer")
	}
	if err := r.Hold(0, asked); err == nil {
		t.Error("a spoiled record was written")
	}
}

// write changes a record as a hostile worker may.
func write(t *testing.T, path string, offset int64, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte(text), offset); err != nil {
		t.Fatal(err)
	}
}

// TestDirectiveFile is replaced at once, and gone with the record.
func TestDirectiveFile(t *testing.T) {
	r := newRig(t)
	path := begin(r.Tracker, 1, 1, CauseFailure)[0]
	step := int64(7)
	if err := r.WriteDirective(0, &Directive{Number: 1, ID: "d1", Kind: "save", Step: &step, By: "admin", Reason: "<a> \"b\"\n"}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(r.DirectivePath(0))
	var got Directive
	if err != nil || json.Unmarshal(text, &got) != nil || got.ID != "d1" || *got.Step != 7 || got.Reason != "<a> \"b\"\n" {
		t.Errorf("%v: %s", err, text)
	}
	reader, err := os.Open(r.DirectivePath(0))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := r.WriteDirective(0, &Directive{Number: 2, ID: "d2", Kind: "stop"}); err != nil {
		t.Fatal(err)
	}
	if held, err := io.ReadAll(reader); err != nil || string(held) != string(text) {
		t.Errorf("who reads it when it is replaced gets %v: %s", err, held)
	}
	if text, err := os.ReadFile(r.DirectivePath(0)); err != nil || !strings.Contains(string(text), `"d2"`) {
		t.Errorf("%v: %s", err, text)
	}
	for range 2 {
		if err := r.WriteDirective(0, nil); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(r.DirectivePath(0)); !os.IsNotExist(err) {
		t.Error("the file is there")
	}
	if err := r.WriteDirective(0, &got); err != nil {
		t.Error(err)
	}
	r.End()
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if r.WriteDirective(0, &got) == nil || r.Hold(0, Asked{Number: 1}) == nil || r.DirectivePath(0) != "" {
		t.Error("a worker without a record was told something")
	}
}

// TestDirectiveFileUnwritable leaves nothing behind, and says which file and why.
func TestDirectiveFileUnwritable(t *testing.T) {
	r := newRig(t)
	r.Begin(1, 1, CauseFailure)
	path := r.DirectivePath(0)
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := r.WriteDirective(0, &Directive{ID: "d1"})
	if err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("%v", err)
	}
	if left, _ := filepath.Glob(path + ".*"); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestPulse: when a step changed last, and whether workers may pause for a directive; what is
// said of a hang is of one round, also where no worker has reported a step.
func TestPulse(t *testing.T) {
	r := newRig(t)
	want := func(changed time.Time, directed bool) {
		t.Helper()
		if c, _, d := r.Pulse(); !c.Equal(changed) || d != directed {
			t.Errorf("got %v, %v, want %v, %v", c, d, changed, directed)
		}
	}
	want(time.Time{}, false)
	paths := begin(r.Tracker, 1, 2, CauseStart)
	want(time.Time{}, false)
	r.SetStalled("no step")
	r.want(&training.Report{Round: 1, Workers: 2, Stalled: "no step"})
	store(t, paths[1], 7)
	r.after(time.Second)
	want(r.time, false)
	if steps := r.Steps(); len(steps) != 1 || steps[1] != 7 {
		t.Errorf("the steps are %v", steps)
	}
	if got := r.Report(); got.Stalled != "no step" || got.Reporting != 1 {
		t.Errorf("got %+v", got)
	}
	changed := r.time
	r.after(time.Second)
	if err := r.WriteDirective(0, &Directive{ID: "x"}); err != nil {
		t.Fatal(err)
	}
	want(changed, true)
	if err := r.WriteDirective(0, nil); err != nil {
		t.Fatal(err)
	}
	want(changed, false)
	if err := r.WriteDirective(1, &Directive{ID: "x"}); err != nil {
		t.Fatal(err)
	}
	paths = begin(r.Tracker, 2, 2, CauseFailure)
	want(time.Time{}, false)
	r.want(nil)
	// A worker announces that it makes no step, and does not say when it does again.
	up := time.Hour
	r.uptime = func() time.Duration { return up }
	for until, busy := range map[uint64]bool{0: false, uint64(up.Milliseconds()): false, uint64(up.Milliseconds()) + 1: true, 1<<56 - 1: true} {
		f, err := os.OpenFile(paths[1], os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(binary.LittleEndian.AppendUint64(nil, until<<busyShift|knowsDirectives), offsetKnows); err != nil {
			t.Fatal(err)
		}
		f.Close()
		r.Sample()
		want(time.Time{}, busy)
		if a, err := r.Answer(1); err != nil || !a.Holds {
			t.Errorf("until %d it cannot be held: %v", until, err)
		}
	}
}

// TestContinue begins a round beside workers that run on: they keep their records and steps, a
// directive of the round before is gone, and a worker that is replaced begins anew.
func TestContinue(t *testing.T) {
	r := newRig(t)
	paths := begin(r.Tracker, 1, 2, CauseStart)
	store(t, paths[0], 7)
	store(t, paths[1], 6)
	r.after(time.Second)
	if err := r.Release(0, Asked{Number: 1, Kind: 1}, 9); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteDirective(0, &Directive{Number: 1, ID: "d"}); err != nil {
		t.Fatal(err)
	}
	r.after(time.Second)
	r.Continue(2, CauseFailure, []int{1})
	if r.Path(0) != paths[0] || r.Path(1) == paths[1] || r.Path(1) == "" {
		t.Errorf("the records are %q and %q, they were %q", r.Path(0), r.Path(1), paths)
	}
	if _, err := os.Stat(paths[1]); err == nil {
		t.Error("the record of the worker that was replaced is still there")
	}
	if b, _ := os.ReadFile(paths[0]); b[offsetAsked] != phaseNone || b[offsetStep] != 7 {
		t.Errorf("the record of the other holds %x", b)
	}
	if _, err := os.Stat(r.DirectivePath(0)); err == nil {
		t.Error("the directive of the round before is still there")
	}
	if got := r.Steps(); len(got) != 1 || got[0] != 7 {
		t.Errorf("steps %v", got)
	}
	if number, highest, recorded := r.Highest(); number != 2 || highest != noStep || !recorded {
		t.Errorf("round %d: step %d, %v", number, highest, recorded)
	}
	r.after(3 * time.Second)
	store(t, paths[0], 8)
	r.after(0)
	if got := r.Lost(CauseFailure); got != 4*time.Second {
		t.Errorf("lost %v", got)
	}
	if _, highest, _ := r.Highest(); highest != 8 {
		t.Errorf("highest %d", highest)
	}
}
