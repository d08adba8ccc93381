//go:build long

package run

// long is set by make test-long.
const long = true
