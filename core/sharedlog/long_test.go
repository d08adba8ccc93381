//go:build long

package sharedlog

// long makes the tests of faults take minutes: make test-long.
const long = true
