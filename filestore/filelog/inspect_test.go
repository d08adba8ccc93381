package filelog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/rendezvous"
	"rallypoint/core/sharedlog"
	"rallypoint/core/training"
	"rallypoint/internal/testkit"
)

func TestInspectReadsSnapshotEntriesAndHeartbeats(t *testing.T) {
	dir := t.TempDir()
	l, other := openLog(t, dir, nil), openLog(t, dir, nil)
	report := training.Report{Round: 3, Workers: 2, Reporting: 2, Smallest: 5, Largest: 6, PerStep: time.Second}
	testkit.Check(t, l.Heartbeat(testkit.Within(t, logPatience), "LIVES", 0))
	if r := testkit.Must(Inspect(dir, ""))(t); len(r) != 1 || len(r[0].Reports) != 0 {
		t.Errorf("%+v", r)
	}
	l.CarryReport(&report)
	other.CarryReport(&report)
	testkit.Check(t, l.Heartbeat(testkit.Within(t, logPatience), "LIVES", 0))
	testkit.Check(t, other.Heartbeat(testkit.Within(t, logPatience), "DIED", 0))
	appendTexts(t, l, "1", "2", "3")
	testkit.Check(t, l.Snapshot(testkit.Within(t, logPatience), sharedlog.Snapshot{Index: 2, State: []byte("two")}))
	appendTexts(t, l, "4")
	other.crash()
	records := testkit.Must(Inspect(dir, ""))(t)
	if len(records) != 1 {
		t.Fatalf("%d runs", len(records))
	}
	r := records[0]
	if r.RunID != "job" || r.Generation != l.generation || r.Snapshot.Index != 2 || string(r.Snapshot.State) != "two" || len(r.Entries) != 2 ||
		r.Entries[0].Index != 3 || string(r.Entries[1].Data) != "4" || len(r.Living) != 1 || !r.Living["LIVES"] || len(r.Reports) != 1 || *r.Reports["LIVES"] != report {
		t.Errorf("%+v", r)
	}
	if got := testkit.Must(l.ReadHeartbeats(testkit.Within(t, logPatience), []rendezvous.SessionID{"LIVES"}))(t); got[0].Heartbeats != 2 {
		t.Errorf("%+v", got)
	}
	l.CarryReport(nil)
	testkit.Check(t, l.Heartbeat(testkit.Within(t, logPatience), "LIVES", 0))
	if r := testkit.Must(Inspect(dir, ""))(t); len(r[0].Reports) != 0 {
		t.Errorf("%+v", r)
	}
	testkit.Check(t, os.WriteFile(l.heartbeatPath("LIVES"), append(make([]byte, heartbeatBytes), strings.Repeat("\xff", 1000)...), 0o600))
	if r := testkit.Must(Inspect(dir, ""))(t); len(r[0].Reports) != 0 {
		t.Errorf("%+v", r)
	}
	if got := testkit.Must(Inspect(dir, "another"))(t); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}

// Inspect sees one moment of the log, whatever its nodes do meanwhile: no
// entry is missing or there twice, and none that was appended before is not there.
func TestInspectBesideSnapshots(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir, nil)
	const appends = 500
	var mu sync.Mutex
	appended := 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 1; i <= appends; i++ {
			appendTexts(t, l, fmt.Sprint(i))
			mu.Lock()
			appended = i
			mu.Unlock()
			if i%5 == 0 {
				testkit.Check(t, l.Snapshot(testkit.Within(t, logPatience), sharedlog.Snapshot{Index: uint64(i - 2), State: []byte("s")}))
			}
		}
	}()
	for looks := 0; ; looks++ {
		mu.Lock()
		least := appended
		mu.Unlock()
		r := testkit.Must(Inspect(dir, "job"))(t)[0]
		at := r.Snapshot.Index
		for _, e := range r.Entries {
			if at++; e.Index != at || string(e.Data) != fmt.Sprint(at) {
				t.Fatalf("entry %d is %d %q", at, e.Index, e.Data)
			}
		}
		if int(at) < least {
			t.Fatalf("%d entries are seen, there were %d", at, least)
		}
		select {
		case <-done:
			if looks == 0 {
				t.Error("nothing was looked at meanwhile")
			}
			return
		default:
		}
	}
}

// To inspect a run delays none of its nodes, and brings no dead one to life.
func TestInspectHoldsNothing(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir, nil)
	testkit.Check(t, l.Heartbeat(testkit.Within(t, logPatience), "A", 0))
	testkit.Must(Inspect(dir, ""))(t)
	testkit.Check(t, l.Close(testkit.Within(t, logPatience)))
	if got := testkit.Must(Inspect(dir, ""))(t); len(got) != 0 {
		t.Errorf("the run is still there: %+v", got)
	}
	crashed := openLog(t, dir, nil)
	crashed.crash()
	testkit.Must(Inspect(dir, ""))(t)
	if next := openLog(t, dir, nil); next.generation == crashed.generation {
		t.Error("the next run meets the dead one")
	}
}

func TestInspectRefusesForeignFiles(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir, nil)
	testkit.Check(t, l.writer.file.Truncate(3))
	_, err := Inspect(dir, "")
	if rendezvous.CodeOf(err) != rendezvous.CodeState || !strings.Contains(err.Error(), dir) {
		t.Errorf("%v", err)
	}
}

// Inspect does not wait for what another user has put there.
func TestInspectDoesNotWait(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir, nil)
	for _, path := range []string{l.logPath(1), filepath.Join(l.dir, "run")} {
		testkit.Check(t, os.Remove(path))
		testkit.Check(t, unix.Mkfifo(path, 0o600))
		ended := testkit.Go(func() error {
			_, err := Inspect(dir, "")
			return err
		})
		select {
		case err := <-ended:
			if rendezvous.CodeOf(err) != rendezvous.CodeState {
				t.Error(err)
			}
		case <-time.After(logPatience):
			t.Errorf("waits for a writer of %s", path)
			w := testkit.Must(os.OpenFile(path, os.O_RDWR, 0))(t)
			<-ended
			w.Close()
		}
	}
}

// An entry from outside is like any other, after the one that it must follow; it
// gets into no later run.
func TestAppendFromOutside(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir, nil)
	appendTexts(t, l, "1")
	testkit.Check(t, Append(testkit.Within(t, logPatience), dir, "job", l.generation, 1, []byte("2")))
	if err := Append(testkit.Within(t, logPatience), dir, "job", l.generation, 1, []byte("late")); !errors.Is(err, sharedlog.ErrMoved) {
		t.Error(err)
	}
	appendTexts(t, l, "3")
	if got := readTexts(t, l, 0, 3); !slices.Equal(got, []string{"1", "2", "3"}) {
		t.Errorf("got %q", got)
	}
	old := l.generation
	testkit.Check(t, l.Close(testkit.Within(t, logPatience)))
	next := openLog(t, dir, nil)
	for _, generation := range []string{old, "UNKNOWN"} {
		wantLogError(t, Append(testkit.Within(t, logPatience), dir, "job", generation, 0, []byte("late")), rendezvous.ErrState, dir)
	}
	if r := testkit.Must(Inspect(dir, "job"))(t)[0]; r.Generation != next.generation || len(r.Entries) != 0 {
		t.Errorf("%+v", r)
	}
}
