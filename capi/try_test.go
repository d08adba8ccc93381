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

// tried is openStore.try, with errPending where something is pending.
func tried(s *openStore, q *request) (answer, error) {
	a, pending, err := s.try(q, 0)
	if pending != nil {
		err = errPending
	}
	return a, err
}

func requestOf(r store.Request) *request { return &request{Request: r} }

// A call that is tried is made in full or not at all.
func TestTry(t *testing.T) {
	local := store.NewMemory(store.NewEngine(store.Limits{}))
	s := newStore(local)
	ctx := context.Background()
	try := func(r store.Request) error { _, err := tried(s, requestOf(r)); return err }
	for name, c := range map[string]struct {
		r    store.Request
		want error
		keys int64 // afterwards
	}{
		"set":                  {store.Request{Op: 1, Keys: []string{"a"}, Values: [][]byte{nil}}, nil, 1},
		"get of a missing key": {store.Request{Op: 2, Keys: []string{"none"}}, errPending, 0},
		"wait for one":         {store.Request{Op: 7, Keys: []string{"none"}}, errPending, 0},
		"pop":                  {store.Request{Op: 14, Keys: []string{"q"}, Block: true}, errPending, 0},
		"pop without waiting":  {store.Request{Op: 14, Keys: []string{"q"}}, store.ErrQueueEmpty, 0},
		"barrier":              {store.Request{Op: 16, Keys: []string{"b"}, Number: 2}, errPending, 0},
		"barrier of one":       {store.Request{Op: 16, Keys: []string{"b"}, Number: 1}, errPending, 0},
	} {
		if err := try(c.r); !errors.Is(err, c.want) {
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
	if err := try(store.Request{Op: 2, Keys: []string{"none"}}); !errors.Is(err, store.ErrClosed) {
		t.Errorf("on a closed store: %v", err)
	}
	// Over a network nothing may be begun that might have to be called off.
	unknown := newStore(struct{ store.Store }{store.NewMemory(store.NewEngine(store.Limits{}))})
	if _, err := tried(unknown, requestOf(store.Request{Op: 1, Keys: []string{"a"}, Values: [][]byte{nil}})); err != errPending {
		t.Errorf("an unknown store was tried: %v", err)
	}
	// An operation without time ends with a timeout, whatever could be done at once.
	if _, err := tried(newStore(local), &request{Request: store.Request{Op: 9}, limited: true}); err != errPending {
		t.Errorf("without time: %v", err)
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
	s := newStore(open(path))
	size := func() int64 {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	much := make([]byte, 4<<20)
	for name, q := range map[string]*request{
		"set":       requestOf(store.Request{Op: 1, Keys: []string{"k"}, Values: [][]byte{much}}),
		"append":    requestOf(store.Request{Op: 5, Keys: []string{"k"}, Values: [][]byte{much}}),
		"multi set": requestOf(store.Request{Op: 12, Keys: []string{"k", "l"}, Values: [][]byte{much[:1<<20], much[:1<<20]}}),
	} {
		before := size()
		if _, err := tried(s, q); err != errPending || size() != before {
			t.Errorf("%s: %v, and %d bytes were written", name, err, size()-before)
		}
		if _, err := s.do(q)(ctx); err != nil || size() <= before {
			t.Errorf("%s with time: %v", name, err)
		}
	}
	get := requestOf(store.Request{Op: 2, Keys: []string{"k"}})
	if _, err := tried(s, get); err != nil {
		t.Errorf("get of what is known: %v", err)
	}
	if err := other.Set(ctx, "k", much[:1]); err != nil {
		t.Fatal(err)
	}
	if a, err := tried(s, get); err != nil || len(a.Values[0]) != 1 {
		t.Errorf("get of little: %v", err)
	}
	if err := other.Set(ctx, "k", much); err != nil {
		t.Fatal(err)
	}
	if _, err := tried(s, get); err != errPending {
		t.Errorf("get of much: %v", err)
	}
	if a, err := s.do(get)(ctx); err != nil || len(a.Values[0]) != len(much) {
		t.Errorf("get of much with time: %v", err)
	}
}
