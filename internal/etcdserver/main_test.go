package etcdserver

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

const (
	roleVariable  = "ETCDSERVER_TEST_ROLE" // what the test binary does when it runs itself again
	envTestBinary = "RALLYPOINT_TEST_ETCD" // the etcd to test with
)

func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) != "" {
		os.Exit(playParent())
	}
	goleak.VerifyTestMain(m)
}

func testBinary(t testing.TB) string {
	t.Helper()
	path := os.Getenv(envTestBinary)
	if path == "" {
		t.Skip("there is no etcd to test with; `make etcd` builds one, and RALLYPOINT_TEST_ETCD names it")
	}
	return path
}
