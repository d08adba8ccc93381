// Package testkit has what tests of several packages share: limits of their waiting, and
// checks that end a test.
package testkit

import (
	"context"
	"testing"
	"time"
)

// Within returns a context for a test that hangs if it fails.
func Within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// Must returns the value of a call that must succeed: Must(f())(t).
func Must[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		Check(t, err)
		return value
	}
}

// Check ends the test if there is an error.
func Check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Equal ends the test if the two differ.
func Equal[T comparable](t testing.TB, have, want T) {
	t.Helper()
	if have != want {
		t.Fatalf("have %v, want %v", have, want)
	}
}
