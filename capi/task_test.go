package main

import (
	"context"
	"runtime"
	"testing"
	"time"

	"rallypoint/core/rendezvous"
)

// A caller that does not wait for the end of a task leaves alone what the task may be
// writing just then.
func TestPendingTask(t *testing.T) {
	want := rendezvous.Outcome{Round: 1, StoreAddr: "127.0.0.1"}
	for range 100 {
		var f singleFlight[rendezvous.Outcome]
		next := func(context.Context) (rendezvous.Outcome, error) {
			runtime.Gosched()
			return want, nil
		}
		got, err := f.run(0, true, next)
		if err == errPending && got.Round != 0 {
			t.Fatalf("a task under way has the value %+v", got)
		}
		for err == errPending {
			got, err = f.run(time.Millisecond, true, next)
		}
		if err != nil || got.Round != want.Round {
			t.Fatalf("%+v, %v", got, err)
		}
	}
}
