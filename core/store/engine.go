package store

import (
	"bytes"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Limits are the limits of an Engine's content. A zero field is no limit.
type Limits struct {
	// MaxBytes bounds Engine.Bytes.
	MaxBytes int64

	// MaxEntries bounds the number of keys plus the number of queued items.
	MaxEntries int
}

// Engine is an in-memory store that never blocks: a call that would wait leaves
// a Waiter behind, and the write that ends the wait calls it.
//
// It has no clock, no goroutine, no lock and no I/O, and the same calls give the
// same results and the same order of wake-ups, so it serves both behind a mutex
// and inside a deterministic state machine. It is not safe for concurrent use.
//
// Keys are copied when the engine keeps them and values always, so that both may
// be views of a buffer which is used again after the call.
type Engine struct {
	limits    Limits
	keys      map[string]*entry
	queues    map[string]*queue
	waiting   map[string]*waitList
	waiters   int
	waitBytes int64
	items     int
	bytes     int64
	heldBytes int64 // of the values of deleted keys that waiters hold
}

// entry is one key. The pointer is kept over writes, so that overwriting never
// touches the map.
type entry struct {
	key     string
	value   []byte
	buffer  *Buffer // of value, once it was shared
	holders int     // waiters that hold it
	deleted bool    // and yet held: value counts in Engine.heldBytes
}

// NewEngine returns an empty engine.
func NewEngine(limits Limits) *Engine {
	return &Engine{
		limits:  limits,
		keys:    make(map[string]*entry),
		queues:  make(map[string]*queue),
		waiting: make(map[string]*waitList),
	}
}

// Limit changes the limits. Content above them stays.
func (e *Engine) Limit(l Limits) { e.limits = l }

// Set stores value under key and wakes the waiters of key. It fails only with
// ErrQuota.
func (e *Engine) Set(key string, value []byte) error {
	if err := e.put(key, value); err != nil {
		return err
	}
	e.wakeAll(key)
	return nil
}

// Get returns the value of key and whether the key exists. The slice is the
// engine's own: it must not be changed and is good only until the next call that
// writes.
func (e *Engine) Get(key string) (value []byte, ok bool) {
	en := e.keys[key]
	if en == nil {
		return nil, false
	}
	return en.value, true
}

// Add adds delta to the number under key and wakes the waiters of key. Overflow
// wraps. It fails with ErrNotNumber or ErrQuota and then changes nothing
// (docs/spec/tcpstore-wire.md 4.3).
func (e *Engine) Add(key string, delta int64) (int64, error) {
	n, err := e.increment(key, delta)
	if err != nil {
		return 0, err
	}
	e.wakeAll(key)
	return n, nil
}

// CompareSet stores desired under key if its value equals expected or if it is
// missing and expected is empty; only then are waiters of key woken. It returns
// the value after that, or expected for a missing key with a non-empty expected.
// The result has the life of Get's. It fails only with ErrQuota
// (docs/spec/tcpstore-wire.md 4.2).
func (e *Engine) CompareSet(key string, expected, desired []byte) ([]byte, error) {
	en := e.keys[key]
	switch {
	case en == nil && len(expected) > 0:
		return expected, nil
	case en != nil && !bytes.Equal(en.value, expected):
		return en.value, nil
	}
	if err := e.Set(key, desired); err != nil {
		return nil, err
	}
	return desired, nil
}

// Append appends value to what is under key, creating it if missing, and wakes
// the waiters of key. It fails only with ErrQuota.
func (e *Engine) Append(key string, value []byte) error {
	en := e.keys[key]
	if en == nil {
		return e.Set(key, value)
	}
	if err := e.charge(key, int64(len(value)), 0); err != nil {
		return err
	}
	if cap(en.value)-len(en.value) < len(value) {
		en.buffer = nil // the value moves; else readers see no byte after theirs
	}
	en.value = append(en.value, value...)
	e.wakeAll(key)
	return nil
}

// MultiSet is Set for each pair, in order. It stops at the first pair that does
// not fit and returns ErrQuota; the pairs before it stay. Unequal lengths are
// ErrArguments.
func (e *Engine) MultiSet(keys []string, values [][]byte) error {
	if len(keys) != len(values) {
		return ErrArguments
	}
	for i, key := range keys {
		if err := e.Set(key, values[i]); err != nil {
			return err
		}
	}
	return nil
}

// Check reports whether each of keys exists or names a non-empty queue.
func (e *Engine) Check(keys []string) bool {
	for _, key := range keys {
		if !e.present(key) {
			return false
		}
	}
	return true
}

// Delete removes key and reports whether it existed. Queues and waiters are not
// touched.
func (e *Engine) Delete(key string) bool {
	en := e.keys[key]
	if en == nil {
		return false
	}
	e.bytes -= int64(len(en.key) + len(en.value))
	delete(e.keys, key)
	e.keepHeld(en)
	return true
}

// NumKeys returns the number of keys; queues do not count.
func (e *Engine) NumKeys() int { return len(e.keys) }

// Bytes returns the sum of the lengths of all keys and values and of all queues'
// names and items. A barrier's counter is a value like others.
func (e *Engine) Bytes() int64 { return e.bytes }

// NumWaiters returns the number of waits that have not been woken.
func (e *Engine) NumWaiters() int { return e.waiters }

// Keys returns all keys, sorted.
func (e *Engine) Keys() []string {
	return slices.Sorted(maps.Keys(e.keys))
}

// All yields all keys with their values, sorted by key. Setting them in another engine, and
// pushing the items that Queues yields, makes a copy. The engine must not be written to
// meanwhile. The values are valid as long as those of Get.
func (e *Engine) All() iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for _, key := range e.Keys() {
			if !yield(key, e.keys[key].value) {
				return
			}
		}
	}
}

