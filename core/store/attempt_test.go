package store

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestAttempt(t *testing.T) {
	parent, cancel := context.WithCancel(context.Background())
	a := NewAttempt(parent, time.Hour)
	if a.Err() != nil || a.Rest(nil) != nil || a.Rest(ErrTimeout) != nil {
		t.Error("ended before anybody waits")
	}
	<-a.Done()
	if !errors.Is(a.Err(), context.DeadlineExceeded) {
		t.Errorf("asked for Done: %v", a.Err())
	}
	if rest := a.Rest(ContextError(a)); rest != parent {
		t.Errorf("nothing was left: %v", rest)
	}
	if a.Rest(nil) != nil || a.Rest(ErrClosed) != nil {
		t.Error("the call was over in the first go")
	}
	cancel()
	if !errors.Is(a.Err(), context.Canceled) {
		t.Errorf("the parent has ended: %v", a.Err())
	}
	if !errors.Is(NewAttempt(parent, 0).Err(), context.Canceled) {
		t.Error("the parent had ended")
	}
}

func TestAttemptLeaves(t *testing.T) {
	parent, cancel := context.WithCancel(context.Background())
	defer cancel()
	a := NewAttempt(parent, time.Hour)
	err := a.Leave("half")
	if !errors.Is(err, ErrTimeout) {
		t.Errorf("the first go ends with %v", err)
	}
	cancel()
	rest := a.Rest(ContextError(a)) // although the context has ended, somebody must clear up
	if rest == nil || rest.Err() == nil {
		t.Fatalf("the second go is made with %v", rest)
	}
	if left := TakeLeft(rest); left != "half" {
		t.Errorf("left: %v", left)
	}
	if TakeLeft(rest) != nil || TakeLeft(parent) != nil {
		t.Error("taken twice")
	}
}

func TestAttemptUntil(t *testing.T) {
	soon, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	deadline, _ := soon.Deadline()
	if until := NewAttempt(soon, time.Hour).Until(); until != deadline {
		t.Errorf("%v, which is not the deadline", until)
	}
	if until := NewAttempt(soon, time.Second).Until(); !until.Before(deadline) {
		t.Errorf("%v", until)
	}
}
