package process

import (
	"testing"
	"time"
)

func TestStuckCheck(t *testing.T) {
	for text, want := range map[string]time.Duration{"": 0, "x": 0, "-1": 0, "0": 0, "NaN": 0, "1.5": 1500 * time.Millisecond} {
		if got := NewSleepDetector([]string{envUninterruptibleTimeout + "=" + text}).Timeout; got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
	c := NewSleepDetector([]string{envUninterruptibleTimeout + "=10"})
	state := byte('D')
	c.State = func(int) (byte, bool) { return state, true }
	procs := []*Process{{Pid: 7, exited: make(chan struct{})}}
	at := time.Unix(0, 0)
	for _, step := range []struct {
		state           byte
		after           int
		sleeping, stuck int
	}{{'S', 0, 0, 0}, {'D', 1, 1, 0}, {'D', 10, 0, 0}, {'R', 10, 0, 0}, {'D', 12, 1, 0}, {'D', 21, 0, 0}, {'D', 22, 0, 1}} {
		state = step.state
		sleeping, stuck := c.Look(procs, at.Add(time.Duration(step.after)*time.Second))
		if len(sleeping) != step.sleeping || len(stuck) != step.stuck {
			t.Errorf("after %d s: %v, %v", step.after, sleeping, stuck)
		}
	}
}
