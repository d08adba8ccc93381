package backoff

import (
	"context"
	"time"
)

// First tries the entries of a list, each when the ones before have failed or have not answered
// for a while. It returns the first answer without an error. A final error also ends the tries,
// and is then the only one returned. Without an answer it returns all errors in their order. When
// First returns, it has cancelled the context of the other tries; late gets their results.
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
