package etcdlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/core/sharedlog"
	"rallypoint/internal/etcdclient"
	"rallypoint/internal/etcdtest"
	"rallypoint/internal/testkit"
)

// aLog is a log that is open and closed with the test.
func aLog(t testing.TB, config etcdclient.Config) *Log {
	t.Helper()
	l := newLog(t, config)
	testkit.Must(l.Open(testkit.Within(t, testkit.Patience)))(t)
	return l
}

func newLog(t testing.TB, config etcdclient.Config) *Log {
	t.Helper()
	l, err := New(config, "a/run", 2*time.Second, "10.1.2.3")
	testkit.Check(t, err)
	t.Cleanup(func() { _ = l.Close(testkit.Within(t, testkit.Patience)) })
	return l
}

func appendText(t testing.TB, l *Log, texts ...string) {
	t.Helper()
	entries := make([][]byte, len(texts))
	for i, text := range texts {
		entries[i] = []byte(text)
	}
	testkit.Check(t, l.Append(testkit.Within(t, testkit.Patience), entries))
}

// reader reads a log as a plane does.
type reader struct {
	l     *Log
	after uint64
	texts []string
	snaps []string

	patient bool // the log may be out of reach for a while
}

// read reads until so many entries were seen.
func (r *reader) read(t testing.TB, count int) []string {
	t.Helper()
	ctx := testkit.Within(t, time.Minute)
	for len(r.texts) < count {
		b, err := r.l.Next(ctx, r.after)
		if errors.Is(err, sharedlog.ErrCompacted) {
			s, err := r.l.Latest(ctx)
			testkit.Check(t, err)
			if s.Index <= r.after {
				t.Fatalf("the snapshot at %d does not help at %d", s.Index, r.after)
			}
			r.after, r.snaps = s.Index, append(r.snaps, string(s.State))
			continue
		}
		if err != nil && ctx.Err() == nil && !etcdclient.IsFinal(err) && r.patient {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		testkit.Check(t, err)
		for _, e := range b.Entries {
			if e.Index <= r.after {
				t.Fatalf("index %d after %d", e.Index, r.after)
			}
			r.after = e.Index
			r.texts = append(r.texts, string(e.Data))
		}
	}
	return r.texts
}

func TestLogHasOneOrder(t *testing.T) {
	config := shared.Config(t)
	const nodes, appends = 4, 20
	logs := make([]*Log, nodes)
	var all sync.WaitGroup
	for i := range logs {
		l := newLog(t, config)
		logs[i] = l
		all.Go(func() {
			if _, err := l.Open(testkit.Within(t, testkit.Patience)); err != nil {
				t.Error(err)
				return
			}
			for n := range appends {
				appendText(t, l, fmt.Sprint(i, " ", n), fmt.Sprint(i, " ", n, "b"))
			}
		})
	}
	all.Wait()
	first := (&reader{l: logs[0]}).read(t, 2*nodes*appends)
	for _, l := range logs[1:] {
		if !slices.Equal((&reader{l: l}).read(t, 2*nodes*appends), first) {
			t.Fatal("two nodes read different orders")
		}
	}
	late := aLog(t, config)
	if !slices.Equal((&reader{l: late}).read(t, 2*nodes*appends), first) {
		t.Fatal("a late node reads another order")
	}
	for i := range nodes {
		var own []string
		for _, text := range first {
			if strings.HasPrefix(text, fmt.Sprint(i, " ")) {
				own = append(own, text)
			}
		}
		if len(own) != 2*appends || own[0] != fmt.Sprint(i, " 0") || own[1] != fmt.Sprint(i, " 0b") {
			t.Fatalf("%q", own)
		}
	}
	infos := map[string]bool{}
	for _, l := range append(logs, late) {
		info := testkit.Must(l.Open(testkit.Within(t, time.Second)))(t)
		infos[info.Generation] = true
		testkit.Equal(t, info.SeenAddr, "10.1.2.3") // the etcd is on this machine
	}
	testkit.Equal(t, len(infos), 1)
}

// Snapshots replace entries, whether their state fits into one key or not.
func TestLogSnapshots(t *testing.T) {
	for _, size := range []int{10, partSize, 3*partSize + 7} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			config := shared.Config(t)
			a, b := aLog(t, config), aLog(t, config)
			ctx := testkit.Within(t, 30*time.Second)
			ra := &reader{l: a}
			for i := range 5 {
				appendText(t, a, fmt.Sprint(i))
			}
			ra.read(t, 5)
			for _, filler := range []string{"x", "y"} { // the second drops the first's parts
				appendText(t, b, filler)
				ra.read(t, len(ra.texts)+1)
				testkit.Check(t, a.Snapshot(ctx, sharedlog.Snapshot{Index: ra.after, State: []byte(strings.Repeat(filler, size))}))
			}
			testkit.Check(t, b.Snapshot(ctx, sharedlog.Snapshot{Index: 1, State: []byte("old")}))
			appendText(t, b, "after")
			late := aLog(t, config)
			r := &reader{l: late}
			testkit.Equal(t, strings.Join(r.read(t, 1), ","), "after")
			if len(r.snaps) != 1 || r.snaps[0] != strings.Repeat("y", size) {
				t.Fatal("not the last state")
			}
			// The node that watched has all entries, and hears of the snapshot.
			for after, known := uint64(0), uint64(0); known == 0; {
				batch, err := b.Next(ctx, after)
				testkit.Check(t, err)
				known = batch.Snapshot
				for _, e := range batch.Entries {
					after = e.Index
				}
			}
			left, _, err := a.client.List(ctx, "left", etcdclient.RangeRequest{Key: a.root, End: etcdclient.PrefixEnd(a.root), KeysOnly: true})
			testkit.Check(t, err)
			parts := 0
			if size > partSize {
				parts = (size + partSize - 1) / partSize
			}
			// The nodes' signs, of which some may have run out, do not count.
			left = slices.DeleteFunc(left, func(kv etcdclient.KeyValue) bool { return strings.HasPrefix(kv.Key, a.root+keyHeartbeats) })
			testkit.Equal(t, len(left), 1+1+parts+1) // gen, snap, parts, "after"
		})
	}
}

