package eventloop

import (
	"encoding/binary"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"rallypoint/internal/testkit"
)

// TestInbox: what is put wakes the loop once until it has taken it; nothing is lost at the end.
func TestInbox(t *testing.T) {
	p := testkit.Must(NewPoller())(t)
	defer p.Close()
	b := NewInbox[[]int](p)
	put := func(n int) bool { return b.Put(func(held *[]int) { *held = append(*held, n) }) }
	woken := func() uint64 {
		var count [8]byte
		if _, err := unix.Read(p.wakeFD, count[:]); err == unix.EAGAIN {
			return 0
		} else if err != nil {
			t.Fatal(err)
		}
		return binary.NativeEndian.Uint64(count[:])
	}
	for i := range 2 { // also after the loop has taken something
		for n, want := range []uint64{1, 0} {
			if !put(n + 1) {
				t.Fatal("an open inbox took nothing")
			}
			if got := woken(); got != want {
				t.Errorf("round %d: put %d woke %d times", i, n+1, got)
			}
		}
		if got := b.Take(); !slices.Equal(got, []int{1, 2}) {
			t.Errorf("round %d: took %v", i, got)
		}
	}
	if got := b.Take(); got != nil || woken() != 0 {
		t.Errorf("took %v twice", got)
	}
	put(3)
	if got := b.Close(); !slices.Equal(got, []int{3}) {
		t.Errorf("the last was %v", got)
	}
	if put(4) {
		t.Error("a closed inbox took something")
	}
}
