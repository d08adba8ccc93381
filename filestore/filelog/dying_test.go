package filelog

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"rallypoint/internal/filetest"
	"rallypoint/internal/lockedfile"
	"rallypoint/internal/testkit"
)

func init() {
	if os.Getenv(roleVariable) == "dying" {
		runtime.LockOSThread() // the main thread
	}
}

// playDying opens a log and takes a lock of it. Then its main thread exits, by which the
// kernel takes the process for one that ends, and holds its locks until its input ends.
func playDying(dir, lock string) error {
	ctx := context.Background()
	l := New(dir, "job", nil)
	if _, err := l.Open(ctx); err != nil {
		return err
	}
	if lock == "run" {
		if _, err := l.lockRun(lockedfile.WaitLimit{Ctx: ctx}); err != nil {
			return err
		}
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	fmt.Println("dying")
	_, _, errno := syscall.Syscall(unix.SYS_EXIT, 0, 0, 0)
	return errno
}

// TestLogLeavesBesideOneThatDies: the kernel may need seconds to end a process, whose locks
// it gives back last. Those that leave meanwhile do not fail, and the last one cleans up.
func TestLogLeavesBesideOneThatDies(t *testing.T) {
	for _, lock := range []string{"run", "live"} {
		t.Run(lock, func(t *testing.T) {
			dir := t.TempDir()
			var nodes []*Log
			for range 3 {
				nodes = append(nodes, openLog(t, dir, nil))
			}
			cmd := exec.Command(os.Args[0], filetest.Elsewhere(dir), lock)
			cmd.Env = append(os.Environ(), roleVariable+"=dying")
			input := testkit.Must(cmd.StdinPipe())(t)
			output := testkit.Must(cmd.StdoutPipe())(t)
			testkit.Check(t, cmd.Start())
			defer cmd.Wait()
			defer input.Close()
			if _, err := output.Read(make([]byte, 10)); err != nil {
				t.Fatal(err)
			}
			for !lockedfile.IsDying(cmd.Process.Pid) { // it has said so before
				runtime.Gosched()
			}
			var busy atomic.Int64
			lockedfile.Flock = func(fd, how int) error {
				err := unix.Flock(fd, how)
				if err == unix.EWOULDBLOCK {
					busy.Add(1)
				}
				return err
			}
			defer func() { lockedfile.Flock = unix.Flock }()
			left := make(chan error, len(nodes))
			for _, l := range nodes {
				go func() {
					ctx, cancel := context.WithCancel(context.Background())
					cancel()
					left <- l.Close(ctx)
				}()
			}
			for busy.Load() < 10*lockedfile.LockBurst && len(left) < len(nodes) {
				runtime.Gosched()
			}
			testkit.Check(t, input.Close())
			for range nodes {
				if err := <-left; err != nil {
					t.Error(err)
				}
			}
			if names := testkit.Must(os.ReadDir(dir))(t); len(names) > 0 {
				t.Errorf("%v is left", names)
			}
		})
	}
}
