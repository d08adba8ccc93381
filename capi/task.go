package main

import (
	"context"
	"sync"
	"time"

	"rallypoint/core/rendezvous"
)

// task is a call on its way, which C waits for in slices.
type task[T any] struct {
	done   chan struct{} // closed once value and err are set
	cancel context.CancelFunc
	value  T
	err    error
}

// startTask makes the call, which must return soon after its context has ended.
// cancel ends that context. ended, if there is one, is called at the very end.
func startTask[T any](ctx context.Context, cancel context.CancelFunc, call func(context.Context) (T, error), ended func()) *task[T] {
	t := &task[T]{done: make(chan struct{}), cancel: cancel}
	go func() {
		if ended != nil {
			defer ended()
		}
		defer close(t.done)
		defer cancel()
		t.err = protect(func() (err error) {
			t.value, err = call(ctx)
			return err
		})
	}()
	return t
}

// wait waits for the end of the task for at most limit, if it is limited, and
// returns its error, or errPending.
func (t *task[T]) wait(limit time.Duration, limited bool) error {
	if !limited {
		<-t.done
		return t.err
	}
	select {
	case <-t.done:
		return t.err
	default:
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-t.done:
		return t.err
	case <-timer.C:
		return errPending
	}
}

// singleFlight holds the one task of its kind that an object may have under way. ended, if
// it is set, is called after the end of each.
type singleFlight[T any] struct {
	ended   func()
	mu      sync.Mutex
	current *task[T]
	closed  bool
}

// run waits for the task under way, or starts one, as task.wait. Once it is over
// the next run starts another. With errPending the task still writes its value.
func (s *singleFlight[T]) run(limit time.Duration, limited bool, call func(context.Context) (T, error)) (value T, err error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return value, rendezvous.Errorf(codeHandle, "the handle was closed meanwhile")
	}
	t := s.current
	if t == nil {
		ctx, cancel := context.WithCancel(context.Background())
		t = startTask(ctx, cancel, call, s.ended)
		s.current = t
	}
	s.mu.Unlock()
	if err = t.wait(limit, limited); err == errPending {
		return value, err
	}
	s.mu.Lock()
	if s.current == t {
		s.current = nil
	}
	s.mu.Unlock()
	return t.value, err
}

func (s *singleFlight[T]) cancel() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil {
		s.current.cancel()
	}
}

// close lets no task start any more, cancels the one under way and waits for it.
func (s *singleFlight[T]) close() {
	s.mu.Lock()
	s.closed = true
	t := s.current
	s.mu.Unlock()
	if t != nil {
		t.cancel()
		<-t.done
	}
}
