//go:build long

package cli

import "testing"

// long makes the tests of faults that last take minutes: make test-long.
const long = true

// missing ends a test for which this machine lacks something: whoever runs the long tests wants to
// know that the faults were tried.
func missing(t *testing.T, format string, args ...any) {
	t.Helper()
	t.Fatalf(format, args...)
}
