package etcdlog

import (
	"fmt"
	"testing"
	"time"

	"rallypoint/core/sharedlog"
	"rallypoint/internal/etcdclient"
	"rallypoint/internal/testkit"
)

// A watcher of a run finds every entry, through snapshots; what the etcd has forgotten
// is missed, and that shows.
func TestFollow(t *testing.T) {
	config := shared.Config(t)
	ctx := testkit.Within(t, 30*time.Second)
	f := testkit.Must(Watch(config, "a/run"))(t)
	defer f.Close()
	testkit.Equal(t, testkit.Must(f.Poll(ctx))(t).Generation, "")
	l := aLog(t, config)
	testkit.Check(t, l.Heartbeat(ctx, "LIVES", 10*time.Second))
	r := &reader{l: l}
	n, found := 0, 0
	poll := func() (missed uint64) {
		t.Helper()
		got := testkit.Must(f.Poll(ctx))(t)
		testkit.Equal(t, got.Generation, l.generation)
		for _, e := range got.Entries {
			found++
			testkit.Equal(t, string(e.Data), fmt.Sprint(found))
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
		testkit.Check(t, l.Snapshot(ctx, sharedlog.Snapshot{Index: r.after, State: []byte("state")}))
		write(round)
		testkit.Equal(t, poll(), 0)
		testkit.Equal(t, found, n)
	}
	write(2)
	testkit.Check(t, l.Snapshot(ctx, sharedlog.Snapshot{Index: r.after, State: []byte("state")}))
	compact(t, l.client)
	found = n
	testkit.Equal(t, poll(), r.after)
	write(2)
	testkit.Equal(t, poll(), 0)
	testkit.Equal(t, found, n)
}

// TestFollowToTheEnd: with the last node all keys of a run go, in the same moment as what it
// wrote last, or after many changes of other keys. A watcher finds that all the same, and
// the run that begins then; not, if the etcd has forgotten it.
func TestFollowToTheEnd(t *testing.T) {
	config := shared.Config(t)
	ctx := testkit.Within(t, 30*time.Second)
	f := testkit.Must(Watch(config, "a/run"))(t)
	defer f.Close()
	for life, others := range []int{0, 1, 40} {
		l := aLog(t, config)
		testkit.Check(t, l.Heartbeat(ctx, "LIVES", 10*time.Second))
		appendText(t, l, "first")
		testkit.Equal(t, len(testkit.Must(f.Poll(ctx))(t).Entries), 1)
		appendText(t, l, "second")
		appendText(t, l, "last")
		for i := range others {
			testkit.Must(l.client.Txn(ctx, "another key", etcdclient.TxnRequest{Success: []etcdclient.Op{etcdclient.PutOp("elsewhere", []byte(fmt.Sprint(i)), 0)}}))(t)
		}
		generation := l.generation
		testkit.Check(t, l.Close(ctx))
		if life == 2 {
			compact(t, f.(*watcher).l.client)
			testkit.Equal(t, len(testkit.Must(f.Poll(ctx))(t).Entries), 0)
			continue
		}
		got := testkit.Must(f.Poll(ctx))(t)
		testkit.Equal(t, got.Generation, generation)
		testkit.Equal(t, len(got.Entries), 2)
		testkit.Equal(t, string(got.Entries[1].Data), "last")
		testkit.Equal(t, testkit.Must(f.Poll(ctx))(t).Generation, "")
	}
}
