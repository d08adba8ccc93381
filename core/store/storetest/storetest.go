// Package storetest has what every Store does, for the tests of each.
package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"rallypoint/core/store"
	"rallypoint/internal/testkit"
)

// Operations calls all operations of an empty store but those of queues. Then it has the keys "a",
// "k", "big", "barrier" and the empty one. own are keys that the store itself has.
func Operations(t *testing.T, s store.Store, own ...string) {
	t.Helper()
	ctx := t.Context()
	testkit.Check(t, s.Set(ctx, "k", []byte("v")))
	testkit.Check(t, s.Append(ctx, "k", []byte("w")))
	testkit.Check(t, s.Set(ctx, "", nil))
	testkit.Check(t, s.MultiSet(ctx, []string{"a", "b"}, [][]byte{[]byte("1"), []byte("2")}))
	if got := testkit.Must(s.Get(ctx, "k"))(t); string(got) != "vw" {
		t.Errorf("get: %q", got)
	}
	if got := testkit.Must(s.Get(ctx, ""))(t); got == nil || len(got) != 0 {
		t.Errorf("get of an empty value: %#v", got)
	}
	if got := testkit.Must(s.MultiGet(ctx, []string{"b", "a"}))(t); fmt.Sprintf("%s", got) != "[2 1]" {
		t.Errorf("multi_get: %s", got)
	}
	if got := testkit.Must(s.MultiGet(ctx, nil))(t); len(got) != 0 {
		t.Errorf("multi_get of nothing: %s", got)
	}
	if n := testkit.Must(s.Add(ctx, "a", -43))(t); n != -42 {
		t.Errorf("add: %d", n)
	}
	if got := testkit.Must(s.CompareSet(ctx, "a", []byte("-42"), []byte("x")))(t); string(got) != "x" {
		t.Errorf("compare_set: %q", got)
	}
	if !testkit.Must(s.Check(ctx, []string{"a", "b"}))(t) || testkit.Must(s.Check(ctx, []string{"zz"}))(t) || !testkit.Must(s.Check(ctx, nil))(t) {
		t.Error("check")
	}
	if got := testkit.Must(store.TryGet(ctx, s, "a"))(t); string(got) != "x" {
		t.Errorf("try_get: %q", got)
	}
	if got := testkit.Must(store.TryGet(ctx, s, "zz"))(t); got != nil {
		t.Errorf("try_get of a missing key: %q", got)
	}
	testkit.Check(t, s.Wait(ctx, []string{"a", "b"}))
	testkit.Check(t, s.Wait(ctx, nil))
	if !testkit.Must(s.Delete(ctx, "b"))(t) || testkit.Must(s.Delete(ctx, "b"))(t) {
		t.Error("delete")
	}
	if n := testkit.Must(s.NumKeys(ctx))(t); n != int64(3+len(own)) {
		t.Errorf("num_keys: %d", n)
	}
	want := slices.Sorted(slices.Values(append(own, "", "a", "k")))
	if keys := testkit.Must(s.ListKeys(ctx))(t); !slices.Equal(keys, want) {
		t.Errorf("list_keys: %q, want %q", keys, want)
	}
	handedOut(t, s)
	handedIn(t, s)
	testkit.Check(t, s.Barrier(ctx, "barrier", 1))
	big := bytes.Repeat([]byte("0123456789"), 10_000)
	testkit.Check(t, s.Set(ctx, "big", big))
	if got := testkit.Must(s.Get(ctx, "big"))(t); !bytes.Equal(got, big) {
		t.Errorf("a large value came back with %d bytes", len(got))
	}
}

// handedOut wants values that a store hands out to belong to the caller: writing to them
// changes nothing. It leaves no key behind.
func handedOut(t *testing.T, s store.Store) {
	t.Helper()
	ctx := t.Context()
	testkit.Check(t, s.Set(ctx, "own", []byte("value")))
	for name, read := range map[string]func() []byte{
		"get":         func() []byte { return testkit.Must(s.Get(ctx, "own"))(t) },
		"multi_get":   func() []byte { return testkit.Must(s.MultiGet(ctx, []string{"own"}))(t)[0] },
		"compare_set": func() []byte { return testkit.Must(s.CompareSet(ctx, "own", []byte("value"), []byte("value")))(t) },
	} {
		copy(read(), "XXXXX")
		if got := testkit.Must(s.Get(ctx, "own"))(t); string(got) != "value" {
			t.Errorf("the value that %s handed out was written to, and the store has %q", name, got)
		}
	}
	var others sync.WaitGroup
	others.Go(func() {
		for range 10 {
			s.Check(ctx, nil)
		}
	})
	for range 10 {
		list := testkit.Must(s.MultiGet(ctx, []string{"own"}))(t)
		list[0] = nil // a data race, if the store reads the list on for another caller
	}
	others.Wait()
	testkit.Must(s.Delete(ctx, "own"))(t)
}

