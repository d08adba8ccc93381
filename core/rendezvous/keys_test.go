package rendezvous

import (
	"strings"
	"testing"
)

func TestKeyOperations(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(1, 1), "a")[0]
	value := func(reply Reply) string {
		t.Helper()
		if reply.Err != nil {
			t.Fatal(reply.Err)
		}
		return string(reply.Result.(KeyResult).Values[0])
	}
	r.key(n, KeySet, 0, "k", "v")
	if got := value(r.key(n, KeyGet, 0, "k")); got != "v" {
		t.Errorf("get: %q", got)
	}
	r.key(n, KeyAppend, 0, "k", "w")
	if got := value(r.key(n, KeyGet, 0, "k")); got != "vw" {
		t.Errorf("append: %q", got)
	}
	if got := value(r.key(n, KeyCompareSet, 0, "k", "vw", "x")); got != "x" {
		t.Errorf("compare_set: %q", got)
	}
	if err := r.key(n, KeyAdd, 1, "k").Err; err == nil || err.Code != CodeNumber {
		t.Errorf("add on a text: %v", err)
	}
	if !r.key(n, KeyCheck, 0, "k").Result.(KeyResult).Ready || r.key(n, KeyCheck, 0, "none").Result.(KeyResult).Ready {
		t.Error("check")
	}
	if got := r.key(n, KeyCount, 0, "").Result.(KeyResult).Number; got != 1 {
		t.Errorf("num_keys: %d", got)
	}
	if got := r.key(n, KeyList, 0, "").Result.(KeyResult).Keys; len(got) != 1 || got[0] != "k" {
		t.Errorf("list_keys: %q", got)
	}
	if !r.key(n, KeyDelete, 0, "k").Result.(KeyResult).Ready || r.key(n, KeyDelete, 0, "k").Result.(KeyResult).Ready {
		t.Error("delete_key")
	}
	if err := r.key(n, KeyQueuePop, 0, "q").Err; err == nil || err.Code != CodeEmpty {
		t.Errorf("pop of an empty queue: %v", err)
	}
	r.key(n, KeyQueuePush, 0, "q", "1")
	if got := r.key(n, KeyQueueLen, 0, "q").Result.(KeyResult).Number; got != 1 {
		t.Errorf("queue_len: %d", got)
	}
	if got := value(r.key(n, KeyQueuePop, 1, "q")); got != "1" {
		t.Errorf("queue_pop: %q", got)
	}
	if err := r.key(n, KeySet, 0, "k").Err; err == nil || err.Code != CodeInvalid {
		t.Errorf("set without a value: %v", err)
	}
	for _, op := range []KeyOp{KeySet, KeyGet, KeyAdd, KeyCompareSet, KeyDelete, KeyQueuePop, KeyBarrier} {
		if err := r.key(n, op, 0, "").Err; err == nil || err.Code != CodeInvalid {
			t.Errorf("operation %d without a key: %v", op, err)
		}
	}
	if err := r.key(n, KeyOp(99), 0, "k").Err; err == nil || err.Code != CodeInvalid {
		t.Errorf("an unknown operation: %v", err)
	}
}

func TestWaitsAreWokenByTheWrite(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(2, 2), "a", "b")
	pending := func(op KeyOp, amount int64, key string) uint64 {
		t.Helper()
		if reply := r.key(n[0], op, amount, key); reply.Number != 0 {
			t.Fatalf("operation %d did not wait: %+v", op, reply)
		}
		return n[0].number
	}
	get, wait, pop, barrier := pending(KeyGet, 0, "k"), pending(KeyWait, 0, "k"), pending(KeyQueuePop, 1, "q"), pending(KeyBarrier, 2, "b")
	r.key(n[1], KeySet, 0, "k", "v")
	r.key(n[1], KeyQueuePush, 0, "q", "item")
	r.key(n[1], KeyBarrier, 2, "b")
	for _, number := range []uint64{get, wait, pop, barrier} {
		if reply, ok := n[0].replies[number]; !ok || reply.Err != nil {
			t.Errorf("request %d: answered %v, %+v", number, ok, reply)
		}
	}
}

func TestACanceledWaitIsAnsweredOnce(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(1, 1), "a")[0]
	r.key(n, KeyWait, 0, "k")
	wait := n.number
	if !r.key(n, KeyCancelWait, int64(wait), "").Result.(KeyResult).Ready {
		t.Error("the wait was not pending")
	}
	if err := n.replies[wait].Err; err == nil || err.Code != CodeCanceled {
		t.Errorf("the wait got %+v", n.replies[wait])
	}
	r.key(n, KeySet, 0, "k", "v") // the rig fails if the wait is answered again
	if r.key(n, KeyCancelWait, int64(wait), "").Result.(KeyResult).Ready {
		t.Error("it was canceled twice")
	}
}

// TestUnacknowledgedAnswersAreBounded: a node that asks on and acknowledges nothing
// is lost before its answers take much memory, also if they were in a snapshot; one
// that acknowledges gets as many as it likes.
func TestUnacknowledgedAnswersAreBounded(t *testing.T) {
	value := strings.Repeat("v", 1<<20)
	for _, acknowledges := range []bool{false, true} {
		r := newRig(t, -1)
		n := r.group(policy(1, 1), "a")[0]
		r.key(n, KeySet, 0, "k", value)
		asked := 0
		for ; asked < 2*maxAnswerBytes/len(value) && n.dropped == nil; asked++ {
			req := KeyRequest{Request: n.request(), Round: n.claim.Round, Op: KeyGet, Keys: []string{"k"}}
			req.Acked = 0
			if acknowledges {
				req.Acked = req.Number - 1
			}
			r.apply(req)
			if asked == maxAnswerBytes/len(value)/2 {
				m, err := Restore(r.m.Snapshot())
				if err != nil {
					t.Fatal(err)
				}
				r.m = m
			}
		}
		if lost := n.dropped != nil; lost == acknowledges {
			t.Errorf("acknowledges: %v, lost: %v", acknowledges, lost)
		}
		if !acknowledges && asked > maxAnswerBytes/len(value)+2 {
			t.Errorf("it is lost after %d answers of %d bytes", asked, len(value))
		}
		for _, n := range r.m.sessions {
			held := 0
			for _, reply := range n.answered {
				held += reply.size()
			}
			if held != n.held || acknowledges && held > 2*len(value) {
				t.Errorf("%d bytes are counted, %d are held", n.held, held)
			}
		}
	}
}
