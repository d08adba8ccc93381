//go:build !long

package cli

import "testing"

// long is set by make test-long.
const long = false

// missing skips a test for which this machine lacks something.
func missing(t *testing.T, format string, args ...any) {
	t.Helper()
	t.Skipf(format, args...)
}
