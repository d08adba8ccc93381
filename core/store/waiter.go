package store

import "strings"

// Waiter is one pending wait on an Engine. Wake has to be set; the rest belongs
// to the engine. A Waiter may be used again once it was woken or cancelled. It
// must not be copied while registered.
type Waiter struct {
	// Wake is called once when the wait is over, from within the write that
	// ended it. It must not call the engine. A cancelled waiter is not woken.
	Wake func()

	// Hold lets Engine.Held find the keys of a Wait that is over, with the values that they had
	// when they were deleted, until Release.
	Hold bool

	held    []*entry
	one     [1]*entry
	missing int            // writes still to come
	regs    []registration // at first one per missing key, of which some are done
	single  [1]registration
}

// active reports whether w is registered and has not been woken.
func (w *Waiter) active() bool { return w.missing > 0 }

// Pending returns the keys that w still waits for, in the order of registration.
func (w *Waiter) Pending() []string {
	var keys []string
	for i := range w.regs {
		if list := w.regs[i].list; list != nil {
			keys = append(keys, list.key)
		}
	}
	return keys
}

type registration struct {
	waiter     *Waiter
	list       *waitList // nil once this key was written
	prev, next *registration
}

// The approximate memory of a waiter including its owner's part, of one of its keys, and of a
// key's list without its name.
const (
	waiterCost       = 200
	registrationCost = 32
	waitListCost     = 112
)

// WaitBytes returns about how much memory the waits that have not been woken take.
func (e *Engine) WaitBytes() int64 { return e.waitBytes }

// waitList is the waiters of one key in the order of their registration.
type waitList struct {
	key        string
	head, tail *registration
}

// Wait returns true if each of keys exists or names a non-empty queue. Else it
// registers w, once for each missing key (a key named twice counts twice), and
// returns false; w is woken when all of those were written. It is a count-down:
// deleting a written key again does not undo it, and keys present now are not
// looked at again (docs/spec/tcpstore-wire.md 4.4).
func (e *Engine) Wait(keys []string, w *Waiter) (done bool) {
	return e.await(keys, w, e.present)
}

// WaitKeys is Wait for callers which need the keys themselves: a queue of that
// name does not count. A push on it is counted like a write, so that the caller
// has to look again after being woken.
func (e *Engine) WaitKeys(keys []string, w *Waiter) (done bool) {
	return e.await(keys, w, func(key string) bool { return e.keys[key] != nil })
}

// waitQueue is Wait for a caller which needs an item of the queue of that name: a
// key of that name does not count. A write of it does, so that the caller has to
// look again after being woken.
func (e *Engine) waitQueue(name string, w *Waiter) (done bool) {
	return e.await([]string{name}, w, func(name string) bool { return e.queues[name] != nil })
}

// await registers w for those of keys which are not present, if there are any.
func (e *Engine) await(keys []string, w *Waiter, present func(string) bool) (done bool) {
	missing := 0
	for _, key := range keys {
		if !present(key) {
			missing++
		}
	}
	if missing > 0 {
		e.enlist(w, missing)
	}
	for _, key := range keys {
		if !present(key) {
			e.register(w, key)
		} else if w.Hold {
			e.hold(w, e.keys[key])
		}
	}
	return missing == 0
}

// Await registers w for one write of each of keys, whether they exist or not: it
// restores a wait whose Pending was stored. Without keys it panics.
func (e *Engine) Await(keys []string, w *Waiter) {
	if len(keys) == 0 {
		panic("store: a wait for nothing")
	}
	e.enlist(w, len(keys))
	for _, key := range keys {
		e.register(w, key)
	}
}

// Cancel takes w out of the engine; it is not woken any more. It takes time
// proportional to the keys w waits for. A waiter that is not registered is left
// alone.
func (e *Engine) Cancel(w *Waiter) {
	if !w.active() {
		return
	}
	for i := range w.regs {
		if r := &w.regs[i]; r.list != nil {
			e.unlink(r)
		}
	}
	e.retire(w)
}

// enlist readies w for n registrations. The slice is never moved after it, since
// lists point into it.
func (e *Engine) enlist(w *Waiter, n int) {
	if w.active() {
		panic("store: Waiter is registered already")
	}
	if n == 1 {
		w.regs = w.single[:0]
	} else {
		w.regs = make([]registration, 0, n)
	}
	w.missing = n
	e.waiters++
	e.waitBytes += waiterCost + registrationCost*int64(n)
}

func (e *Engine) register(w *Waiter, key string) {
	list := e.waiting[key]
	if list == nil {
		list = &waitList{key: strings.Clone(key)}
		e.waiting[list.key] = list
		e.waitBytes += waitListCost + int64(len(key))
	}
	w.regs = append(w.regs, registration{waiter: w, list: list, prev: list.tail})
	r := &w.regs[len(w.regs)-1]
	if list.tail == nil {
		list.head = r
	} else {
		list.tail.next = r
	}
	list.tail = r
}

// unlink takes r out of its list, and the list out of the engine if it is the last.
func (e *Engine) unlink(r *registration) {
	list := r.list
	if r.prev == nil {
		list.head = r.next
	} else {
		r.prev.next = r.next
	}
	if r.next == nil {
		list.tail = r.prev
	} else {
		r.next.prev = r.prev
	}
	if list.head == nil {
		e.dropList(list)
	}
	*r = registration{}
}

func (e *Engine) dropList(list *waitList) {
	delete(e.waiting, list.key)
	e.waitBytes -= waitListCost + int64(len(list.key))
}

// retire ends w's registration, all of whose places are gone.
func (e *Engine) retire(w *Waiter) {
	e.waitBytes -= waiterCost + registrationCost*int64(len(w.regs))
	w.missing = 0
	w.regs = nil
	e.waiters--
}

// wakeAll empties the list of key and counts its waiters down, in one pass.
func (e *Engine) wakeAll(key string) {
	if len(e.waiting) == 0 {
		return
	}
	list := e.waiting[key]
	if list == nil {
		return
	}
	e.dropList(list)
	for r := list.head; r != nil; {
		w, next := r.waiter, r.next
		*r = registration{}
		if w.Hold {
			e.hold(w, e.keys[key])
		}
		e.countDown(w)
		r = next
	}
}

// wakeOne counts the waiters of key down until one of them is woken. Those
// before it wait for other keys too; for them this key is done.
func (e *Engine) wakeOne(key string) {
	list := e.waiting[key]
	if list == nil {
		return
	}
	for woken := false; list.head != nil && !woken; {
		w := list.head.waiter
		e.unlink(list.head)
		woken = e.countDown(w)
	}
}

// countDown counts one write for w and wakes it after the last.
func (e *Engine) countDown(w *Waiter) (woken bool) {
	w.missing--
	if w.missing > 0 {
		return false
	}
	e.retire(w)
	w.Wake()
	return true
}
