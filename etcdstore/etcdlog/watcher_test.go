package etcdlog

import (
	"fmt"
	"testing"
	"time"

	"rallypoint/core/sharedlog"
)

// A watcher of a run finds every entry, through snapshots; what the etcd has forgotten
// is missed, and that shows.
func TestFollow(t *testing.T) {
	config := aConfig(t)
	ctx := within(t, 30*time.Second)
	f := must(Watch(config, "a/run"))(t)
	defer f.Close()
	equal(t, must(f.Poll(ctx))(t).Generation, "")
	l := aLog(t, config)
	check(t, l.Heartbeat(ctx, "LIVES", 10*time.Second))
	r := &reader{l: l}
	n, found := 0, 0
	poll := func() (missed uint64) {
		t.Helper()
		got := must(f.Poll(ctx))(t)
		equal(t, got.Generation, l.generation)
		for _, e := range got.Entries {
			found++
			equal(t, string(e.Data), fmt.Sprint(found))
		}
		return got.Snapshot.Index
	}
	write := func(count int) {
		for range count {
			n++
			appendText(t, l, fmt.Sprint(n))
		}
		r.read(t, n)
	}
	for round := range 4 {
		write(3)
		check(t, l.Snapshot(ctx, sharedlog.Snapshot{Index: r.after, State: []byte("state")}))
		write(round)
		equal(t, poll(), 0)
		equal(t, found, n)
	}
	write(2)
	check(t, l.Snapshot(ctx, sharedlog.Snapshot{Index: r.after, State: []byte("state")}))
	compact(t, l.client)
	found = n
	equal(t, poll(), r.after)
	write(2)
	equal(t, poll(), 0)
	equal(t, found, n)
}
