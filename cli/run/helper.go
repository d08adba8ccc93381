package run

import (
	"bufio"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// helperScript is the beginning of each helper's script.
//
//go:embed helper.py
var helperScript string

// pluginPatience bounds how long an interpreter may take to load a plug-in, and the
// plug-in for one request. Only tests change it.
var pluginPatience = time.Minute

// helper is a child interpreter that keeps a plug-in of Python. It is no child of this
// process: see helper.py.
type helper struct {
	conn  *os.File // a socket
	pidfd int      // -1 if the system has none
}

// errHelper is why a plug-in cannot be had.
type errHelper string

func (e errHelper) Error() string { return string(e) }

// startHelper starts an interpreter with a script that keeps a plug-in, and waits until
// it has it. It does so before the process has other children. The error is an errHelper
// if the interpreter or the plug-in has failed.
func startHelper(interpreter, script string, env []string, args ...string) (*helper, error) {
	if _, err := exec.LookPath(interpreter); err != nil {
		return nil, errHelper("Python was not asked: " + err.Error())
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	theirs := os.NewFile(uintptr(pair[1]), "helper")
	if err := unix.SetNonblock(pair[0], true); err != nil {
		_, _ = unix.Close(pair[0]), theirs.Close()
		return nil, err
	}
	h := &helper{os.NewFile(uintptr(pair[0]), "helper"), -1}
	cmd := exec.Command(interpreter, append([]string{"-c", helperScript + script, strconv.FormatFloat(pluginPatience.Seconds(), 'f', -1, 64)}, args...)...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, theirs, theirs, os.Stderr
	err = cmd.Start()
	_ = theirs.Close()
	if err != nil {
		_ = h.conn.Close()
		return nil, errHelper(err.Error())
	}
	_ = h.conn.SetReadDeadline(time.Now().Add(pluginPatience + leeway))
	line, err := bufio.NewReader(io.LimitReader(h.conn, 4096)).ReadString('\n')
	if err != nil {
		_ = cmd.Process.Kill() // if it has not come as far as to leave us
	}
	_ = cmd.Wait()
	_ = h.conn.SetReadDeadline(time.Time{})
	pid, found := strings.CutPrefix(strings.TrimSpace(line), "ok ")
	if n, err := strconv.Atoi(pid); found && err == nil {
		if h.pidfd, err = unix.PidfdOpen(n, 0); err != nil {
			h.pidfd = -1
		}
		return h, nil
	}
	_ = h.conn.Close()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, errHelper(fmt.Sprintf("%s did not answer within %v", interpreter, pluginPatience))
	case err != nil:
		return nil, errHelper(interpreter + " ended without an answer")
	}
	return nil, errHelper(strings.TrimSpace(line))
}

// leeway is how much longer we wait than the helper does, so that it can say where it
// hangs.
const leeway = 2 * time.Second

// close lets the plug-in end, and kills it if it does not within the patience.
func (h *helper) close(patience time.Duration) {
	if raw, err := h.conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
	}
	_ = h.conn.SetReadDeadline(time.Now().Add(patience))
	_, err := io.Copy(io.Discard, h.conn) // ends with the helper
	_ = h.conn.Close()
	if h.pidfd < 0 {
		return
	}
	if err != nil {
		_ = unix.PidfdSendSignal(h.pidfd, unix.SIGKILL, nil, 0)
	}
	_ = unix.Close(h.pidfd)
}
