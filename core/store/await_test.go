package store

import (
	"slices"
	"testing"
)

// TestAwaitContinuesAWait moves a half done wait to another engine.
func TestAwaitContinuesAWait(t *testing.T) {
	old := NewEngine(Limits{})
	var w Waiter
	w.Wake = func() { t.Error("woken in the old engine") }
	old.Wait([]string{"a", "b", "c", "b"}, &w)
	if err := old.Set("a", nil); err != nil {
		t.Fatal(err)
	}
	pending := w.Pending()
	if !slices.Equal(pending, []string{"b", "c", "b"}) {
		t.Fatalf("pending: %q", pending)
	}
	e := NewEngine(Limits{})
	if err := e.Set("b", nil); err != nil { // exists already: the wait counts writes
		t.Fatal(err)
	}
	woken := 0
	v := Waiter{Wake: func() { woken++ }}
	e.Await(pending, &v)
	for _, key := range []string{"b", "a", "c"} {
		if woken > 0 {
			t.Fatalf("woken before %q", key)
		}
		if err := e.Set(key, nil); err != nil {
			t.Fatal(err)
		}
	}
	if woken != 1 || v.active() || v.Pending() != nil || e.NumWaiters() != 0 {
		t.Errorf("woken %d times, active %v, pending %q", woken, v.active(), v.Pending())
	}
}
