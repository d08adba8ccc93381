package store

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

// plain is a store that is no Trier.
type plain struct{ Store }

// TestDoIsTheMethod: a request does what the method of its name does, on any store.
func TestDoIsTheMethod(t *testing.T) {
	memory := NewMemory(NewEngine(Limits{}))
	for name, s := range map[string]Store{
		"memory": memory, "plain": plain{memory}, "prefix": NewPrefix("p", memory), "prefix of plain": NewPrefix("q", plain{memory}),
	} {
		ctx := t.Context()
		do := func(r Request) Reply {
			t.Helper()
			reply, err := s.Do(ctx, r)
			if err != nil {
				t.Fatalf("%s: %v: %v", name, r.Op, err)
			}
			return reply
		}
		value := func(r Request) string { t.Helper(); return string(do(r).Values[0]) }
		k, two := []string{"k"}, []string{"k", "l"}
		do(Request{Op: OpSet, Keys: k, Values: [][]byte{[]byte("a")}})
		do(Request{Op: OpAppend, Keys: k, Values: [][]byte{[]byte("b")}})
		if got := value(Request{Op: OpGet, Keys: k}); got != "ab" {
			t.Errorf("%s: get %q", name, got)
		}
		if got := value(Request{Op: OpCompareSet, Keys: k, Values: [][]byte{[]byte("ab"), []byte("c")}}); got != "c" {
			t.Errorf("%s: compare_set %q", name, got)
		}
		do(Request{Op: OpMultiSet, Keys: two, Values: [][]byte{[]byte("1"), []byte("2")}})
		if got := do(Request{Op: OpMultiGet, Keys: two}).Values; len(got) != 2 || string(got[1]) != "2" {
			t.Errorf("%s: multi_get %q", name, got)
		}
		if got := do(Request{Op: OpAdd, Keys: k, Number: 4}).Number; got != 5 {
			t.Errorf("%s: add %d", name, got)
		}
		do(Request{Op: OpWait, Keys: two})
		if !do(Request{Op: OpCheck, Keys: two}).Ready {
			t.Errorf("%s: check", name)
		}
		if got := do(Request{Op: OpListKeys}).Keys; !slices.Contains(got, "l") {
			t.Errorf("%s: list_keys %q", name, got)
		}
		if !do(Request{Op: OpDelete, Keys: k}).Ready || do(Request{Op: OpDelete, Keys: k}).Ready {
			t.Errorf("%s: delete", name)
		}
		if do(Request{Op: OpNumKeys}).Number < 1 {
			t.Errorf("%s: num_keys", name)
		}
		do(Request{Op: OpQueuePush, Keys: []string{"q"}, Values: [][]byte{[]byte("item")}})
		if got := do(Request{Op: OpQueueLen, Keys: []string{"q"}}).Number; got != 1 {
			t.Errorf("%s: queue_len %d", name, got)
		}
		if got := value(Request{Op: OpQueuePop, Keys: []string{"q"}, Block: true}); got != "item" {
			t.Errorf("%s: queue_pop %q", name, got)
		}
		do(Request{Op: OpBarrier, Keys: []string{"b"}, Number: 1})
	}
}

// TestTryDo: a try does all or nothing, and what is pending waits as the method does.
func TestTryDo(t *testing.T) {
	memory := NewMemory(NewEngine(Limits{}))
	for name, s := range map[string]Store{"memory": memory, "prefix": NewPrefix("p", memory)} {
		k := []string{"k"}
		ctx := t.Context()
		set := Request{Op: OpSet, Keys: k, Values: [][]byte{[]byte("v")}}
		for _, r := range []Request{
			{Op: OpGet, Keys: k},
			{Op: OpMultiGet, Keys: k},
			{Op: OpWait, Keys: k},
		} {
			_, pending, err := TryDo(ctx, s, r, time.Hour)
			if pending == nil || err != nil {
				t.Fatalf("%s: %v of a missing key: %v", name, r.Op, err)
			}
			if memory.engine.NumWaiters() != 0 {
				t.Errorf("%s: %v left a waiter", name, r.Op)
			}
			canceled, cancel := context.WithCancel(ctx)
			cancel()
			if _, err := pending(canceled); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v with a context that has ended: %v", name, r.Op, err)
			}
			_, pending, _ = TryDo(ctx, s, r, time.Hour)
			result := make(chan error, 1)
			go func() { _, err := pending(ctx); result <- err }()
			if _, pending, err := TryDo(ctx, s, set, 0); pending != nil || err != nil {
				t.Fatalf("%s: set: %v", name, err)
			}
			if err := <-result; err != nil {
				t.Errorf("%s: %v: %v", name, r.Op, err)
			}
			if reply, pending, err := TryDo(ctx, s, Request{Op: OpDelete, Keys: k}, 0); !reply.Ready || pending != nil || err != nil {
				t.Fatalf("%s: delete: %v", name, err)
			}
		}
		if _, pending, err := TryDo(ctx, s, Request{Op: OpBarrier, Keys: k, Number: 1}, 0); pending == nil || err != nil {
			t.Errorf("%s: a barrier was tried: %v", name, err)
		}
		if n, err := s.NumKeys(ctx); n != 0 || err != nil {
			t.Errorf("%s: a barrier that was tried leaves %d keys (%v)", name, n, err)
		}
		if _, pending, err := TryDo(ctx, s, Request{Op: OpQueuePop, Keys: k}, 0); pending != nil || !errors.Is(err, ErrQueueEmpty) {
			t.Errorf("%s: pop without waiting: %v", name, err)
		}
	}
	if err := memory.Close(); err != nil {
		t.Fatal(err)
	}
	if _, pending, err := TryDo(t.Context(), memory, Request{Op: OpNumKeys}, 0); pending != nil || !errors.Is(err, ErrClosed) {
		t.Errorf("on a closed store: %v", err)
	}
}

// TestTryDoOfAnother: on a store that knows no tries, the whole of a request is pending.
func TestTryDoOfAnother(t *testing.T) {
	memory := NewMemory(NewEngine(Limits{}))
	for name, s := range map[string]Store{"plain": plain{memory}, "prefix": NewPrefix("p", plain{memory})} {
		before, _ := memory.NumKeys(t.Context())
		_, pending, err := TryDo(t.Context(), s, Request{Op: OpAdd, Keys: []string{"n"}, Number: 2}, time.Hour)
		if n, _ := memory.NumKeys(t.Context()); pending == nil || err != nil || n != before {
			t.Fatalf("%s: the try did something: %v", name, err)
		}
		if reply, err := pending(t.Context()); reply.Number != 2 || err != nil {
			t.Errorf("%s: %d, %v", name, reply.Number, err)
		}
	}
}

// TestOpNumbers: the numbers are part of the C ABI and of the control plane's formats.
func TestOpNumbers(t *testing.T) {
	for i, want := range []string{"set", "get", "add", "compare_set", "append", "check", "wait", "delete_key", "num_keys",
		"list_keys", "multi_get", "multi_set", "queue_push", "queue_pop", "queue_len", "barrier", "cancel wait", "store operation 18"} {
		if got := Op(i + 1).String(); got != want {
			t.Errorf("operation %d is %q, want %q", i+1, got, want)
		}
	}
}
