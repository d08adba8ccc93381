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
func (b *Inbox[T]) Put(change func(*T)) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	change(&b.held)
	if !b.pending {
		b.pending = true
		b.poller.Wake()
	}
	return true
}

// Take returns what was put since the last time, and leaves the zero T.
func (b *Inbox[T]) Take() T {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.take()
}

// Close makes each later Put false, and returns what came before.
func (b *Inbox[T]) Close() T {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return b.take()
}

func (b *Inbox[T]) take() (held T) {
	held, b.held = b.held, held
	b.pending = false
	return held
}
