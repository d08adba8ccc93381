package eventloop

import (
	"iter"
	"sync"
	"time"
)

// Socket is a Loop's pointer for one socket.
type Socket interface {
	comparable
	// Event handles the poller's events of the socket.
	Event(events uint32)
	// Step continues the work for which the socket was queued.
	Step()
}

// Loop is a poller with the sockets that it serves, those of them that have something to do
// without an event, and an In that other goroutines fill. Put may be called from any goroutine;
// everything else belongs to the one that serves.
type Loop[S Socket, In any] struct {
	poller  *Poller
	sockets []S // by descriptor
	ready   []S // queued
	spare   []S // memory for ready

	mu      sync.Mutex
	in      In
	pending bool // the loop was woken and has not taken in yet
	closed  bool // the loop does not take it any more
}

// NewLoop makes a loop; the caller closes it.
func NewLoop[S Socket, In any]() (*Loop[S, In], error) {
	poller, err := NewPoller()
	if err != nil {
		return nil, err
	}
	return &Loop[S, In]{poller: poller}, nil
}

// Close closes the loop's own descriptors, and no socket. Nobody may serve or put any more.
func (l *Loop[S, In]) Close() { l.poller.Close() }

// Turn is one iteration. It waits for events, unless a socket is queued or it must not sleep, at
// most until the given time if that is not zero. Then it handles them, passes the input of Put to
// take, and steps the sockets that were queued before the call.
func (l *Loop[S, In]) Turn(sleep bool, until time.Time, take func(In)) error {
	events, err := l.poller.Wait(sleep && len(l.ready) == 0, until)
	if err != nil {
		return err
	}
	before := l.ready
	l.ready = l.spare
	var none S
	woken := false
	for i := range events {
		if l.poller.woke(&events[i]) {
			woken = true
		} else if s := l.sockets[events[i].Fd]; s != none {
			s.Event(events[i].Events)
		}
	}
	if woken { // not before: a socket that take adds may have the descriptor of one that the events have ended
		take(l.taken(false))
	}
	for _, s := range before {
		s.Step()
	}
	clear(before)
	l.spare = before[:0]
	return nil
}

// Add begins to serve a socket. After an error it has to be removed, too.
func (l *Loop[S, In]) Add(fd int32, s S) error {
	if int(fd) >= len(l.sockets) {
		sockets := make([]S, max(int(fd)+1, 2*len(l.sockets)))
		copy(sockets, l.sockets)
		l.sockets = sockets
	}
	l.sockets[fd] = s
	return l.poller.Add(int(fd))
}

// Remove ends serving a socket, before its descriptor is closed: another one may get its number.
func (l *Loop[S, In]) Remove(fd int32) {
	l.poller.remove(int(fd))
	if int(fd) < len(l.sockets) {
		var none S
		l.sockets[fd] = none
	}
}

// All returns the sockets. They may be removed meanwhile.
func (l *Loop[S, In]) All() iter.Seq[S] {
	return func(yield func(S) bool) {
		var none S
		for _, s := range l.sockets {
			if s != none && !yield(s) {
				return
			}
		}
	}
}

// Queue makes a socket take part in the next turn. The caller sees to it that it is queued once.
func (l *Loop[S, In]) Queue(s S) { l.ready = append(l.ready, s) }

// Put calls change to add to the loop's input. It reports false, without calling change, after
// Shut. It does not block, and neither may change.
func (l *Loop[S, In]) Put(change func(*In)) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	change(&l.in)
	if !l.pending {
		l.pending = true
		l.poller.wake()
	}
	return true
}

// Shut makes each later Put report false, and returns the remaining input.
func (l *Loop[S, In]) Shut() In { return l.taken(true) }

// taken returns the input since the last call, and leaves the zero In.
func (l *Loop[S, In]) taken(last bool) (in In) {
	l.mu.Lock()
	defer l.mu.Unlock()
	in, l.in = l.in, in
	l.pending, l.closed = false, last
	return in
}
