package backoff

import (
	"context"
	"time"
)

// First tries the entries of a list, the next one when those before have failed or not answered for
// a while. The answer is the first one that comes without an error; an error that is final ends the
// tries, too, and is the only one returned. Without an answer all errors are, as they came. The tries have
// ended by their context when First returns; late gets what came after the answer.
func First[A, T any](ctx context.Context, list []A, after time.Duration, try func(context.Context, A) (T, error), final func(error) bool, late func(T)) (answer T, failed []error) {
	type result struct {
		of  T
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	results := make(chan result, len(list))
	pending := 0
	defer func() {
		cancel()
		for ; pending > 0; pending-- {
			if r := <-results; r.err == nil {
				late(r.of)
			}
		}
	}()
	next := func() {
		if len(list) > 0 {
			entry := list[0]
			list, pending = list[1:], pending+1
			go func() {
				of, err := try(ctx, entry)
				results <- result{of, err}
			}()
		}
	}
	next()
	stagger := time.NewTicker(after)
	defer stagger.Stop()
	for pending > 0 {
		select {
		case <-stagger.C:
			next()
		case r := <-results:
			pending--
			switch {
			case r.err == nil:
				return r.of, nil
			case final(r.err):
				return answer, []error{r.err}
			}
			failed = append(failed, r.err)
			next()
		}
	}
	return answer, failed
}
