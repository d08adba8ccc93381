package filestore

import (
	"context"
	"errors"
	"time"

	"rallypoint/core/store"
)

var (
	_ store.Store = (*Store)(nil)
	_ store.Trier = (*Store)(nil)
)

// tryPatience is how long a call of TryDo waits for the file's lock: for some other calls,
// not for a holder that hangs.
const tryPatience = time.Millisecond

// tryKey is the key of a context's value by which the calls of TryDo know that they must not
// wait.
type tryKey struct{}

func isTry(ctx context.Context) bool { return ctx.Value(tryKey{}) != nil }

// mayWait returns an error if a call must not begin an operation that may take long:
// store.ErrTimeout in a call of TryDo.
func mayWait(ctx context.Context) error {
	if isTry(ctx) {
		return store.ErrTimeout
	}
	return store.ContextError(ctx)
}

// TryDo implements store.Trier for a file of this machine: a request is pending, and has done
// nothing, if it has to wait for another one, for the lock, or for much to be read or written.
func (s *Store) TryDo(ctx context.Context, r store.Request, _ time.Duration) (store.Reply, store.Pending, error) {
	do := func(ctx context.Context) (store.Reply, error) { return s.Do(ctx, r) }
	if !s.local || r.Op == store.OpBarrier { // which counts the caller, and then waits
		return store.Reply{}, do, nil
	}
	reply, err := s.Do(context.WithValue(ctx, tryKey{}, true), r)
	if errors.Is(err, store.ErrTimeout) {
		return store.Reply{}, do, nil
	}
	return reply, nil, err
}