// What the etcd has forgotten is read again: nothing is lost unless a snapshot has
// taken its place.
func TestLogSurvivesCompaction(t *testing.T) {
	config := shared.Config(t)
	network := etcdtest.NewLink(t, config.Endpoints[0])
	cut := config
	cut.Endpoints = []string{network.Endpoint}
	a, b := aLog(t, config), aLog(t, cut)
	ctx := testkit.Within(t, 30*time.Second)
	ra, rb := &reader{l: a}, &reader{l: b}
	appendText(t, a, "1", "2")
	rb.read(t, 2)
	blind(t, b, network, func() {
		appendText(t, a, "3")
		compact(t, a.client)
	})
	testkit.Equal(t, strings.Join(rb.read(t, 3), ","), "1,2,3")
	testkit.Equal(t, len(rb.snaps), 0)
	blind(t, b, network, func() {
		appendText(t, a, "4")
		ra.read(t, 4)
		testkit.Check(t, a.Snapshot(ctx, sharedlog.Snapshot{Index: ra.after, State: []byte("1-4")}))
		appendText(t, a, "5")
		compact(t, a.client)
	})
	testkit.Equal(t, strings.Join(rb.read(t, 4), ","), "1,2,3,5")
	testkit.Equal(t, strings.Join(rb.snaps, ","), "1-4")
}

