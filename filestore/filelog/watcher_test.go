package filelog

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"rallypoint/core/sharedlog"
	"rallypoint/internal/testkit"
)

// watched is what a watcher has found: the entries' texts in a row.
type watched struct {
	t          *testing.T
	f          sharedlog.Watcher
	generation string
	from       uint64 // index of the snapshot before the texts
	texts      []string
}

func watch(t *testing.T, dir string) *watched {
	f := Watch(dir, "job")
	t.Cleanup(f.Close)
	return &watched{t: t, f: f}
}

func (w *watched) poll() {
	w.t.Helper()
	r := testkit.Must(w.f.Poll(testkit.Within(w.t, logPatience)))(w.t)
	if r.Generation == "" {
		return
	}
	last := w.from + uint64(len(w.texts))
	if r.Generation != w.generation || r.Snapshot.Index > last {
		w.generation, w.from, w.texts = r.Generation, r.Snapshot.Index, nil
		last = w.from
	}
	for _, e := range r.Entries {
		if e.Index <= last {
			continue
		}
		if last++; e.Index != last {
			w.t.Fatalf("entry %d comes after %d", e.Index, last-1)
		}
		w.texts = append(w.texts, string(e.Data))
	}
}

func (w *watched) want(from uint64, last int) {
	w.t.Helper()
	w.poll()
	if w.from != from || len(w.texts) != last-int(from) {
		w.t.Fatalf("%d entries after %d, want %d to %d", len(w.texts), w.from, from+1, last)
	}
	for i, text := range w.texts {
		if want := fmt.Sprint(int(from) + i + 1); text != want {
			w.t.Fatalf("entry %s is %q", want, text)
		}
	}
}

// TestWatch: a watcher of a log from its beginning finds every entry, through
// snapshots, up to the last one before the run is removed; and then the next run.
func TestWatch(t *testing.T) {
	dir := t.TempDir()
	early := watch(t, dir)
	early.want(0, 0)
	l := openLog(t, dir, nil)
	n := 0
	write := func(l *Log, count int) {
		for range count {
			n++
			appendTexts(t, l, fmt.Sprint(n))
		}
	}
	snapshot := func(index int) {
		testkit.Check(t, l.Snapshot(testkit.Within(t, logPatience), sharedlog.Snapshot{Index: uint64(index), State: []byte("state")}))
	}
	for range 30 {
		write(l, rand.IntN(8))
		if rand.IntN(2) == 0 {
			early.want(0, n)
		}
		if n > 0 {
			snapshot(max(1, n-rand.IntN(3)))
			early.poll()
		}
	}
	early.want(0, n)
	late := watch(t, dir)
	late.poll()
	if late.from == 0 || late.from+uint64(len(late.texts)) != uint64(n) {
		t.Errorf("a late watcher has %d entries after %d of %d", len(late.texts), late.from, n)
	}
	write(l, 3)
	testkit.Check(t, l.Close(testkit.Within(t, logPatience)))
	early.want(0, n) // though the files are gone
	late.want(late.from, n)
	early.want(0, n)
	n = 0
	l = openLog(t, dir, nil)
	write(l, 2)
	early.want(0, 2)
	if early.generation != l.generation {
		t.Error("the second run is not told from the first")
	}
}

// TestWatchFallsBehind: the watch misses the entries that were dropped meanwhile, and says so.
func TestWatchFallsBehind(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir, nil)
	f := watch(t, dir)
	appendTexts(t, l, "1")
	f.want(0, 1)
	for n := 2; n <= 9; n++ {
		appendTexts(t, l, fmt.Sprint(n))
		testkit.Check(t, l.Snapshot(testkit.Within(t, logPatience), sharedlog.Snapshot{Index: uint64(n), State: []byte("state")}))
	}
	f.poll()
	f.poll()
	f.want(8, 9)
}
