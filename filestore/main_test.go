package filestore

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// The test binary runs itself again as other processes that use a file: what they
// do is named by this variable.
const roleVariable = "FILESTORE_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(play(role, os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

// within returns a context for a test that hangs if it fails.
func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func newPath(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "store")
}

// mustOpen opens a store that is closed with the test.
func mustOpen(t testing.TB, path string, worldSize int, options *Options) *Store {
	t.Helper()
	s, err := Open(within(t, 10*time.Second), path, worldSize, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func must[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	return must(os.ReadFile(path))(t)
}

func writeFile(t testing.TB, path string, content []byte) {
	t.Helper()
	check(t, os.WriteFile(path, content, 0o644))
}
