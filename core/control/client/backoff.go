package client

import (
	"context"
	"math/rand/v2"
	"time"
)

// Pauses between attempts to connect: doubled each time, multiplied by a random
// factor from 0.5 to 1.5. The longest depends on the size of the job, so that all
// its nodes together make at most some 5000 attempts a second.
const (
	firstPause   = 5 * time.Millisecond
	longestPause = time.Second
	shortCap     = 100 * time.Millisecond
	capPerNode   = 200 * time.Microsecond
)

// backoff paces attempts. It is used by one goroutine.
type backoff struct{ next, most time.Duration }

func (c *Client) newBackoff() *backoff {
	most := time.Duration(c.params.Max) * capPerNode
	return &backoff{firstPause, min(max(most, shortCap), longestPause)}
}

func (b *backoff) reset() { b.next = firstPause }

// wait pauses; it reports false if ctx ended.
func (b *backoff) wait(ctx context.Context) bool {
	pause := time.Duration((0.5 + rand.Float64()) * float64(b.next))
	b.next = min(2*b.next, b.most)
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
