package rendezvous

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"rallypoint/core/store"
)

// recount computes Usage from the present state.
func (m *Machine) recount() (u Usage) {
	for _, n := range m.nodes.sessions {
		u.Sessions += n.cost()
		for _, r := range n.answered {
			u.Answers += r.cost()
		}
		for _, w := range n.waits {
			u.Waits += w.cost()
		}
		u.Answers += awaitCost * int64(len(n.linger))
	}
	for id := range m.round.seen {
		u.Names += seenCost + int64(len(id))
	}
	u.Names += participantCost*int64(len(m.round.participants)) + m.directives.cost()
	if m.keys == nil {
		return u
	}
	e := store.NewEngine(store.Limits{})
	for key, value := range m.keys.engine.All() {
		_ = e.Set(key, value)
	}
	for name, items := range m.keys.engine.Queues() {
		for _, item := range items {
			_ = e.QueuePush(name, item)
		}
	}
	u.Keys = e.Memory()
	for _, n := range m.nodes.sessions {
		for _, w := range n.waits {
			// A part of what it waited for may be there: the place of that stays until it ends.
			e.Await(w.waiter.Pending(), &store.Waiter{Wake: func() {}})
		}
	}
	u.Waits += e.WaitBytes()
	return u
}

// checkUsage compares the counters with a full count.
func (m *Machine) checkUsage(t tester) {
	t.Helper()
	got, want := m.Usage(), m.recount()
	done := int64(0) // places of waits that have had their key, at most
	for _, n := range m.nodes.sessions {
		for _, w := range n.waits {
			done += int64(len(w.req.Keys) - len(w.waiter.Pending()))
		}
	}
	if got.Waits >= want.Waits && got.Waits <= want.Waits+partCost*done {
		got.Waits = want.Waits
	}
	if got != want {
		t.Fatalf("the run is counted as %+v, it has %+v", got, want)
	}
	if len(m.nodes.sessions) == 0 && got != (Usage{Keys: got.Keys, Names: got.Names}) {
		t.Fatalf("no session is left, and the run keeps %+v", got)
	}
}

// TestUsageIsExact has nodes of a run with little room do what they can to take more, and end in
// any order: check compares the count with the present state after each event.
func TestUsageIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const most = 16 << 10
		r := newRig(t, -1)
		r.m.Limit(Limits{Bytes: most})
		n := r.group(policy(3, 3), "a", "b", "c")
		values := rapid.SampledFrom([]string{"", "v", strings.Repeat("v", 300)})
		keys := rapid.SampledFrom([]string{"a", "b", strings.Repeat("k", 100)})
		largest := int64(0)
		for range rapid.IntRange(1, 100).Draw(t, "requests") {
			live := slices.DeleteFunc(slices.Clone(n), func(n *rigNode) bool { return n.dropped != nil })
			if len(live) == 0 {
				break
			}
			x := live[rapid.IntRange(0, len(live)-1).Draw(t, "node")]
			req := KeyRequest{Request: x.request(), Round: 1, Op: rapid.SampledFrom(keyOps).Draw(t, "op"), Keys: []string{keys.Draw(t, "key")}, Amount: int64(rapid.IntRange(0, 40).Draw(t, "amount"))}
			switch req.Op {
			case store.OpNumKeys, store.OpListKeys, store.OpCancelWait:
				req.Keys = nil
			case store.OpSet, store.OpAppend, store.OpQueuePush:
				req.Values = [][]byte{[]byte(values.Draw(t, "value"))}
			case store.OpCompareSet:
				req.Values = [][]byte{[]byte(values.Draw(t, "expected")), []byte(values.Draw(t, "desired"))}
			case store.OpMultiGet, store.OpWait:
				req.Keys = append(req.Keys, keys.Draw(t, "key"), keys.Draw(t, "key"))
			case store.OpMultiSet:
				req.Keys = append(req.Keys, keys.Draw(t, "key"))
				req.Values = [][]byte{[]byte(values.Draw(t, "value")), nil}
			}
			if rapid.IntRange(0, 20).Draw(t, "acknowledges") == 0 {
				req.Acked = x.acknowledged()
			}
			r.apply(req)
			if rapid.IntRange(0, 20).Draw(t, "restart") == 0 {
				m, err := Restore(r.m.Snapshot())
				if err != nil {
					t.Fatal(err)
				}
				if m.Usage() != r.m.Usage() && m.Usage().Waits > r.m.Usage().Waits {
					t.Fatalf("restored as %+v, it was %+v", m.Usage(), r.m.Usage())
				}
				r.m = m
			}
			largest = max(largest, r.m.Usage().Total())
		}
		if largest > most+most/4+2<<10 {
			t.Fatalf("%d bytes are kept, %d are allowed", largest, most)
		}
		for _, i := range rapid.Permutation([]int{0, 1, 2}).Draw(t, "end") {
			if x := n[i]; x.dropped == nil {
				r.lost(x)
			}
		}
		r.m.dropKeys(1)
		if u := r.m.Usage(); u != (Usage{Names: u.Names}) {
			t.Fatalf("all are gone, and %+v is kept", u)
		}
	})
}

