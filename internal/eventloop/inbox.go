package eventloop

import "sync"

// Inbox is how other goroutines reach the goroutine of a loop: they change a T, which the loop
// takes when its poller has reported Woke. Put may be called from any goroutine, Take and Close
// from the loop's alone.
type Inbox[T any] struct {
	poller *Poller

	mu      sync.Mutex
	held    T
	pending bool // the loop was woken and has not taken it yet
	closed  bool // the loop does not take it any more
}

// NewInbox returns an inbox of the loop that waits by a poller.
func NewInbox[T any](p *Poller) *Inbox[T] { return &Inbox[T]{poller: p} }

// Put has change add to what the loop is going to take, and reports whether it is: false after
// Close, where change is not called. It does not block; change must not either.
func (i *Inbox[T]) Put(change func(*T)) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return false
	}
	change(&i.held)
	if !i.pending {
		i.pending = true
		i.poller.Wake()
	}
	return true
}

// Take returns what was put since the last time, and leaves the zero T.
func (i *Inbox[T]) Take() T {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.take()
}

// Close makes each later Put false, and returns what came before.
func (i *Inbox[T]) Close() T {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
	return i.take()
}

func (i *Inbox[T]) take() (held T) {
	held, i.held = i.held, held
	i.pending = false
	return held
}
