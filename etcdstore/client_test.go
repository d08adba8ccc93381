package etcdstore

import (
	"context"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"rallypoint/core/store"
	"rallypoint/internal/etcdtest"
)

// Each operation is applied once, whatever answers are lost and however late what was
// given up gets through.
func TestModelOverATreacherousNetwork(t *testing.T) {
	t.Parallel()
	config := shared.Config(t)
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		if run++; run > 10 {
			return // each takes its time; a failure is shrunk all the same
		}
		config := config
		config.Prefix += fmt.Sprintf("/%d", run)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		s, err := Open(ctx, config)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		network := etcdtest.MakeLossy(s.client, t)
		m := store.NewMemory(store.NewEngine(store.Limits{}))
		actions := modelActions(ctx, m, func(*rapid.T) *Store { return s })
		names := []string{"set", "multi_set", "add", "compare_set", "append", "delete"}
		for range 20 {
			actions[rapid.SampledFrom(names).Draw(t, "action")](t)
			if rapid.Bool().Draw(t, "late") {
				network.Deliver(1 << 10)
			}
			actions[""](t)
		}
	})
}
