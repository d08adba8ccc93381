package store

import (
	"bytes"
	"iter"
	"maps"
	"slices"
	"strings"
)

// queue is one named queue. An engine holds only queues that have items.
type queue struct {
	name  string
	items [][]byte
	head  int // items before it have been taken
}

func (q *queue) len() int { return len(q.items) - q.head }

// QueuePush appends value to the queue of that name and wakes one waiter: the
// first in the order of registration which waits for nothing else any more. If
// that one never pops, the item stays, and the other waiters are not woken before
// the next push. It fails only with ErrQuota (docs/spec/tcpstore-wire.md 4.6).
func (e *Engine) QueuePush(name string, value []byte) error {
	q := e.queues[name]
	size := int64(len(value))
	if q == nil {
		size += int64(len(name))
	}
	if err := e.charge(name, size, 1); err != nil {
		return err
	}
	if q == nil {
		q = &queue{name: strings.Clone(name)}
		e.queues[q.name] = q
	}
	q.items = append(q.items, bytes.Clone(value))
	e.items++
	e.wakeOne(name)
	return nil
}

// QueuePop takes the oldest item out of the queue of that name. It returns the
// item, which is the caller's, and the number of items before the pop; 0 means
// that there was none.
func (e *Engine) QueuePop(name string) (item []byte, n int) {
	q := e.queues[name]
	if q == nil {
		return nil, 0
	}
	n = q.len()
	item, q.items[q.head] = q.items[q.head], nil
	q.head++
	e.items--
	e.bytes -= int64(len(item))
	switch {
	case n == 1:
		e.bytes -= int64(len(q.name))
		delete(e.queues, name)
	case q.head >= n: // at least half of the slots are used up: each moves once
		q.items = slices.Clone(q.items[q.head:])
		q.head = 0
	}
	return item, n
}

// QueueHead returns the oldest item of the queue of that name without taking it, nil if
// there is none. It must not be changed.
func (e *Engine) QueueHead(name string) []byte {
	if q := e.queues[name]; q != nil {
		return q.items[q.head]
	}
	return nil
}

// QueueLen returns the number of items in the queue of that name.
func (e *Engine) QueueLen(name string) int {
	if q := e.queues[name]; q != nil {
		return q.len()
	}
	return 0
}

// Queues yields each non-empty queue's name, sorted, with its items, oldest
// first. Items must not be changed, nor the engine meanwhile.
func (e *Engine) Queues() iter.Seq2[string, [][]byte] {
	return func(yield func(string, [][]byte) bool) {
		for _, name := range slices.Sorted(maps.Keys(e.queues)) {
			q := e.queues[name]
			if !yield(name, q.items[q.head:]) {
				return
			}
		}
	}
}
