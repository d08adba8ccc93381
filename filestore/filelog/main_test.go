package filelog

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// roleVariable names what the test binary does when it runs itself again as another node.
const roleVariable = "FILELOG_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(play(role, os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

// play is the main function of the other processes.
func play(role string, args []string) int {
	var err error
	switch role {
	case "append":
		err = playAppend(args[0], args[1])
	case "narrow":
		err = playNarrow(args[0], args[1])
	case "forbidden":
		err = playForbidden(args[0])
	case "listing":
		err = playListing(args[0])
	case "dying":
		err = playDying(args[0], args[1])
	default:
		err = fmt.Errorf("no such role: %s", role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// within returns a context for a test that hangs if it fails.
func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// begin runs a call in a goroutine and returns its error to come.
func begin(call func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- call() }()
	return done
}

func must[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		check(t, err)
		return value
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	return must(os.ReadFile(path))(t)
}

func writeFile(t testing.TB, path string, content []byte) {
	t.Helper()
	check(t, os.WriteFile(path, content, 0o644))
}
