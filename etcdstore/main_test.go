package etcdstore

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"rallypoint/internal/etcdclient"
	"rallypoint/internal/etcdtest"
	"rallypoint/internal/testkit"
)

// shared is the etcd that most tests share.
var shared etcdtest.Shared

func TestMain(m *testing.M) {
	shared.M = m
	goleak.VerifyTestMain(&shared)
}

func mustOpen(t testing.TB, config etcdclient.Config) *Store {
	t.Helper()
	s, err := Open(testkit.Within(t, 20*time.Second), config)
	testkit.Check(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}
