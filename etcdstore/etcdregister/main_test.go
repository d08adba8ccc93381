package etcdregister

import (
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"rallypoint/etcdstore"
	"rallypoint/internal/etcdclient"
	"rallypoint/internal/etcdtest"
	"rallypoint/internal/testkit"
)

// roleVariable makes the test binary a node when it runs itself again.
const roleVariable = "ETCDREGISTER_TEST_ROLE"

// shared is the etcd that most tests share.
var shared etcdtest.Shared

func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) != "" {
		os.Exit(playNode(os.Args[1:]))
	}
	shared.M = m
	goleak.VerifyTestMain(&shared)
}

func mustOpen(t testing.TB, config etcdclient.Config) *etcdstore.Store {
	t.Helper()
	s, err := etcdstore.Open(testkit.Within(t, 20*time.Second), config)
	testkit.Check(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}
