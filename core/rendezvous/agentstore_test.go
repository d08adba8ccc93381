package rendezvous

import (
	"fmt"
	"strings"
	"testing"

	"rallypoint/core/store"
)

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
