// Package backoff paces tries: pauses that double, with jitter, so that many processes
// which failed together do not try again together, and tries that do not wait for each other's end.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff draws the pauses between tries. It is used by one goroutine.
type Backoff struct{ first, most, next time.Duration }

// New makes a Backoff whose pauses begin with first and double up to most.
func New(first, most time.Duration) *Backoff { return &Backoff{first, most, first} }

// Reset makes the next pause the first one again.
func (b *Backoff) Reset() { b.next = b.first }

// Wait pauses; it reports false if ctx ended before.
func (b *Backoff) Wait(ctx context.Context) bool { return Sleep(ctx, b.Next()) }

// Next returns the next pause, for callers that wait for other events as well.
func (b *Backoff) Next() time.Duration {
	pause := Jitter(b.next)
	b.next = min(2*b.next, b.most)
	return pause
}

// Jitter multiplies a duration by a random factor from 0.5 to 1.5.
func Jitter(d time.Duration) time.Duration { return d/2 + Below(d) }

// Below draws a duration from 0 up to d, which it excludes unless it is 0.
func Below(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return rand.N(d)
}

// Shuffle puts a list into a random order.
func Shuffle[T any](list []T) {
	for i := len(list) - 1; i > 0; i-- {
		j := int(Below(time.Duration(i + 1)))
		list[i], list[j] = list[j], list[i]
	}
}

// Sleep waits for d; it reports false if ctx ended before.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
