package process

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const maxOutput = 1 << 20

// Output runs a program until it exits or ctx ends, and returns its stdout. The exit code does
// not count. The reaper leaves the program alone, and no worker may be stopped meanwhile.
func (f *Forker) Output(ctx context.Context, argv, env []string) ([]byte, error) {
	null, err1 := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	read, write, err2 := os.Pipe()
	if err := errors.Join(err1, err2); err != nil {
		_, _, _ = null.Close(), read.Close(), write.Close()
		return nil, err
	}
	defer func() { _, _ = null.Close(), read.Close() }()
	pid, err := f.start(argv, env, []uintptr{null.Fd(), write.Fd(), null.Fd()}, nil)
	_ = write.Close()
	if err != nil {
		return nil, err
	}
	f.keep(pid)
	unhook := context.AfterFunc(ctx, func() { _ = read.SetReadDeadline(time.Unix(1, 0)) })
	defer unhook()
	text, err := io.ReadAll(io.LimitReader(read, maxOutput))
	_ = unix.Kill(-pid, unix.SIGKILL)
	f.awaitKilled(pid)
	return text, err
}

// awaitKilled waits for the end of a killed child, and reaps it.
func (f *Forker) awaitKilled(pid int) {
	if pidfd := openPidfd(pid); pidfd != nil {
		(&orphan{pid: pid, pidfd: pidfd}).await(time.Now().Add(leastDeathWait))
		_ = pidfd.Close()
	}
	f.reap(pid)
}
