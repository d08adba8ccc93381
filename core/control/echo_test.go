package control

import (
	"testing"
	"time"

	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/internal/testkit"
)

// TestEchoesAreAnswered has an idle node with a short lease: its beats are
// answered, and it stays connected.
func TestEchoesAreAnswered(t *testing.T) {
	s, addr := testServer(t, Config{})
	p := controltest.Params(addr, 1)
	p.LeaseTimeout = 300 * time.Millisecond
	obs := controltest.NewObserver()
	connected(t, p, obs)
	for deadline := time.Now().Add(testkit.Patience); s.metrics.FramesOut[wire.KindBeat].Load() < 3; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no beat is answered")
		}
	}
	in, out := s.metrics.FramesIn[wire.KindBeat].Load(), s.metrics.FramesOut[wire.KindBeat].Load()
	if out > in {
		t.Errorf("%d beats, %d answers", in, out)
	}
}
