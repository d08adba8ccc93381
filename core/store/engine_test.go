package store

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"
)

func newEngine() *Engine { return NewEngine(Limits{}) }

// value returns the value of key, or "-" if it is missing.
func value(e *Engine, key string) string {
	v, ok := e.Get(key)
	if !ok {
		return "-"
	}
	return string(v)
}

func TestCompareSet(t *testing.T) {
	for _, c := range []struct{ stored, expected, desired, result, after string }{
		{"-", "", "new", "new", "new"},
		{"-", "exp", "new", "exp", "-"},
		{"v", "v", "new", "new", "new"},
		{"v", "other", "new", "v", "v"},
		{"v", "", "new", "v", "v"},
		{"", "", "new", "new", "new"},
		{"v", "v", "", "", ""},
	} {
		t.Run(fmt.Sprintf("%s/%s", c.stored, c.expected), func(t *testing.T) {
			e := newEngine()
			if c.stored != "-" {
				e.Set("k", []byte(c.stored))
			}
			woken := 0
			w := Waiter{Wake: func() { woken++ }}
			waiting := !e.Wait([]string{"k"}, &w)
			got, err := e.CompareSet("k", []byte(c.expected), []byte(c.desired))
			if err != nil || string(got) != c.result || value(e, "k") != c.after {
				t.Errorf("got %q, %v, then %q; want %q, then %q", got, err, value(e, "k"), c.result, c.after)
			}
			if stored := c.after != "-"; waiting && (woken == 1) != stored {
				t.Errorf("woken %d times, stored: %v", woken, stored)
			}
		})
	}
}

func TestAdd(t *testing.T) {
	for _, c := range []struct {
		stored string
		delta  int64
		sum    int64
		err    error
	}{
		{"-", 5, 5, nil},
		{"-", 0, 0, nil},
		{"5", -7, -2, nil},
		{" 12abc", 1, 13, nil},
		{"\t\n\v\f\r +7", 0, 7, nil},
		{"0x10", 1, 1, nil},
		{"-3", 1, -2, nil},
		{"9223372036854775807", 1, math.MinInt64, nil},
		{"-9223372036854775808", -1, math.MaxInt64, nil},
		{"9223372036854775808", 1, 0, ErrNotNumber},
		{"-9223372036854775809", 1, 0, ErrNotNumber},
		{"99999999999999999999999", 1, 0, ErrNotNumber},
		{"", 1, 0, ErrNotNumber},
		{"+-5", 1, 0, ErrNotNumber},
		{"- 5", 1, 0, ErrNotNumber},
		{"x", 1, 0, ErrNotNumber},
	} {
		t.Run(c.stored, func(t *testing.T) {
			e := newEngine()
			if c.stored != "-" {
				e.Set("k", []byte(c.stored))
			}
			sum, err := e.Add("k", c.delta)
			after := fmt.Sprint(c.sum)
			if c.err != nil {
				after = c.stored
			}
			if sum != c.sum || !errors.Is(err, c.err) || value(e, "k") != after {
				t.Errorf("got %d, %v, then %q", sum, err, value(e, "k"))
			}
		})
	}
}

// recorder makes waiters that note their names when they are woken.
type recorder struct{ woken []string }

func (r *recorder) waiter(name string) *Waiter {
	return &Waiter{Wake: func() { r.woken = append(r.woken, name) }}
}

func (r *recorder) expect(t *testing.T, names ...string) {
	t.Helper()
	if !slices.Equal(r.woken, names) {
		t.Errorf("woken %q, want %q", r.woken, names)
	}
	r.woken = nil
}

func TestWaitIsACountDown(t *testing.T) {
	e, r := newEngine(), &recorder{}
	e.Set("there", nil)
	w := r.waiter("w")
	if e.Wait([]string{"a", "there", "b"}, w) {
		t.Fatal("satisfied at once")
	}
	e.Delete("there") // was there at the call: not looked at again
	e.Set("a", nil)
	e.Delete("a")
	r.expect(t)
	e.Append("b", nil)
	r.expect(t, "w")
	e.Set("b", nil)
	r.expect(t)
	if w.active() || e.NumWaiters() != 0 {
		t.Error("still registered")
	}
}

func TestWaitForKeyTwice(t *testing.T) {
	e, r := newEngine(), &recorder{}
	e.Wait([]string{"a", "a"}, r.waiter("w"))
	e.Set("a", nil)
	r.expect(t, "w")
	if !e.Wait(nil, r.waiter("none")) || !e.Check(nil) {
		t.Error("no keys are not there")
	}
}

