package etcdstore

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// envTestBinary names the etcd that the tests start; `make test-go` builds it and
// sets it.
const envTestBinary = "RALLYPOINT_TEST_ETCD"

// The roles in which the test binary runs itself again are named by this variable.
const roleVariable = "ETCDSTORE_TEST_ROLE"

var shared struct {
	once   sync.Once
	server *Server
	err    error
	count  atomic.Int64
}

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(play(role, os.Args[1:]))
	}
	code := m.Run()
	if shared.server != nil {
		shared.server.Stop()
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func testBinary(t testing.TB) string {
	t.Helper()
	if path := os.Getenv(envTestBinary); path != "" {
		return path
	}
	built, _ := filepath.Glob("../.tools/etcd-*/etcd")
	if len(built) == 0 {
		t.Skip("there is no etcd to test with; `make etcd` builds one")
	}
	return must(filepath.Abs(built[len(built)-1]))(t)
}

// anEtcd is the etcd that most tests share.
func anEtcd(t testing.TB) *Server {
	t.Helper()
	binary := testBinary(t)
	shared.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		shared.server, shared.err = StartServer(ctx, ServerConfig{Binary: binary, Retries: 1, Args: testArgs})
	})
	check(t, shared.err)
	return shared.server
}

// aConfig is a configuration for the shared etcd with a prefix of its own.
func aConfig(t testing.TB) Config {
	t.Helper()
	s := anEtcd(t)
	return Config{Endpoints: []string{s.Endpoint()}, Prefix: fmt.Sprintf("/test/%d", shared.count.Add(1)), Timeout: 20 * time.Second}
}

func mustOpen(t testing.TB, config Config) *Store {
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
