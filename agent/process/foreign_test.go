package process

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/internal/testkit"
)

// TestForeignWorker stops a worker of another user, whom this one may not signal: the log says that,
// and nothing of the kernel's sleep. A process of its own plays the agent and gives up root.
func TestForeignWorker(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can start a process of another user")
	}
	const child = "RALLYPOINT_TEST_FOREIGN"
	if os.Getenv(child) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestForeignWorker$")
		cmd.Env = append(os.Environ(), child+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	f := NewForker(nil)
	defer f.Close()
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	reaper := NewReaper(f, false, false, "", logger)
	defer reaper.Close()
	read, write, err := os.Pipe() // the worker's stdin, by which it ends
	testkit.Check(t, err)
	group, err := StartWorkers(f, reaper, nil, []Launch{{0, []string{"cat"}, []string{"PATH=" + os.Getenv("PATH")}, []uintptr{read.Fd(), 1, 2}, nil, ""}}, logger)
	testkit.Check(t, err)
	testkit.Check(t, unix.Setresuid(65534, 65534, 65534))
	group.Stop(StopOptions{Signal: unix.SIGTERM, Grace: time.Millisecond})
	p := group.Procs[0]
	want := fmt.Sprintf("process %d of local rank 0 runs as another user (uid 0), whose processes this one may not signal", p.Pid)
	if text := log.String(); strings.Count(text, want) != 2 || strings.Contains(text, "SIGKILL") || strings.Contains(text, "sleep") {
		t.Errorf("the log does not say twice %q:\n%s", want, text)
	}
	testkit.Check(t, write.Close())
	testkit.Check(t, read.Close())
	_, _ = unix.Wait4(p.Pid, nil, 0, nil)
}
