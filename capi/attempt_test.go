package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"rallypoint/core/store"
	"rallypoint/filestore"
)

// firstGo is openStore.try, with errPending where there is a second go.
func firstGo(s *openStore, q *request) (answer, error) {
	a, rest, err := s.try(context.Background(), q, 0)
	if rest != nil {
		err = errPending
	}
	return a, err
}

// A call that is tried is made in full or not at all.
func TestTry(t *testing.T) {
	local := store.NewMemory(store.NewEngine(store.Limits{}))
	s := newStore(local)
	ctx := context.Background()
	try := func(q *request) error { _, err := firstGo(s, q); return err }
	for name, c := range map[string]struct {
		q    request
		want error
		keys int64 // afterwards
	}{
		"set":                  {request{op: 1, key: "a"}, nil, 1},
		"get of a missing key": {request{op: 2, key: "none"}, errPending, 0},
		"wait for one":         {request{op: 7, keys: []string{"none"}}, errPending, 0},
		"pop":                  {request{op: 14, key: "q", block: true}, errPending, 0},
		"pop without waiting":  {request{op: 14, key: "q"}, store.ErrQueueEmpty, 0},
		"barrier":              {request{op: 16, key: "b", number: 2}, errPending, 0},
		"barrier of one":       {request{op: 16, key: "b", number: 1}, errPending, 0},
	} {
		if err := try(&c.q); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if n, err := local.NumKeys(ctx); err != nil || n != c.keys {
			t.Errorf("%s: leaves %d keys (%v), want %d", name, n, err, c.keys)
		}
		if _, err := local.Delete(ctx, "a"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := try(&request{op: 2, key: "none"}); !errors.Is(err, store.ErrClosed) {
		t.Errorf("on a closed store: %v", err)
	}
	// Over a network nothing may be begun that might have to be called off.
	if isPrompt(struct{ store.Store }{local}) {
		t.Error("an unknown store is taken for a prompt one")
	}
}

// What would take long, since there is much to read or to write, is not begun.
func TestTryMuch(t *testing.T) {
	ctx := context.Background()
	open := func(path string) *filestore.Store {
		s, err := filestore.Open(ctx, path, filestore.NeverRemove, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	path := filepath.Join(t.TempDir(), "store")
	other := open(path)
	s := &openStore{open(path), ctx, true}
	size := func() int64 {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	much := make([]byte, 4<<20)
	for name, q := range map[string]*request{
		"set":       {op: 1, key: "k", value: much},
		"append":    {op: 5, key: "k", value: much},
		"multi set": {op: 12, keys: []string{"k", "l"}, values: [][]byte{much[:1<<20], much[:1<<20]}},
	} {
		before := size()
		if _, err := firstGo(s, q); err != errPending || size() != before {
			t.Errorf("%s: %v, and %d bytes were written", name, err, size()-before)
		}
		if _, err := s.do(ctx, q); err != nil || size() <= before {
			t.Errorf("%s with time: %v", name, err)
		}
	}
	get := &request{op: 2, key: "k"}
	if _, err := firstGo(s, get); err != nil {
		t.Errorf("get of what is known: %v", err)
	}
	if err := other.Set(ctx, "k", much[:1]); err != nil {
		t.Fatal(err)
	}
	if a, err := firstGo(s, get); err != nil || len(a.value) != 1 {
		t.Errorf("get of little: %v", err)
	}
	if err := other.Set(ctx, "k", much); err != nil {
		t.Fatal(err)
	}
	if _, err := firstGo(s, get); err != errPending {
		t.Errorf("get of much: %v", err)
	}
	if a, err := s.do(ctx, get); err != nil || len(a.value) != len(much) {
		t.Errorf("get of much with time: %v", err)
	}
}
