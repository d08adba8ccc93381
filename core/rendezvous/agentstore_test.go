package rendezvous

import (
	"fmt"
	"strings"
	"testing"

	"rallypoint/core/store"
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
	r.key(n, store.OpSet, 0, "k", "v")
	if got := value(r.key(n, store.OpGet, 0, "k")); got != "v" {
		t.Errorf("get: %q", got)
	}
	r.key(n, store.OpAppend, 0, "k", "w")
	if got := value(r.key(n, store.OpGet, 0, "k")); got != "vw" {
		t.Errorf("append: %q", got)
	}
	if got := value(r.key(n, store.OpCompareSet, 0, "k", "vw", "x")); got != "x" {
		t.Errorf("compare_set: %q", got)
	}
	if err := r.key(n, store.OpAdd, 1, "k").Err; err == nil || err.Code != CodeNumber {
		t.Errorf("add on a text: %v", err)
	}
	if !r.key(n, store.OpCheck, 0, "k").Result.(KeyResult).Ready || r.key(n, store.OpCheck, 0, "none").Result.(KeyResult).Ready {
		t.Error("check")
	}
	if got := r.key(n, store.OpNumKeys, 0, "").Result.(KeyResult).Number; got != 1 {
		t.Errorf("num_keys: %d", got)
	}
	if got := r.key(n, store.OpListKeys, 0, "").Result.(KeyResult).Keys; len(got) != 1 || got[0] != "k" {
		t.Errorf("list_keys: %q", got)
	}
	if !r.key(n, store.OpDelete, 0, "k").Result.(KeyResult).Ready || r.key(n, store.OpDelete, 0, "k").Result.(KeyResult).Ready {
		t.Error("delete_key")
	}
	if err := r.key(n, store.OpQueuePop, 0, "q").Err; err == nil || err.Code != CodeEmpty {
		t.Errorf("pop of an empty queue: %v", err)
	}
	r.key(n, store.OpQueuePush, 0, "q", "1")
	if got := r.key(n, store.OpQueueLen, 0, "q").Result.(KeyResult).Number; got != 1 {
		t.Errorf("queue_len: %d", got)
	}
	if got := value(r.key(n, store.OpQueuePop, 1, "q")); got != "1" {
		t.Errorf("queue_pop: %q", got)
	}
	if err := r.key(n, store.OpSet, 0, "k").Err; err == nil || err.Code != CodeInvalid {
		t.Errorf("set without a value: %v", err)
	}
	for _, op := range []store.Op{store.OpSet, store.OpGet, store.OpAdd, store.OpCompareSet, store.OpDelete, store.OpQueuePop, store.OpBarrier} {
		if err := r.key(n, op, 0, "").Err; err == nil || err.Code != CodeInvalid {
			t.Errorf("operation %d without a key: %v", op, err)
		}
	}
	if err := r.key(n, store.Op(99), 0, "k").Err; err == nil || err.Code != CodeInvalid {
		t.Errorf("an unknown operation: %v", err)
	}
}

func TestACanceledWaitIsAnsweredOnce(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(1, 1), "a")[0]
	r.key(n, store.OpWait, 0, "k")
	wait := n.number
	if !r.key(n, store.OpCancelWait, int64(wait), "").Result.(KeyResult).Ready {
		t.Error("the wait was not pending")
	}
	if err := n.replies[wait].Err; err == nil || err.Code != CodeCanceled {
		t.Errorf("the wait got %+v", n.replies[wait])
	}
	r.key(n, store.OpSet, 0, "k", "v") // the rig fails if the wait is answered again
	if r.key(n, store.OpCancelWait, int64(wait), "").Result.(KeyResult).Ready {
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
		r.key(n, store.OpSet, 0, "k", value)
		asked := 0
		for ; asked < 2*maxAnswerBytes/len(value) && n.dropped == nil; asked++ {
			req := KeyRequest{Request: n.request(), Round: n.claim.Round, Op: store.OpGet, Keys: []string{"k"}}
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
		for _, n := range r.m.nodes.sessions {
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

// TestAnswerWithoutAChange: reads of existing keys.
func TestAnswerWithoutAChange(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(1, 1), "a")[0]
	r.key(n, store.OpSet, 0, "k", "v")
	r.key(n, store.OpQueuePush, 0, "q", "item")
	n.number++
	for _, x := range []struct {
		op   store.Op
		keys []string
		want string // "" if it has to be applied
	}{
		{store.OpGet, []string{"k"}, "[v] [] 0 false"},
		{store.OpMultiGet, []string{"k", "k"}, "[v v] [] 0 false"},
		{store.OpCheck, []string{"k", "q"}, "[] [] 0 true"},
		{store.OpCheck, []string{"k", "none"}, "[] [] 0 false"},
		{store.OpWait, []string{"k", "q"}, "[] [] 0 true"},
		{store.OpNumKeys, nil, "[] [] 1 false"},
		{store.OpListKeys, nil, "[] [k] 0 false"},
		{store.OpQueueLen, []string{"q"}, "[] [] 1 false"},
		{store.OpGet, []string{"q"}, ""},
		{store.OpMultiGet, []string{"k", "none"}, ""},
		{store.OpWait, []string{"none"}, ""},
		{store.OpDelete, []string{"none"}, ""},
		{store.OpAdd, []string{"sum"}, ""},
		{store.OpQueuePop, []string{"none"}, ""},
	} {
		effects, ok := r.m.TryRead(KeyRequest{Request: Request{Session: n.session, Number: n.number}, Round: 1, Op: x.op, Keys: x.keys})
		got := ""
		if ok && len(effects) == 1 {
			result := effects[0].(Reply).Result.(KeyResult)
			got = fmt.Sprintf("%s %s %d %v", result.Values, result.Keys, result.Number, result.Ready)
		}
		if got != x.want || ok != (x.want != "") {
			t.Errorf("%v %q: %v %q, want %q", x.op, x.keys, ok, got, x.want)
		}
	}
	over := KeyRequest{Request: Request{Session: n.session, Number: n.number}, Round: 9, Op: store.OpGet, Keys: []string{"k"}}
	if effects, ok := r.m.TryRead(over); !ok || effects[0].(Reply).Err.Code != CodeRoundOver {
		t.Errorf("keys of another round: %v %+v", ok, effects)
	}
	for _, ev := range []Event{Hello{Session: n.session}, Disconnect{Session: n.session}, Finish{Request{n.session, n.number, 0}}, CloseRun{By: "admin"}, Recovered{}} {
		if effects, ok := r.m.TryRead(ev); ok {
			t.Errorf("%T is answered: %+v", ev, effects)
		}
	}
}

// TestAnswerAgainWithoutAChange repeats an earlier request.
func TestAnswerAgainWithoutAChange(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(1, 1), "a")[0]
	r.key(n, store.OpSet, 0, "k", "v")
	set := n.number
	r.key(n, store.OpWait, 0, "later")
	waiting := n.number
	for _, x := range []struct {
		Request
		answers int
	}{
		{Request{n.session, set, 0}, 1},
		{Request{n.session, set, set}, 0}, // it has the answer
		{Request{n.session, waiting, 0}, 0},
	} {
		effects, ok := r.m.TryRead(KeyRequest{Request: x.Request, Round: 1, Op: store.OpSet, Keys: []string{"k"}, Values: [][]byte{nil}})
		if !ok || len(effects) != x.answers {
			t.Errorf("%+v again: %v %+v", x.Request, ok, effects)
		}
	}
}