// blind runs f while the log cannot reach the etcd.
func blind(t *testing.T, l *Log, network *etcdtest.Link, f func()) {
	t.Helper()
	network.Close()
	for {
		if _, err := l.ReadHeartbeats(context.Background(), nil); err != nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	f()
	network.Open()
	for {
		if _, err := l.ReadHeartbeats(context.Background(), nil); err == nil {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// compact makes the etcd forget all revisions but the present one.
func compact(t *testing.T, c *etcdclient.Client) {
	t.Helper()
	ctx := testkit.Within(t, testkit.Patience)
	revision := testkit.Must(c.Get(ctx, "reading", etcdclient.RangeRequest{Key: "x"}))(t).Revision
	testkit.Check(t, c.Call(ctx, "compacting", func(ctx context.Context) error {
		_, err := c.Etcd.Compact(ctx, revision)
		return err
	}))
}

func look(t testing.TB, l *Log, session rendezvous.SessionID) sharedlog.LivenessState {
	t.Helper()
	for ctx := testkit.Within(t, testkit.Patience); ; time.Sleep(10 * time.Millisecond) {
		signs, err := l.ReadHeartbeats(ctx, []rendezvous.SessionID{session})
		if err != nil && ctx.Err() == nil {
			continue // its watch is being opened again
		}
		testkit.Check(t, err)
		return signs[0].State
	}
}

func awaitSign(t testing.TB, l *Log, session rendezvous.SessionID, want sharedlog.LivenessState) {
	t.Helper()
	for ctx := testkit.Within(t, testkit.Patience); look(t, l, session) != want; time.Sleep(10 * time.Millisecond) {
		if ctx.Err() != nil {
			t.Fatalf("the sign of %s is not %d", session, want)
		}
	}
}

func TestLogSigns(t *testing.T) {
	t.Parallel()
	config := shared.Config(t)
	a, b := aLog(t, config), aLog(t, config)
	ctx := testkit.Within(t, 30*time.Second)
	const lease = 2 * time.Second
	testkit.Check(t, a.Heartbeat(ctx, "a", lease))
	testkit.Check(t, b.Heartbeat(ctx, "b1", lease))
	awaitSign(t, a, "b1", sharedlog.LivenessHeartbeats)
	testkit.Check(t, b.Heartbeat(ctx, "b2", lease)) // it has begun again
	awaitSign(t, a, "b2", sharedlog.LivenessHeartbeats)
	awaitSign(t, a, "b1", sharedlog.LivenessExpired)
	for look(t, a, "b2") != sharedlog.LivenessExpired {
		testkit.Check(t, a.Heartbeat(ctx, "a", lease))
		time.Sleep(lease / 8)
	}
	testkit.Equal(t, look(t, a, "a"), sharedlog.LivenessHeartbeats)
	testkit.Check(t, b.Heartbeat(ctx, "b2", lease)) // its lease was lost while it was stopped
	awaitSign(t, a, "b2", sharedlog.LivenessHeartbeats)
	testkit.Check(t, b.Heartbeat(ctx, "b2", 3*lease)) // the run has another lease than thought
	testkit.Check(t, b.Heartbeat(ctx, "b2", 3*lease))
	awaitSign(t, a, "b2", sharedlog.LivenessHeartbeats)
	testkit.Check(t, b.Close(ctx))
	awaitSign(t, a, "b2", sharedlog.LivenessExpired)
}

// A run whose nodes are all dead is begun again, and a node that missed that gets an error.
func TestLogOfTheDead(t *testing.T) {
	t.Parallel()
	config := shared.Config(t)
	ctx := testkit.Within(t, 30*time.Second)
	old := aLog(t, config)
	testkit.Check(t, old.Heartbeat(ctx, "old", time.Second))
	appendText(t, old, "1")
	generation := testkit.Must(old.Open(ctx))(t).Generation
	// No more beats: the node is stopped. A second one enters while its sign exists.
	second := aLog(t, config)
	testkit.Equal(t, testkit.Must(second.Open(ctx))(t).Generation, generation)
	testkit.Check(t, second.Close(ctx))
	for {
		next := aLog(t, config)
		if testkit.Must(next.Open(ctx))(t).Generation != generation {
			appendText(t, next, "2")
			testkit.Equal(t, strings.Join((&reader{l: next}).read(t, 1), ","), "2")
			break
		}
		testkit.Check(t, next.Close(ctx))
		time.Sleep(100 * time.Millisecond)
	}
	for name, err := range map[string]error{
		"append": old.Append(ctx, [][]byte{nil}),
		"beat":   old.Heartbeat(ctx, "old", time.Second),
		"next":   func() error { r := &reader{l: old}; r.read(t, 1); _, err := old.Next(ctx, r.after); return err }(),
	} {
		if !errors.Is(err, rendezvous.ErrState) || !strings.Contains(err.Error(), "begun again") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The last one to leave takes the keys with it.
func TestLogLeavesNothing(t *testing.T) {
	config := shared.Config(t)
	ctx := testkit.Within(t, 30*time.Second)
	a, b := aLog(t, config), aLog(t, config)
	testkit.Check(t, a.Heartbeat(ctx, "a", time.Second))
	appendText(t, a, "1")
	c := testkit.Must(etcdclient.New(config))(t)
	defer c.Close()
	left := func() int {
		kvs, _, err := c.List(ctx, "left", etcdclient.RangeRequest{Key: config.Prefix, End: etcdclient.PrefixEnd(config.Prefix)})
		testkit.Check(t, err)
		return len(kvs)
	}
	testkit.Check(t, a.Close(ctx))
	testkit.Equal(t, left(), 3)
	testkit.Check(t, b.Close(ctx))
	testkit.Equal(t, left(), 0)
	testkit.Check(t, b.Close(ctx))
	if _, err := b.Next(ctx, 0); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func TestLogOfAnotherProgram(t *testing.T) {
	config := shared.Config(t)
	ctx := testkit.Within(t, 30*time.Second)
	c := testkit.Must(etcdclient.New(config))(t)
	defer c.Close()
	testkit.Must(c.Txn(ctx, "spoiling", etcdclient.TxnRequest{Success: []etcdclient.Op{
		etcdclient.PutOp(config.Prefix+"/a%2Frun/gen", []byte("mine"), 0), etcdclient.PutOp(config.Prefix+"/a%2Frun/l/x", nil, 0),
	}}))(t)
	if _, err := newLog(t, config).Open(ctx); !errors.Is(err, rendezvous.ErrState) || !strings.Contains(err.Error(), "key_prefix") {
		t.Fatal(err)
	}
}

// A log over such a network has each entry once, and creates and leaves its run.
func TestLogOverATreacherousNetwork(t *testing.T) {
	t.Parallel()
	config := shared.Config(t)
	const appends = 30
	l := newLog(t, config)
	etcdtest.MakeLossy(l.client, t)
	ctx := testkit.Within(t, time.Minute)
	testkit.Must(l.Open(ctx))(t)
	other := aLog(t, config)
	testkit.Equal(t, other.generation, l.generation)
	var want []string
	for i := range appends {
		testkit.Check(t, l.Heartbeat(ctx, "s", time.Minute))
		appendText(t, l, fmt.Sprint(i))
		want = append(want, fmt.Sprint(i))
	}
	if have := (&reader{l: other}).read(t, appends); !slices.Equal(have, want) {
		t.Fatalf("have %q", have)
	}
	testkit.Check(t, other.Close(ctx))
	testkit.Check(t, l.Close(ctx))
	c := testkit.Must(etcdclient.New(config))(t)
	defer c.Close()
	kvs, _, err := c.List(ctx, "left", etcdclient.RangeRequest{Key: config.Prefix, End: etcdclient.PrefixEnd(config.Prefix)})
	testkit.Check(t, err)
	if len(kvs) > 0 && !strings.HasSuffix(kvs[0].Key, "/l/s") {
		t.Fatalf("%d keys are left", len(kvs))
	}
}