func TestWritesWakeInOrder(t *testing.T) {
	writes := map[string]func(e *Engine){
		"set":      func(e *Engine) { e.Set("k", nil) },
		"add":      func(e *Engine) { e.Add("k", 1) },
		"append":   func(e *Engine) { e.Append("k", nil) },
		"multiset": func(e *Engine) { e.MultiSet([]string{"x", "k"}, [][]byte{nil, nil}) },
		"cas":      func(e *Engine) { e.CompareSet("k", nil, nil) },
		"barrier":  func(e *Engine) { e.Barrier("k", 1, nil) },
	}
	for name, write := range writes {
		t.Run(name, func(t *testing.T) {
			e, r := newEngine(), &recorder{}
			for i := range 1000 {
				e.Wait([]string{"k"}, r.waiter(fmt.Sprint(i)))
			}
			write(e)
			if len(r.woken) != 1000 || r.woken[0] != "0" || r.woken[999] != "999" {
				t.Errorf("woken %d", len(r.woken))
			}
		})
	}
}

func TestCancel(t *testing.T) {
	e, r := newEngine(), &recorder{}
	a, b, c := r.waiter("a"), r.waiter("b"), r.waiter("c")
	for _, w := range []*Waiter{a, b, c} {
		e.Wait([]string{"x", "y", "y"}, w)
	}
	e.Set("x", nil)
	e.Cancel(b)
	e.Cancel(b)
	if e.NumWaiters() != 2 {
		t.Errorf("%d waiters", e.NumWaiters())
	}
	e.Set("y", nil)
	r.expect(t, "a", "c")
	if len(e.waiting) != 0 || e.NumWaiters() != 0 {
		t.Errorf("left: %d lists, %d waiters", len(e.waiting), e.NumWaiters())
	}
	e.Wait([]string{"z"}, b) // may be used again
	e.Set("z", nil)
	r.expect(t, "b")
}

func TestWaiterRegisteredTwicePanics(t *testing.T) {
	e, r := newEngine(), &recorder{}
	w := r.waiter("w")
	e.Wait([]string{"a"}, w)
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	e.Wait([]string{"b"}, w)
}

func TestBarrier(t *testing.T) {
	e, r := newEngine(), &recorder{}
	e.Wait([]string{"b"}, r.waiter("early"))
	for i := range 2 {
		if done, err := e.Barrier("b", 3, r.waiter(fmt.Sprint(i))); done || err != nil {
			t.Fatalf("participant %d: %v, %v", i, done, err)
		}
	}
	r.expect(t) // the increment wakes no waiter
	if !e.Wait([]string{"b"}, r.waiter("late")) {
		t.Error("the counter is not a key")
	}
	if done, err := e.Barrier("b", 3, r.waiter("last")); !done || err != nil {
		t.Errorf("the last: %v, %v", done, err)
	}
	r.expect(t, "early", "0", "1")
	if done, _ := e.Barrier("b", 3, r.waiter("again")); !done || value(e, "b") != "4" {
		t.Errorf("the counter was reset: %s", value(e, "b"))
	}
	for _, size := range []int64{0, -1} {
		if done, err := e.Barrier(fmt.Sprint(size), size, r.waiter("none")); !done || err != nil {
			t.Errorf("world size %d: %v, %v", size, done, err)
		}
	}
	e.Barrier("released", 2, r.waiter("released"))
	e.Set("released", []byte("x"))
	r.expect(t, "released")
	if _, err := e.Barrier("released", 2, r.waiter("x")); !errors.Is(err, ErrNotNumber) || e.NumWaiters() != 0 {
		t.Errorf("a barrier on text: %v", err)
	}
}

func TestQueue(t *testing.T) {
	e := newEngine()
	if _, n := e.QueuePop("q"); n != 0 || e.QueueLen("q") != 0 {
		t.Error("an empty queue has items")
	}
	for i := range 100 {
		e.QueuePush("q", []byte(fmt.Sprint(i)))
		e.QueuePush("q", []byte(fmt.Sprint("x", i)))
		if item, _ := e.QueuePop("q"); (i%2 == 0) != (item[0] != 'x') {
			t.Fatalf("pop %d: %s", i, item)
		}
	}
	if e.QueueLen("q") != 100 || e.NumKeys() != 0 {
		t.Errorf("%d items, %d keys", e.QueueLen("q"), e.NumKeys())
	}
	for n := 100; n > 0; n-- {
		if _, before := e.QueuePop("q"); before != n {
			t.Fatalf("%d before the pop, want %d", before, n)
		}
	}
	if e.Bytes() != 0 || len(e.queues) != 0 || e.items != 0 {
		t.Errorf("left: %d bytes, %d queues, %d items", e.Bytes(), len(e.queues), e.items)
	}
}

