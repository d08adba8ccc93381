package etcdstore

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"rallypoint/internal/etcdclient"
	"rallypoint/internal/etcdtest"
)

// shared is the etcd that most tests share.
var shared etcdtest.Shared

// prefixes counts the configurations that tests were given.
var prefixes atomic.Int64

func TestMain(m *testing.M) {
	shared.M = m
	goleak.VerifyTestMain(&shared)
}

// aConfig is a configuration for the shared etcd with a prefix of its own.
func aConfig(t testing.TB) etcdclient.Config {
	t.Helper()
	return etcdclient.Config{
		Endpoints: []string{shared.Endpoint(t)}, Prefix: fmt.Sprintf("/test/%d", prefixes.Add(1)), Timeout: 20 * time.Second,
	}
}

func mustOpen(t testing.TB, config etcdclient.Config) *Store {
	t.Helper()
	s, err := Open(within(t, 20*time.Second), config)
	check(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// within returns a context for a test that hangs if it fails.
func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func must[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		check(t, err)
		return value
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[T comparable](t testing.TB, have, want T) {
	t.Helper()
	if have != want {
		t.Fatalf("have %v, want %v", have, want)
	}
}

// testArgs keep the disk of the machine that tests out of it.
var testArgs = []string{"--unsafe-no-fsync"}
