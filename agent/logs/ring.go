package logs

import (
	"bytes"
	"slices"
	"sync"

	"rallypoint/internal/wake"
)

// Kept is how much of the end of a worker's stream is kept, in bytes.
const Kept = 64 << 10

// ring keeps the last Kept bytes of the output that passes through the agent. Its methods are
// safe for concurrent use.
type ring struct {
	mu       sync.Mutex
	bytes    []byte // the last ones, oldest at next once it is full
	next     int
	total    int64 // of all that has passed
	watchers []wake.Signal
}

func (r *ring) keep(text []byte) {
	if len(text) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total += int64(len(text))
	if len(text) > Kept {
		text = text[len(text)-Kept:]
	}
	if room := Kept - len(r.bytes); room > 0 {
		n := min(room, len(text))
		r.bytes = append(r.bytes, text[:n]...)
		text = text[n:]
	}
	for len(text) > 0 {
		n := copy(r.bytes[r.next:], text)
		r.next = (r.next + n) % Kept
		text = text[n:]
	}
	for _, w := range r.watchers {
		w.Set()
	}
}

// read implements source.
func (r *ring) read(from int64, most int) (text []byte, at int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	text = append(bytes.Clone(r.bytes[r.next:]), r.bytes[:r.next]...)
	at = min(max(from, r.total-int64(len(text)), r.total-int64(most)), r.total)
	return text[len(text)-int(r.total-at):], at, nil
}

func (r *ring) last() []byte {
	text, _, _ := r.read(0, Kept)
	return text
}

// watch has a signal set whenever something passes, until the function that it returns is called.
func (r *ring) watch(news wake.Signal) (stop func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watchers = append(r.watchers, news)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.watchers = slices.DeleteFunc(r.watchers, func(w wake.Signal) bool { return w == news })
	}
}