// TestAnswersOfARunAreBounded: requests of a few bytes whose answers are large, by nodes that
// acknowledge none.
func TestAnswersOfARunAreBounded(t *testing.T) {
	const most = 16 << 20
	r := newRig(t, -1)
	r.m.Limit(Limits{Bytes: most})
	n := r.group(policy(8, 8), "a", "b", "c", "d", "e", "f", "g", "h")
	r.key(n[0], store.OpSet, 0, "k", strings.Repeat("v", 1<<20))
	refused := 0
	for range 31 {
		for _, x := range n {
			if reply := r.key(x, store.OpCompareSet, 0, "k", "no", "new"); reply.Err != nil {
				refused++
				for _, want := range []string{`run "job" keeps`, "16777216", "--max-bytes", "not acknowledged"} {
					if reply.Err.Code != CodeTooLarge || !strings.Contains(reply.Err.Text, want) {
						t.Fatalf("refused by %v, which lacks %q", reply.Err, want)
					}
				}
			}
		}
	}
	if total := r.m.Usage().Total(); total > most+most/4 || refused == 0 {
		t.Errorf("%d bytes are kept, %d requests are refused", total, refused)
	}
	for _, x := range n { // who acknowledges is served again
		req := KeyRequest{Request: x.request(), Round: 1, Op: store.OpNumKeys}
		req.Acked = x.number - 1
		r.apply(req)
	}
	if reply := r.key(n[0], store.OpCompareSet, 0, "k", "no", "new"); reply.Err != nil {
		t.Error(reply.Err)
	}
}

// TestWaitsOfARunAreBounded: waits for keys that never come, and one write that ends many.
func TestWaitsOfARunAreBounded(t *testing.T) {
	const most = 4 << 20
	r := newRig(t, -1)
	r.m.Limit(Limits{Bytes: most})
	n := r.group(policy(2, 2), "a", "b")
	long := strings.Repeat("k", 10_000)
	for i := 0; ; i++ {
		op := []store.Op{store.OpWait, store.OpGet, store.OpMultiGet, store.OpQueuePop}[i%4]
		if reply := r.key(n[0], op, 1, fmt.Sprint(long, i)); reply.Err != nil {
			break
		}
		if i > 10_000 {
			t.Fatal("none is refused")
		}
	}
	for _, x := range n[0].replies {
		if x.Err != nil && (x.Err.Code != CodeTooLarge || !strings.Contains(x.Err.Text, "waits for keys")) {
			t.Error(x.Err)
		}
	}
	waiting := len(r.m.nodes.sessions[n[0].session].waits)
	if waiting < 50 {
		t.Errorf("%d waits fit", waiting)
	}
	r.lost(n[0])
	for range 1000 {
		r.key(n[1], store.OpGet, 0, "k")
	}
	r.key(n[1], store.OpSet, 0, "k", strings.Repeat("v", 100_000))
	if total := r.m.Usage().Total(); total > most+most/4 {
		t.Errorf("a write that ends 1000 waits makes the run keep %d bytes", total)
	}
}

// TestWhoTakesMostIsLost: a run above its limit by a quarter loses the nodes that hold most, and
// serves the others.
func TestWhoTakesMostIsLost(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(2, 2), "a", "b")
	r.key(n[1], store.OpAdd, 1, "k")
	for range 100 {
		r.key(n[0], store.OpAdd, 1, "k")
	}
	r.m.Limit(Limits{Bytes: 4 << 10}) // less than is in use
	if reply := r.key(n[1], store.OpCheck, 0, "k"); reply.Err != nil || n[1].dropped != nil {
		t.Errorf("who holds little: %v, %v", reply.Err, n[1].dropped)
	}
	if n[0].dropped == nil || !strings.Contains(n[0].dropped.Text, "--max-bytes") {
		t.Errorf("who holds most: %v", n[0].dropped)
	}
}

// TestRefusedRequestIsAppliedOnce: a request that a driver refuses has one answer, and one that was
// applied before keeps the answer that it has.
func TestRefusedRequestIsAppliedOnce(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(1, 1), "a")[0]
	add := func() KeyRequest {
		return KeyRequest{Request: n.request(), Round: 1, Op: store.OpAdd, Keys: []string{"sum"}, Amount: 1}
	}
	applied, refused := add(), add()
	r.apply(applied)
	r.apply(Refused(applied, "no room")) // the rig fails if it is answered otherwise
	r.apply(Refused(refused, "no room"))
	r.apply(refused)
	if err := n.replies[refused.Number].Err; err == nil || err.Code != CodeTooLarge || err.Text != "no room" {
		t.Errorf("refused by %v", err)
	}
	if sum := r.key(n, store.OpAdd, 1, "sum").Result.(KeyResult).Number; sum != 2 {
		t.Errorf("the sum is %d after two adds", sum)
	}
	logged, err := EncodeEvent(Refused(add(), "no room"))
	if err != nil {
		t.Fatal(err)
	}
	if ev, err := DecodeEvent(logged); err != nil || ev.(KeyRequest).Op != opRefuse {
		t.Errorf("read from a log: %+v, %v", ev, err)
	}
}

// TestLargeAnswersAreNotMade: one frame asks for the same value as often as it can.
func TestLargeAnswersAreNotMade(t *testing.T) {
	r := newRig(t, -1)
	r.m.Limit(Limits{Bytes: DefaultMaxBytes})
	n := r.group(policy(1, 1), "a")[0]
	r.key(n, store.OpSet, 0, "k", strings.Repeat("v", 1<<20))
	req := KeyRequest{Request: n.request(), Round: 1, Op: store.OpMultiGet, Keys: slices.Repeat([]string{"k"}, MaxKeys)}
	effects, ok := r.m.TryRead(req)
	if err := effects[0].(Reply).Err; !ok || err == nil || err.Code != CodeTooLarge {
		t.Errorf("%v, %v", ok, err)
	}
	r.apply(req)
	if err := n.replies[req.Number].Err; err == nil || err.Code != CodeTooLarge || !strings.Contains(err.Text, "fewer keys") {
		t.Error(err)
	}
}
