//go:build !long

package control

// long is set by make test-long.
const long = false