// Barrier adds one to the counter under key. If that reaches worldSize it wakes
// all waiters of key and returns true. Else it registers w for the next write of
// key and returns false; the increment itself wakes no waiter. It fails with
// ErrNotNumber or ErrQuota and then changes nothing
// (docs/spec/tcpstore-wire.md 4.5).
func (e *Engine) Barrier(key string, worldSize int64, w *Waiter) (done bool, err error) {
	n, err := e.increment(key, 1)
	if err != nil {
		return false, err
	}
	if n >= worldSize {
		e.wakeAll(key)
		return true, nil
	}
	e.enlist(w, 1)
	e.register(w, key)
	return false, nil
}

// present reports whether key exists or names a non-empty queue.
func (e *Engine) present(key string) bool {
	return e.keys[key] != nil || e.queues[key] != nil
}

// put stores value under key without waking a waiter.
func (e *Engine) put(key string, value []byte) error {
	en := e.keys[key]
	if en == nil {
		if err := e.charge(key, int64(len(key)+len(value)), 1); err != nil {
			return err
		}
		en = &entry{key: strings.Clone(key), value: bytes.Clone(value)}
		e.keys[en.key] = en
		return nil
	}
	if err := e.charge(key, int64(len(value)-len(en.value)), 0); err != nil {
		return err
	}
	if b := en.buffer; b != nil && b.readers.Load() > 0 {
		en.value, en.buffer = bytes.Clone(value), nil
		return nil
	}
	en.value = overwrite(en.value, value)
	return nil
}

// increment adds delta to the number under key without waking a waiter.
func (e *Engine) increment(key string, delta int64) (int64, error) {
	n := delta
	if en := e.keys[key]; en != nil {
		old, err := ParseNumber(en.value)
		if err != nil {
			return 0, fmt.Errorf("key %.100q: %w", key, err)
		}
		n = old + delta
	}
	var text [20]byte // the longest int64 with its sign
	if err := e.put(key, strconv.AppendInt(text[:0], n, 10)); err != nil {
		return 0, err
	}
	return n, nil
}

// charge accounts for a write that takes size more bytes and count more entries,
// or returns ErrQuota. Writes that take nothing more always pass.
func (e *Engine) charge(key string, size int64, count int) error {
	if max := e.limits.MaxBytes; max > 0 && size > 0 && e.bytes+size > max {
		return fmt.Errorf("key %.100q: %w: %d bytes more than the limit of %d", key, ErrQuota, e.bytes+size-max, max)
	}
	if max := e.limits.MaxEntries; max > 0 && count > 0 && len(e.keys)+e.items+count > max {
		return fmt.Errorf("key %.100q: %w: limit of %d entries", key, ErrQuota, max)
	}
	e.bytes += size
	return nil
}

// slackFactor and slackBytes bound the memory that overwriting in place may leave unused after a
// value: it is given back when a value has shrunk to less than 1/slackFactor of its memory, unless
// it is only a few bytes anyway.
const (
	slackFactor = 2
	slackBytes  = 64
)

// overwrite returns value in old's memory if it fits there without waste, else
// in memory of its own. The two may overlap.
func overwrite(old, value []byte) []byte {
	if cap(old) >= len(value) && cap(old) <= slackFactor*len(value)+slackBytes {
		return append(old[:0], value...)
	}
	return bytes.Clone(value)
}
