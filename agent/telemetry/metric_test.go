package telemetry

import (
	"encoding/json"
	"testing"
)

// sink keeps what it gets.
type sink struct{ texts [][]byte }

func (s *sink) Write(text []byte) (int, error) {
	s.texts = append(s.texts, text)
	return len(text), nil
}

// TestFlakiness is the share of the budget that a run has used.
func TestFlakiness(t *testing.T) {
	for _, test := range []struct {
		budget, left int
		failed       bool
		want         int64
	}{{10, 10, false, 0}, {10, 3, false, 63}, {10, 0, false, 90}, {0, 0, false, 0}, {10, 3, true, 100}, {0, 0, true, 100}} {
		sink := &sink{}
		c := &metrics{&Run{Role: "r", MaxRestarts: test.budget, Metrics: sink}}
		c.Take(State{Restarts: test.budget - test.left}, Measured{Failed: test.failed})
		var m metric
		if err := json.Unmarshal(sink.texts[0], &m); err != nil || m.Name != "workers.r.flakiness" || m.Value != test.want {
			t.Errorf("%d of %d left, failed %v: %s, want %d", test.left, test.budget, test.failed, sink.texts[0], test.want)
		}
	}
}
