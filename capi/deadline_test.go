package main

import (
	"context"
	"errors"
	"testing"
	"time"
)

func in(parent context.Context, d time.Duration) *deadline {
	return &deadline{Context: parent, at: time.Now().Add(d)}
}

func TestDeadlinePasses(t *testing.T) {
	for _, ask := range []bool{false, true} {
		d := in(context.Background(), 10*time.Millisecond)
		if d.Err() != nil {
			t.Fatal("ended at once")
		}
		if ask {
			<-d.Done()
		} else {
			time.Sleep(time.Until(d.at))
		}
		if !errors.Is(d.Err(), context.DeadlineExceeded) {
			t.Errorf("asked for Done %v: %v", ask, d.Err())
		}
		<-d.Done()
		d.finish()
	}
}

func TestDeadlineFinishes(t *testing.T) {
	for _, ask := range []bool{false, true} {
		d := in(context.Background(), time.Hour)
		if ask {
			d.Done()
		}
		d.finish()
		<-d.Done()
		if !errors.Is(d.Err(), context.Canceled) {
			t.Errorf("asked for Done %v: %v", ask, d.Err())
		}
	}
}

func TestDeadlineOfTheParent(t *testing.T) {
	parent, cancel := context.WithTimeout(context.Background(), time.Minute)
	d := in(parent, time.Hour)
	if at, _ := d.Deadline(); time.Until(at) > time.Minute {
		t.Error("the parent's deadline is the earlier one")
	}
	cancel()
	if d.Err() == nil {
		t.Error("the parent has ended")
	}
	<-d.Done()

	// Derived contexts end with it, as with those of the standard library.
	d = in(context.Background(), 10*time.Millisecond)
	child, stop := context.WithCancel(d)
	defer stop()
	<-child.Done()
	if !errors.Is(child.Err(), context.DeadlineExceeded) {
		t.Error(child.Err())
	}
	d.finish()
}
