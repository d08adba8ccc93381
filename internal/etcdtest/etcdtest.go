// Package etcdtest finds the etcd that tests start, and starts one for all tests of a
// package.
package etcdtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"rallypoint/internal/etcdclient"
	"rallypoint/internal/etcdserver"
	"rallypoint/internal/testkit"
)

// envBinary names the etcd that tests start; `make test` sets this.
const envBinary = "RALLYPOINT_TEST_ETCD"

// Binary returns the etcd to test with, or skips the test.
func Binary(t testing.TB) string {
	t.Helper()
	if path := os.Getenv(envBinary); path != "" {
		return path
	}
	dir, err := os.Getwd()
	for err == nil && dir != "/" {
		if built, _ := filepath.Glob(filepath.Join(dir, ".tools", "etcd-*", "etcd")); len(built) > 0 {
			return built[len(built)-1]
		}
		dir = filepath.Dir(dir)
	}
	path, err := exec.LookPath("etcd")
	if err != nil {
		t.Skip("there is no etcd to test with; `make etcd` builds one")
	}
	return path
}

// args keep the disk of the machine that tests out of it.
func args(more ...string) []string { return append(more, "--unsafe-no-fsync") }

// Start starts an etcd that ends with the test.
func Start(t testing.TB, more ...string) *etcdserver.Server {
	t.Helper()
	s, err := etcdserver.Start(testkit.Within(t, time.Minute), etcdserver.Config{Binary: Binary(t), Args: args(more...)})
	testkit.Check(t, err)
	t.Cleanup(s.Stop)
	return s
}

// Shared is an etcd that the tests of a package share. Its Run, around that of the
// package, stops it in the end:
//
//	func TestMain(m *testing.M) { shared.M = m; goleak.VerifyTestMain(&shared) }
type Shared struct {
	M *testing.M

	once   sync.Once
	server *etcdserver.Server
	err    error

	prefixes atomic.Int64 // handed out
}

// Config is a configuration for this etcd with a prefix of its own.
func (s *Shared) Config(t testing.TB) etcdclient.Config {
	t.Helper()
	return etcdclient.Config{
		Endpoints: []string{s.Endpoint(t)}, Prefix: fmt.Sprintf("/test/%d", s.prefixes.Add(1)), Timeout: 20 * time.Second,
	}
}

// Endpoint starts the etcd, if it does not run yet, and returns its host:port.
func (s *Shared) Endpoint(t testing.TB) string {
	t.Helper()
	binary := Binary(t)
	s.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		s.server, s.err = etcdserver.Start(ctx, etcdserver.Config{Binary: binary, Retries: 1, Args: args()})
	})
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.server.Endpoint()
}

// Run runs the tests.
func (s *Shared) Run() int {
	code := s.M.Run()
	if s.server != nil {
		s.server.Stop()
	}
	return code
}
