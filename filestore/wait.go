package filestore

import (
	"context"
	"fmt"
	"time"

	"rallypoint/core/store"
	"rallypoint/internal/changewatch"
)

// watch keeps a store up to date while calls wait for other processes' writes. There is at most
// one per store, in its own goroutine, which starts with the first waiting call and ends with the
// last, or with Close.
type watch struct {
	ctx    context.Context
	cancel context.CancelFunc
	failed chan struct{} // closed when the watch ended by an error
	err    error         // that error
}

// await carries out a request that reads, whose keys are stored ones. If it has to wait, await waits
// until that is over, and returns done false: the caller tries again. It holds neither a lock nor the
// turn while it waits. There is no watch for a context that has ended by then.
func (s *Store) await(ctx context.Context, r store.Request) (reply store.Reply, done bool, err error) {
	start := s.options.Clock.Now()
	woken := make(chan struct{})
	waiter := &store.Waiter{Wake: func() { close(woken) }}
	var w *watch
	var late error
	err = s.viewLocked(ctx, func() {
		if reply, done, _ = s.engine.Apply(r, waiter); done {
			return
		}
		if late = mayWait(ctx); late != nil {
			s.engine.Cancel(waiter)
			return
		}
		w = s.addWaiterLocked()
	})
	switch {
	case err != nil || done:
		return reply, done, err
	case late != nil:
		return reply, false, s.waited(late, start)
	}
	defer s.removeWaiter(waiter)
	select {
	case <-woken:
		return store.Reply{Ready: true}, r.Op == store.OpWait, nil
	case <-w.failed:
		return reply, false, w.err
	case <-s.closing:
		return reply, false, store.ErrClosed
	case <-ctx.Done():
		return reply, false, s.waited(store.ContextError(ctx), start)
	}
}

// waited is the error of a wait since start that err has ended.
func (s *Store) waited(err error, start time.Time) error {
	return fmt.Errorf("waited %v: %w", s.options.Clock.Now().Sub(start).Round(time.Millisecond), err)
}

// addWaiterLocked counts one more call that waits and returns the watch.
func (s *Store) addWaiterLocked() *watch {
	s.waiting++
	if s.watch == nil {
		ctx, cancel := context.WithCancel(context.Background())
		s.watch = &watch{ctx: ctx, cancel: cancel, failed: make(chan struct{})}
		if s.checkOpen(ctx) != nil {
			return s.watch // Close has begun and ends the call
		}
		s.watches.Add(1)
		go s.watchLoop(s.watch)
	}
	return s.watch
}

// removeWaiter ends the wait of one call and, with the last, the watch.
func (s *Store) removeWaiter(waiter *store.Waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.engine.Cancel(waiter)
	if s.waiting--; s.waiting == 0 {
		s.endWatchLocked()
	}
}

func (s *Store) endWatchLocked() {
	if s.watch != nil {
		s.watch.cancel()
		s.watch = nil
	}
}

// watchLoop reads the log whenever it has grown, which wakes the calls that wait for its records,
// until w is cancelled or the file fails.
func (s *Store) watchLoop(w *watch) {
	defer s.watches.Done()
	watcher := changewatch.New(s.file.Path, s.local, s.options.Clock, s.options.PollMin, s.options.PollMax)
	defer watcher.Close()
	known := int64(-1)
	for {
		changed := false
		err := s.viewLocked(w.ctx, func() { changed, known = s.pos != known, s.pos })
		if err != nil {
			s.failWatch(w, err)
			return
		}
		watcher.Wait(w.ctx, changed)
		if w.ctx.Err() != nil {
			return
		}
	}
}

// failWatch ends w, and with it the calls that wait, with err. Later calls get a
// watch of their own. A watch that was cancelled has no callers.
func (s *Store) failWatch(w *watch, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watch == w {
		w.err = err
		close(w.failed)
		s.endWatchLocked()
	}
}
