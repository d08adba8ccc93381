package process

import (
	"os"
	"syscall"
	"testing"

	"rallypoint/internal/testkit"
)

// TestGuardIsReplaced kills the guard: another one takes its place, which knows what the first
// was told, and ends the workers when the agent is gone.
func TestGuardIsReplaced(t *testing.T) {
	log, lines := testkit.NewLog(t)
	f := NewForker(nil)
	defer f.Close()
	g, err := NewParentDeathGuard(f, "", "", "", "", "", log)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	worker, err := f.start([]string{"/bin/sleep", "1000"}, nil, []uintptr{null.Fd(), null.Fd(), null.Fd()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	g.Watch([]*Process{{Pid: worker}})
	g.mu.Lock()
	first := g.pid
	g.mu.Unlock()
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	lines.Await(t, "another takes its place", 1)
	g.mu.Lock()
	if g.pid == first {
		t.Error("the guard was not replaced")
	}
	_ = g.pipe.Close() // as the end of the agent does
	g.mu.Unlock()
	code := 0
	testkit.Eventually(t, "the worker has ended", func() (ended bool) {
		code, ended, _ = exitCode(worker, syscall.WNOHANG)
		return ended
	})
	if code != -int(syscall.SIGKILL) {
		t.Errorf("the worker ended with %d", code)
	}
	f.reap(worker)
}
