package client

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"rallypoint/core/control/controltest"
)

// TestFirstOf: the first answer counts; a server that fails or is silent does not hold it up, nor does
// any outlast it.
func TestFirstOf(t *testing.T) {
	errFinal, errDown := errors.New("final"), errors.New("down")
	final := func(err error) bool { return errors.Is(err, errFinal) }
	var running atomic.Int32
	ask := func(ctx context.Context, addr string) (string, error) {
		running.Add(1)
		defer running.Add(-1)
		switch addr {
		case "silent":
			<-ctx.Done()
			return "", ctx.Err()
		case "down":
			return "", errDown
		case "final":
			return "", errFinal
		}
		return addr, nil
	}
	for servers, want := range map[string]string{"a": "a", "a,b": "a", "down,b": "b", "silent,b": "b", "silent,down,silent,c": "c"} {
		got, err := firstOf(controltest.Context(t), servers, final, ask)
		if got != want || err != nil {
			t.Errorf("%s: %q, %v", servers, got, err)
		}
	}
	for servers, want := range map[string]error{"down,down": errDown, "final,a": errFinal, "down,final,a": errFinal} {
		if _, err := firstOf(controltest.Context(t), servers, final, ask); !errors.Is(err, want) {
			t.Errorf("%s: %v", servers, err)
		}
	}
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := firstOf(canceled, "silent,silent", final, ask); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if n := running.Load(); n != 0 {
		t.Errorf("%d servers are asked on", n)
	}
}
