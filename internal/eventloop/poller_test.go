package eventloop

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/internal/testkit"
)

// TestPollerWait: each event is returned once, whether the wait sleeps, may not, or has no time
// left.
func TestPollerWait(t *testing.T) {
	p := testkit.Must(NewPoller())(t)
	defer p.Close()
	pair := testkit.Must(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0))(t)
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	testkit.Check(t, p.Add(pair[0]))
	testkit.Must(p.Wait(false, time.Time{}))(t) // all descriptors have room
	past := time.Now().Add(-time.Second)
	for _, wait := range []struct {
		sleep bool
		until time.Time
	}{
		{false, time.Time{}}, {true, time.Time{}}, {true, past}, {true, time.Time{}}, {true, past}, {false, past},
	} {
		testkit.Must(unix.Write(pair[1], []byte("x")))(t)
		events := testkit.Must(p.Wait(wait.sleep, wait.until))(t)
		if len(events) != 1 || int(events[0].Fd) != pair[0] {
			t.Errorf("Wait(%v, %v) returned %v for a byte", wait.sleep, wait.until, events)
		}
		for _, sleep := range []bool{false, true} {
			if events := testkit.Must(p.Wait(sleep, past))(t); len(events) != 0 {
				t.Errorf("Wait(%v, past) returned %v behind that", sleep, events)
			}
		}
	}
	p.wake()
	if events := testkit.Must(p.Wait(true, time.Time{}))(t); len(events) != 1 || !p.woke(&events[0]) {
		t.Errorf("Wake made %v", events)
	}
}
