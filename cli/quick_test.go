//go:build !long

package cli

// long is set by make test-long.
const long = false
