package backoff

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestWait: pauses double up to the longest, each with half of it as jitter either way,
// and begin again after Reset.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(time.Second, 5*time.Second)
		paused := func(nominal time.Duration) {
			t.Helper()
			start := time.Now()
			if !b.Wait(t.Context()) {
				t.Error("its context has not ended")
			}
			if took := time.Since(start); took < nominal/2 || took >= nominal+nominal/2 {
				t.Errorf("paused for %v, want %v to half of it more or less", took, nominal)
			}
		}
		for _, nominal := range []time.Duration{1, 2, 4, 5, 5} {
			paused(nominal * time.Second)
		}
		b.Reset()
		paused(time.Second)
	})
}

// TestWaitEndsWithItsContext cancels a pause under way.
func TestWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		if New(time.Hour, time.Hour).Wait(ctx) {
			t.Error("it does not say that its context ended")
		}
		if took := time.Since(start); took != time.Minute {
			t.Errorf("it ended after %v, want a minute", took)
		}
	})
}

func TestJitter(t *testing.T) {
	const d = 100 * time.Millisecond
	least, most := d, d
	for range 10000 {
		got := Jitter(d)
		least, most = min(least, got), max(most, got)
	}
	if least < d/2 || least > d*6/10 || most >= d*3/2 || most < d*14/10 {
		t.Errorf("from %v to %v, want all of %v to %v", least, most, d/2, d*3/2)
	}
	if Below(0) != 0 {
		t.Error("there is a duration below 0")
	}
}
