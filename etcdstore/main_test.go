package etcdstore

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"rallypoint/internal/etcdclient"
	"rallypoint/internal/etcdtest"
	"rallypoint/internal/testkit"
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
	s, err := Open(testkit.Within(t, 20*time.Second), config)
	testkit.Check(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// testArgs keep the disk of the machine that tests out of it.
var testArgs = []string{"--unsafe-no-fsync"}
