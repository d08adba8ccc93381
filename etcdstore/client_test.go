package etcdstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"rallypoint/core/store"
)

// Each operation is applied once, whatever answers are lost and however late what was
// given up gets through.
func TestModelOverATreacherousNetwork(t *testing.T) {
	t.Parallel()
	config := aConfig(t)
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
		network := s.client.betray(t)
		m := store.NewMemory(store.NewEngine(store.Limits{}))
		actions := modelActions(ctx, m, func(*rapid.T) *Store { return s })
		names := []string{"set", "multi_set", "add", "compare_set", "append", "delete"}
		for range 20 {
			actions[rapid.SampledFrom(names).Draw(t, "action")](t)
			if rapid.Bool().Draw(t, "late") {
				network.deliver(1 << 10)
			}
			actions[""](t)
		}
	})
}

// A log over such a network has each entry once, and creates and leaves its run.
func TestLogOverATreacherousNetwork(t *testing.T) {
	t.Parallel()
	config := aConfig(t)
	const appends = 30
	l := newLog(t, config)
	l.client.betray(t)
	ctx := within(t, time.Minute)
	must(l.Open(ctx))(t)
	other := aLog(t, config)
	equal(t, other.generation, l.generation)
	var want []string
	for i := range appends {
		check(t, l.Heartbeat(ctx, "s", time.Minute))
		appendText(t, l, fmt.Sprint(i))
		want = append(want, fmt.Sprint(i))
	}
	if have := (&reader{l: other}).read(t, appends); !slices.Equal(have, want) {
		t.Fatalf("have %q", have)
	}
	check(t, other.Close(ctx))
	check(t, l.Close(ctx))
	c := must(newClient(config))(t)
	defer c.close()
	kvs, _, err := c.list(ctx, "left", rangeRequest{key: config.Prefix, end: prefixEnd(config.Prefix)})
	check(t, err)
	if len(kvs) > 0 && !strings.HasSuffix(kvs[0].key, "/l/s") {
		t.Fatalf("%d keys are left", len(kvs))
	}
}

// A watch ends when its member dies, and when it does not answer any more.
func TestWatchEndsWithItsMember(t *testing.T) {
	t.Parallel()
	for name, sig := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := StartServer(within(t, time.Minute), ServerConfig{Binary: testBinary(t), Args: testArgs})
			check(t, err)
			t.Cleanup(s.Stop)
			c := must(newClient(Config{Endpoints: []string{s.Endpoint()}}))(t)
			defer c.close()
			w, err := c.watch(within(t, time.Minute), watchRequest{key: "k", revision: 1})
			check(t, err)
			defer w.close()
			must(w.next())(t)
			ended := make(chan error, 1)
			go func() { _, err := w.next(); ended <- err }()
			s.process.signal(sig)
			select {
			case err := <-ended:
				if err == nil {
					t.Fatal("it goes on")
				}
			case <-time.After(2 * (pingAfter + pingTimeout)):
				t.Fatal("it does not end")
			}
		})
	}
}
