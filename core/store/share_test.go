package store

import (
	"bytes"
	"testing"
)

// TestShare: a reader's value does not change, whatever is written, and the memory is
// used again once it has no reader.
func TestShare(t *testing.T) {
	e := NewEngine(Limits{})
	e.Set("k", []byte("first"))
	first, a := e.Share("k")
	again, b := e.Share("k")
	if a != b || &first[0] != &again[0] {
		t.Error("two readers have two copies")
	}
	e.Append("k", []byte(" and more"))
	longer, c := e.Share("k")
	e.Set("k", []byte("second value"))
	second, d := e.Share("k")
	e.Append("k", bytes.Repeat([]byte("x"), 1000))
	e.Delete("k")
	e.Set("k", []byte("third"))
	for i, got := range [][]byte{first, again, longer, second} {
		if want := []string{"first", "first", "first and more", "second value"}[i]; string(got) != want {
			t.Errorf("reader %d has %q, want %q", i, got, want)
		}
	}
	if a == d {
		t.Error("two buffers are taken for one")
	}
	for _, buffer := range []*Buffer{a, b, c, d} {
		buffer.Release()
	}
	third, buffer := e.Share("k")
	buffer.Release()
	e.Set("k", []byte("FOURT"))
	if string(third) != "FOURT" {
		t.Error("memory without readers is not used again")
	}
}
