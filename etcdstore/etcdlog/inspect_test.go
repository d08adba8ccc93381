package etcdlog

import (
	"errors"
	"strings"
	"testing"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/core/sharedlog"
	"rallypoint/etcdstore"
	"rallypoint/internal/etcdclient"
	"rallypoint/internal/testkit"
)

// Runs reads what there is of each run, and changes no key.
func TestRuns(t *testing.T) {
	config := shared.Config(t)
	ctx := testkit.Within(t, 30*time.Second)
	if got := testkit.Must(Inspect(ctx, config, ""))(t); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	l := aLog(t, config)
	testkit.Check(t, l.Heartbeat(ctx, "LIVES", 10*time.Second))
	appendText(t, l, "1", "2")
	r := &reader{l: l}
	r.read(t, 2)
	big := strings.Repeat("x", 2*partSize+1)
	testkit.Check(t, l.Snapshot(ctx, sharedlog.Snapshot{Index: r.after, State: []byte(big)}))
	appendText(t, l, "3")
	// Keys of others under the same prefix.
	store := testkit.Must(etcdstore.Open(ctx, config))(t)
	defer store.Close()
	testkit.Check(t, store.Set(ctx, "gen", []byte("mine")))
	testkit.Check(t, store.Set(ctx, "plain", []byte("mine")))

	_, before, err := l.client.List(ctx, "keys", etcdclient.RangeRequest{Key: config.Prefix, End: etcdclient.PrefixEnd(config.Prefix)})
	testkit.Check(t, err)
	records := testkit.Must(Inspect(ctx, config, ""))(t)
	_, after, err := l.client.List(ctx, "keys", etcdclient.RangeRequest{Key: config.Prefix, End: etcdclient.PrefixEnd(config.Prefix)})
	testkit.Check(t, err)
	testkit.Equal(t, after, before) // the revision: nothing was written
	if len(records) != 1 {
		t.Fatalf("%d runs", len(records))
	}
	got := records[0]
	testkit.Equal(t, got.RunID, "a/run")
	testkit.Equal(t, got.Generation, l.generation)
	testkit.Equal(t, string(got.Snapshot.State) == big, true)
	testkit.Equal(t, got.Snapshot.Index, r.after)
	if len(got.Entries) != 1 || string(got.Entries[0].Data) != "3" || len(got.Living) != 1 || !got.Living["LIVES"] {
		t.Errorf("%+v, %v", got.Entries, got.Living)
	}
	testkit.Equal(t, len(testkit.Must(Inspect(ctx, config, "a/run"))(t)), 1)
	testkit.Equal(t, len(testkit.Must(Inspect(ctx, config, "another"))(t)), 0)
}

// An entry from outside is like any other, after the one that it must follow, also if
// what was appended since then is in a snapshot alone.
func TestAppendFromOutside(t *testing.T) {
	config := shared.Config(t)
	ctx := testkit.Within(t, 30*time.Second)
	l := aLog(t, config)
	r := &reader{l: l}
	outside := func(run sharedlog.Record, text string) error {
		return Append(ctx, config, run.RunID, run.Generation, run.Last(), []byte(text))
	}
	look := func() sharedlog.Record { return testkit.Must(Inspect(ctx, config, "a/run"))(t)[0] }
	testkit.Check(t, outside(look(), "0"))
	appendText(t, l, "1", "2")
	seen := look()
	testkit.Check(t, outside(seen, "3"))
	if err := outside(seen, "late"); !errors.Is(err, sharedlog.ErrMoved) {
		t.Errorf("behind another entry: %v", err)
	}
	seen = look()
	appendText(t, l, "4")
	r.read(t, 5)
	testkit.Check(t, l.Snapshot(ctx, sharedlog.Snapshot{Index: r.after, State: []byte("01234")}))
	if err := outside(seen, "late"); !errors.Is(err, sharedlog.ErrMoved) {
		t.Errorf("behind an entry that is in a snapshot: %v", err)
	}
	testkit.Check(t, outside(look(), "5"))
	testkit.Equal(t, strings.Join(r.read(t, 6), ""), "012345")
	other := seen
	other.Generation = "UNKNOWN"
	if err := outside(other, "late"); rendezvous.CodeOf(err) != rendezvous.CodeState {
		t.Errorf("to another generation: %v", err)
	}
}
