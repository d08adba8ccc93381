package question

import (
	"context"
	"errors"
	"strconv"
	"time"

	"rallypoint/core/store"
	"rallypoint/internal/backoff"
)

// Parts is an answer in parts, which agents push into one queue while the inquirer takes them out,
// until it closes the queue.
type Parts struct {
	store store.Store
	queue string
}

// keyParts is about the parts of the answers to a question.
const keyParts = "rallypoint/stacks/parts/"

// PartsOf are the parts of the answers to the question of a number.
func PartsOf(s store.Store, number int64) Parts {
	return Parts{s, keyParts + strconv.FormatInt(number, 10)}
}

// A queue is bounded: agents wait while it holds this many parts, and give up on an inquirer that
// takes none of them for this long.
const (
	maxBehind      = 16
	behindPatience = 30 * time.Second
	behindPause    = 100 * time.Millisecond
)

var errBehind = errors.New("the asking process no longer reads the answer")

// Push hands a part over. It waits while the inquirer is slower.
func (p Parts) Push(ctx context.Context, part []byte) error {
	for until := time.Now().Add(behindPatience); ; {
		waiting, err := p.store.QueueLen(ctx, p.queue)
		switch {
		case err != nil:
			return err
		case waiting < maxBehind:
			return p.store.QueuePush(ctx, p.queue, part)
		case time.Now().After(until):
			return errBehind
		}
		if !backoff.Sleep(ctx, behindPause) {
			return ctx.Err()
		}
	}
}

// Next takes the next part out. It waits for one until ctx ends.
func (p Parts) Next(ctx context.Context) ([]byte, error) {
	return p.store.QueuePop(ctx, p.queue, true)
}

// AwaitClose waits until nobody takes parts any more.
func (p Parts) AwaitClose(ctx context.Context) error {
	return p.store.Wait(ctx, []string{p.closed()})
}

// Close tells the agents that no parts are taken any more, and removes those in the queue.
func (p Parts) Close(ctx context.Context) error {
	if err := p.store.Set(ctx, p.closed(), []byte("1")); err != nil {
		return err
	}
	for {
		if _, err := p.store.QueuePop(ctx, p.queue, false); err != nil {
			if errors.Is(err, store.ErrQueueEmpty) {
				return nil
			}
			return err
		}
	}
}

func (p Parts) closed() string { return p.queue + "/closed" }
