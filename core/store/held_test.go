package store

import (
	"strings"
	"testing"
)

// TestHeldValues: a waiter that asks for it keeps the value of a key over its deletion until it is
// released, and so does each of several; what they keep together is bounded, and given back.
func TestHeldValues(t *testing.T) {
	e := NewEngine(Limits{})
	value := []byte(strings.Repeat("v", maxHeldBytes/4))
	holder := func() *Waiter { return &Waiter{Wake: func() {}, Hold: true} }
	first, second, plain := holder(), holder(), &Waiter{Wake: func() {}}
	_ = e.Set("k", value)
	for _, w := range []*Waiter{first, second, plain} {
		if !e.Wait([]string{"k"}, w) {
			t.Fatal("waits")
		}
	}
	if _, ok := e.Held(first, "k"); ok {
		t.Error("held before it was deleted")
	}
	e.Delete("k")
	for w, want := range map[*Waiter]bool{first: true, second: true, plain: false} {
		if got, ok := e.Held(w, "k"); ok != want || ok && len(got) != len(value) {
			t.Errorf("%d bytes, %v, want %v", len(got), ok, want)
		}
	}
	e.Release(first)
	if got, ok := e.Held(second, "k"); !ok || len(got) != len(value) || e.heldBytes != int64(len(value)) {
		t.Errorf("after one of two was released: %d bytes, %v; %d are counted", len(got), ok, e.heldBytes)
	}
	e.Release(second)
	if e.heldBytes != 0 || e.Bytes() != 0 {
		t.Errorf("%d and %d bytes are left", e.heldBytes, e.Bytes())
	}

	var holders []*Waiter
	for i := range 6 {
		w := holder()
		holders = append(holders, w)
		if e.Wait([]string{"k"}, w) {
			t.Fatal("does not wait")
		}
		_ = e.Set("k", value)
		e.Delete("k")
		if _, ok := e.Held(w, "k"); ok != (i < 4) {
			t.Errorf("holder %d: %v", i, ok)
		}
	}
	for _, w := range holders {
		e.Release(w)
	}
	if e.heldBytes != 0 {
		t.Errorf("%d bytes are left", e.heldBytes)
	}

	keys := make([]string, maxHeld+1)
	for i := range keys {
		keys[i] = "k"
	}
	_ = e.Set("k", nil)
	if !e.Wait(keys, first) || len(first.held) != maxHeld {
		t.Errorf("%d keys are held", len(first.held))
	}
}
