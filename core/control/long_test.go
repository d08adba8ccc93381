//go:build long

package control

// long makes the tests of faults take minutes: make test-long.
const long = true
