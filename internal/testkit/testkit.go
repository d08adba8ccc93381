// Package testkit has what tests of several packages share: limits of their waiting,
// checks that end a test, logs, a clock, files of tokens and ports.
package testkit

import (
	"context"
	"crypto/rand"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Patience is how long a test waits for what must happen; nothing is asserted about it but
// that it ends.
const Patience = 30 * time.Second

// EndAtOnce is a variable of the environment for programs that a test starts and awaits.
// Built with the race detector they sleep for a second before they end, unless it is set.
const EndAtOnce = "GORACE=atexit_sleep_ms=20"

// Within returns a context for a test that hangs if it fails.
func Within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// Go starts a call and returns its error to come.
func Go(call func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- call() }()
	return done
}

// Eventually waits until cond holds, which no event tells: another process, say, makes it so.
// What takes long is asked for less and less often, since to ask may cost a whole command.
func Eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	pause := time.Millisecond
	for deadline := time.Now().Add(Patience); !cond(); pause = min(pause*5/4, 50*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v until %s", Patience, what)
		}
		time.Sleep(pause)
	}
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

// ReadFile returns what a file holds.
func ReadFile(t testing.TB, path string) []byte {
	t.Helper()
	return Must(os.ReadFile(path))(t)
}

// WriteFile makes a file, or replaces what it holds.
func WriteFile(t testing.TB, path string, content []byte) {
	t.Helper()
	Check(t, os.WriteFile(path, content, 0o644))
}

// TokenFile makes a file of these tokens, or of one of its own if none is given, which only
// this user may read.
func TokenFile(t testing.TB, tokens ...string) string {
	t.Helper()
	if len(tokens) == 0 {
		tokens = []string{rand.Text() + rand.Text()}
	}
	path := filepath.Join(t.TempDir(), "token")
	Check(t, os.WriteFile(path, []byte(strings.Join(tokens, "\n")+"\n"), 0o600))
	return path
}

// Descriptors is how many descriptors this process has open.
func Descriptors(t testing.TB) int {
	t.Helper()
	return len(Must(os.ReadDir("/proc/self/fd"))(t))
}

// FreePort returns a port on which nothing listens. It is below those that the system
// hands out, so that it stays free.
func FreePort(t testing.TB) int {
	t.Helper()
	for {
		port := 12000 + int(Must(rand.Int(rand.Reader, big.NewInt(18000)))(t).Int64())
		l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
		if err == nil {
			Check(t, l.Close())
			return port
		}
	}
}

// ReportCPU has a benchmark report the CPU time of this process, which other load hardly changes, from
// here to the call of its result.
func ReportCPU(b *testing.B) (end func()) {
	b.Helper()
	used := func() time.Duration {
		var u syscall.Rusage
		Check(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := used()
	return func() { b.ReportMetric(float64(used()-before)/float64(b.N), "cpu-ns/op") }
}
