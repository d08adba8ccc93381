package filestore

import (
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"rallypoint/internal/testkit"
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

func newPath(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "store")
}

// mustOpen opens a store that is closed with the test.
func mustOpen(t testing.TB, path string, worldSize int, options *Options) *Store {
	t.Helper()
	s, err := Open(testkit.Within(t, testkit.Patience), path, worldSize, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}
