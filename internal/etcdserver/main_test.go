package etcdserver

import (
	"context"
	"os"
	"testing"
	"time"

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
