//go:build long

package cli

// long makes the tests of faults that last take minutes: make test-long.
const long = true