// handedIn wants what a caller hands in to belong to it again once the call has returned,
// also one that was given up: writing to it changes nothing, and nothing reads it any more.
// It leaves no key behind.
func handedIn(t *testing.T, s store.Store) {
	t.Helper()
	keys, value := []string{"own/set", "own/append", "own/multi_set", "own/compare_set"}, []byte("value")
	hand := func(write func(ctx context.Context) error, limit time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		copy(value, "value")
		defer copy(value, "XXXXX")
		return write(ctx)
	}
	writes := []func(ctx context.Context) error{
		func(ctx context.Context) error { return s.Set(ctx, keys[0], value) },
		func(ctx context.Context) error { return s.Append(ctx, keys[1], value) },
		func(ctx context.Context) error {
			given, values := []string{keys[2]}, [][]byte{value}
			defer func() { given[0], values[0] = "other", nil }()
			return s.MultiSet(ctx, given, values)
		},
		func(ctx context.Context) error {
			_, err := s.CompareSet(ctx, keys[3], nil, value)
			return err
		},
		func(ctx context.Context) error {
			given := []string{"own/missing"}
			defer func() { given[0] = "other" }()
			return s.Wait(ctx, given)
		},
	}
	for i := range 20 {
		for _, n := range []int{0, 2, 4} {
			_ = hand(writes[n], time.Duration(i)*50*time.Microsecond) // whether that was enough is not known
		}
	}
	for _, write := range writes[:4] {
		testkit.Check(t, hand(write, testkit.Patience))
	}
	for i, got := range testkit.Must(s.MultiGet(t.Context(), keys))(t) {
		if string(got) != "value" {
			t.Errorf("what a call was given was written to, and the store has %q under %s", got, keys[i])
		}
	}
	for _, key := range keys {
		testkit.Must(s.Delete(t.Context(), key))(t)
	}
}

// Queues calls what a store with queues has of them.
func Queues(t *testing.T, s store.Store) {
	t.Helper()
	ctx := t.Context()
	testkit.Check(t, s.QueuePush(ctx, "q", []byte("item")))
	testkit.Check(t, s.QueuePush(ctx, "q", nil))
	if n := testkit.Must(s.QueueLen(ctx, "q"))(t); n != 2 {
		t.Errorf("queue_len: %d", n)
	}
	if got := testkit.Must(s.QueuePop(ctx, "q", true))(t); string(got) != "item" {
		t.Errorf("queue_pop: %q", got)
	}
	if got := testkit.Must(s.QueuePop(ctx, "q", false))(t); len(got) != 0 {
		t.Errorf("queue_pop: %q", got)
	}
	if _, err := s.QueuePop(ctx, "q", false); !errors.Is(err, store.ErrQueueEmpty) {
		t.Errorf("queue_pop of nothing: %v", err)
	}
}

// TimeoutText wants the error of a call that ran out of time to have the word of torch's stores,
// with the keys, and without the words of Go's contexts. Each of the further calls is of a key
// that begins with k/1.
func TimeoutText(t *testing.T, s store.Store, further map[string]func(context.Context) error) {
	t.Helper()
	calls := map[string]func(context.Context) error{
		"get":       func(ctx context.Context) error { _, err := s.Get(ctx, "k/1"); return err },
		"multi_get": func(ctx context.Context) error { _, err := s.MultiGet(ctx, []string{"k/1"}); return err },
		"wait":      func(ctx context.Context) error { return s.Wait(ctx, []string{"k/1", "k/2"}) },
		"barrier":   func(ctx context.Context) error { return s.Barrier(ctx, "k/1/b", 2) },
		"prefix":    func(ctx context.Context) error { _, err := store.NewPrefix("k", s).Get(ctx, "1"); return err },
	}
	for _, all := range []map[string]func(context.Context) error{calls, further} {
		for name, call := range all {
			for _, d := range []time.Duration{0, 20 * time.Millisecond} {
				ctx, cancel := context.WithTimeout(t.Context(), d)
				err := call(ctx)
				cancel()
				if !errors.Is(err, store.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s: %v", name, err)
				} else if text := err.Error(); !strings.Contains(text, "timeout") || !strings.Contains(text, "k/1") ||
					strings.Contains(text, "context") || strings.Contains(text, "deadline") {
					t.Errorf("%s: %q", name, text)
				}
			}
		}
	}
}
