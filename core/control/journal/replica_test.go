package journal

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"rallypoint/core/election/raft"
)

// join folds by writing all events behind the state.
func join(r Run) ([]byte, error) {
	return bytes.Join(append([][]byte{r.Snapshot}, r.Events...), nil), nil
}

func apply(t *testing.T, r *Replica, changes ...WriteBatch) {
	t.Helper()
	if err := r.Save(raft.Change{Apply: Entries(changes)}); err != nil {
		t.Fatal(err)
	}
}

func begin(run uint64, id string, n int) WriteBatch {
	return WriteBatch{Run: run, Snapshot: &Snapshot{ID: id, State: []byte("state of " + id)}, First: 1, Events: events(1, n)}
}

// TestReplicaFollowsTheLog: what entries come to is the same from the first one on, and from a snapshot.
func TestReplicaFollowsTheLog(t *testing.T) {
	one := NewReplica(join)
	apply(t, one, begin(1, "a", 2), begin(2, "b", 0))
	apply(t, one, WriteBatch{Run: 2, First: 1, Events: events(1, 1)}, WriteBatch{Run: 1, First: 3, Events: events(3, 4)}, begin(3, "c", 1))
	apply(t, one, WriteBatch{Run: 3, Forget: true})
	want := []Run{
		{Number: 1, ID: "a", Snapshot: []byte("state of a"), Events: events(1, 4)},
		{Number: 2, ID: "b", Snapshot: []byte("state of b"), Events: events(1, 1)},
	}
	if got := one.Runs(); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	state, err := one.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	two := NewReplica(join)
	apply(t, two, begin(9, "older", 1))
	if err := two.Save(raft.Change{Replace: true, Snapshot: state, Apply: Entries([]WriteBatch{{Run: 1, First: 5, Events: events(5, 5)}})}); err != nil {
		t.Fatal(err)
	}
	want[0].Events = events(1, 5)
	if got := two.Runs(); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	if err := two.Save(raft.Change{Replace: true}); err != nil || len(two.Runs()) > 0 {
		t.Errorf("%v: %+v", err, two.Runs())
	}
}

// TestReplicaFolds: events go into the snapshot before they outgrow it, unless the run is broken.
func TestReplicaFolds(t *testing.T) {
	broken := errors.New("broken")
	var fails error
	r := NewReplica(func(run Run) ([]byte, error) {
		state, _ := join(run)
		return state, fails
	})
	apply(t, r, begin(1, "a", 0))
	all := "state of a"
	for i := range 40 {
		ev := bytes.Repeat([]byte{byte('a' + i%26)}, 100<<10)
		apply(t, r, WriteBatch{Run: 1, First: uint64(i) + 1, Events: [][]byte{ev}})
		all += string(ev)
		run := r.Runs()[0]
		if state, _ := join(run); string(state) != all || run.Through+uint64(len(run.Events)) != uint64(i)+1 {
			t.Fatalf("after event %d: %d bytes, through %d and %d events", i+1, len(state), run.Through, len(run.Events))
		}
		if since := len(all) - len(run.Snapshot); since > max(leastFolded, len(run.Snapshot))+len(ev) {
			t.Fatalf("%d bytes of events after a state of %d", since, len(run.Snapshot))
		}
	}
	fails = broken
	through := r.Runs()[0].Through
	for i := 40; i < 120; i++ {
		apply(t, r, WriteBatch{Run: 1, First: uint64(i) + 1, Events: [][]byte{make([]byte, 100<<10)}})
	}
	if run := r.Runs()[0]; run.Through != through || len(run.Events) != 120-int(through) {
		t.Errorf("through %d, %d events", run.Through, len(run.Events))
	}
}

// TestEntriesAreBounded: changes are parted at events, one of which may be longer.
func TestEntriesAreBounded(t *testing.T) {
	long := WriteBatch{Run: 1, First: 3, Forget: true}
	for range 50 {
		long.Events = append(long.Events, make([]byte, 100<<10))
	}
	long.Events = append(long.Events, make([]byte, 2<<20))
	changes := []WriteBatch{begin(7, "b", 3), begin(1, "a", 2), long, {Run: 7, First: 4, Events: events(4, 5)}}
	entries := Entries(changes)
	if len(entries) < 6 {
		t.Errorf("%d entries", len(entries))
	}
	got := map[uint64][]string{}
	for _, entry := range entries {
		read, err := decode(entry)
		if err != nil {
			t.Fatal(err)
		}
		count := 0
		for _, c := range read {
			for i, ev := range c.Events {
				got[c.Run] = append(got[c.Run], fmt.Sprint(c.First+uint64(i), " ", len(ev)))
				count++
			}
			if c.Forget {
				got[c.Run] = append(got[c.Run], "forgotten")
			}
		}
		if len(entry) > maxEntry+4096 && count > 1 {
			t.Errorf("an entry of %d bytes has %d events", len(entry), count)
		}
	}
	var want []string
	for i := range 52 {
		want = append(want, fmt.Sprint(i+1, " ", 100<<10))
	}
	want[0], want[1] = "1 7", "2 7"
	want = append(want, fmt.Sprint(53, " ", 2<<20), "forgotten")
	if !reflect.DeepEqual(got[1], want) {
		t.Errorf("%v", got[1])
	}
	if strings.Join(got[7], ",") != "1 7,2 7,3 7,4 7,5 7" {
		t.Errorf("%v", got[7])
	}
	if Entries(nil) != nil {
		t.Error("nothing is an entry")
	}
}

// TestReplicaRefusesGaps: a log that cannot be one is an error, and not a state.
func TestReplicaRefusesGaps(t *testing.T) {
	for name, bad := range map[string][][]byte{
		"an event is missing":    Entries([]WriteBatch{{Run: 1, First: 4, Events: events(4, 4)}}),
		"an event comes again":   Entries([]WriteBatch{{Run: 1, First: 2, Events: events(2, 2)}}),
		"the run is not known":   Entries([]WriteBatch{{Run: 2, First: 1, Events: events(1, 1)}}),
		"it is no entry":         {[]byte("junk")},
		"it has more at the end": {append(Entries([]WriteBatch{begin(3, "c", 1)})[0], 0)},
	} {
		r := NewReplica(join)
		apply(t, r, begin(1, "a", 2))
		if err := r.Save(raft.Change{Apply: bad}); err == nil {
			t.Errorf("%s: %+v", name, r.Runs())
		}
	}
}

// FuzzEntry: any bytes are an entry, or an error, and what is read is written alike.
func FuzzEntry(f *testing.F) {
	for _, changes := range [][]WriteBatch{{begin(1, "a", 2)}, {{Run: 2, First: 1 << 40, Events: events(1, 3), Forget: true}, {Run: 3}}, {}} {
		f.Add(encode(changes))
	}
	f.Fuzz(func(t *testing.T, entry []byte) {
		changes, err := decode(entry)
		if err != nil {
			return
		}
		again, err := decode(encode(changes))
		if err != nil || !reflect.DeepEqual(again, changes) {
			t.Errorf("%+v becomes %+v: %v", changes, again, err)
		}
	})
}