func TestQueueWakesOne(t *testing.T) {
	e, r := newEngine(), &recorder{}
	e.Wait([]string{"q", "k"}, r.waiter("both"))
	e.Wait([]string{"q"}, r.waiter("first"))
	e.Wait([]string{"q"}, r.waiter("second"))
	e.QueuePush("q", nil)
	r.expect(t, "first")
	e.QueuePush("q", nil)
	r.expect(t, "second")
	e.QueuePush("q", nil)
	e.Set("k", nil)
	r.expect(t, "both")

	// A woken waiter is out of the list: waiting for something else, it is not
	// woken by a push on the old queue.
	w := r.waiter("w")
	e.Wait([]string{"q2"}, w)
	e.QueuePush("q2", nil)
	e.Wait([]string{"other"}, w)
	e.QueuePush("q2", nil)
	r.expect(t, "w")
	e.Cancel(w)

	// A queue with items is no missing key.
	e.Wait([]string{"q2", "missing"}, r.waiter("mixed"))
	e.Set("missing", nil)
	r.expect(t, "mixed")

	// A key of a queue's name wakes who waits for the queue.
	e.Wait([]string{"q3"}, r.waiter("named"))
	e.Set("q3", nil)
	r.expect(t, "named")
	if !e.Check([]string{"q2", "q3"}) {
		t.Error("a queue with items does not count")
	}
	if !e.WaitKeys([]string{"q3"}, r.waiter("x")) || e.WaitKeys([]string{"q2"}, r.waiter("key")) ||
		!e.waitQueue("q2", r.waiter("x")) || e.waitQueue("q3", r.waiter("queue")) {
		t.Error("keys and queues are taken for each other")
	}
}

func TestLimits(t *testing.T) {
	e := NewEngine(Limits{MaxBytes: 10, MaxEntries: 3})
	full := func(err error) {
		t.Helper()
		if !errors.Is(err, ErrQuota) {
			t.Errorf("got %v", err)
		}
	}
	fits := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	fits(e.Set("a", []byte("12345678")))
	full(e.Set("a", []byte("1234567890")))
	full(e.Append("a", []byte("90")))
	fits(e.Append("a", []byte("9")))
	full(e.QueuePush("q", nil))
	_, err := e.CompareSet("c", nil, []byte("1"))
	full(err)
	_, err = e.Add("n", 1)
	full(err)
	_, err = e.Barrier("b", 1, nil)
	full(err)
	if e.Bytes() != 10 || value(e, "a") != "123456789" || e.NumKeys() != 1 {
		t.Errorf("%d bytes, %q", e.Bytes(), value(e, "a"))
	}
	fits(e.Set("a", nil)) // less always fits
	fits(e.Set("b", nil))
	fits(e.QueuePush("q", nil))
	full(e.Set("c", nil))
	full(e.QueuePush("q", nil))
	full(e.MultiSet([]string{"b", "c"}, [][]byte{[]byte("1"), nil}))
	e.QueuePop("q")
	fits(e.Set("c", nil))
	e.Delete("c")
	e.Delete("b")
	if e.Bytes() != 1 {
		t.Errorf("%d bytes", e.Bytes())
	}
	if err := e.MultiSet([]string{"x"}, nil); !errors.Is(err, ErrArguments) {
		t.Errorf("unequal lists: %v", err)
	}
}

// TestBuffersAreCopied: the caller may change its buffers afterwards.
func TestBuffersAreCopied(t *testing.T) {
	e := newEngine()
	b := []byte("value")
	e.Set("k", b)
	e.QueuePush("q", b)
	e.CompareSet("c", nil, b)
	e.Append("a", b)
	copy(b, "XXXXX")
	item, _ := e.QueuePop("q")
	for _, got := range []string{value(e, "k"), string(item), value(e, "c"), value(e, "a")} {
		if got != "value" {
			t.Errorf("got %q", got)
		}
	}
}

func TestOverwriteGivesMemoryBack(t *testing.T) {
	e := newEngine()
	e.Set("k", make([]byte, 1<<20))
	e.Set("k", []byte("small"))
	if c := cap(e.keys["k"].value); c > 1<<10 {
		t.Errorf("%d bytes are kept for a value of 5", c)
	}
	if n := testing.AllocsPerRun(100, func() {
		e.Set("k", []byte("other"))
		e.Get("k")
	}); n > 0 {
		t.Errorf("%v allocations for an overwrite", n)
	}
}

func TestCopyThroughIterators(t *testing.T) {
	e := newEngine()
	for _, key := range []string{"b", "a", "c"} {
		e.Set(key, []byte(key+key))
		e.QueuePush("q"+key, []byte(key))
		e.QueuePush("q"+key, []byte("2"))
	}
	e.QueuePop("qa")
	f := newEngine()
	for key, v := range e.All() {
		f.Set(key, v)
	}
	for name, items := range e.Queues() {
		for _, item := range items {
			f.QueuePush(name, item)
		}
	}
	if !slices.Equal(e.Keys(), []string{"a", "b", "c"}) || !reflect.DeepEqual(e.Keys(), f.Keys()) || e.Bytes() != f.Bytes() {
		t.Errorf("%v with %d bytes became %v with %d", e.Keys(), e.Bytes(), f.Keys(), f.Bytes())
	}
	if item, n := f.QueuePop("qa"); n != 1 || string(item) != "2" {
		t.Errorf("the queue has %d items, first %q", n, item)
	}
	for range e.All() {
		break
	}
	for range e.Queues() {
		break
	}
}
