package lockedfile

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// LockHolder names the process that holds the file's lock, for messages: a process
// that hangs while it holds the lock stops all others.
func (f *File) LockHolder() string {
	if pids := f.holders(); len(pids) > 0 && pids[0] > 0 {
		return fmt.Sprint("process ", pids[0])
	}
	return "another process"
}

// holders returns the processes that hold the file's lock. The kernel does not tell
// about those of other machines, and calls those of other containers 0.
func (f *File) holders() (pids []int) {
	table, err := os.ReadFile("/proc/locks")
	if err != nil {
		return nil
	}
	where := fmt.Sprintf("%02x:%02x:%d", unix.Major(f.dev), unix.Minor(f.dev), f.Ino)
	for line := range strings.Lines(string(table)) {
		// 1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF
		// Waiting processes have an arrow after the number.
		fields := strings.Fields(line)
		if len(fields) < 6 || fields[1] != "FLOCK" || fields[5] != where {
			continue
		}
		if pid, err := strconv.Atoi(fields[4]); err == nil {
			pids = append(pids, max(pid, 0))
		}
	}
	return pids
}

// HoldsLock reports whether a process holds a lock on the file that info describes: by the
// files that it has open, since /proc/locks calls the device of some file systems (btrfs,
// overlays) otherwise than stat(2) does. It takes the rights of the process's user or root.
func HoldsLock(pid int, info os.FileInfo) bool {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fdinfo", pid))
	if err != nil {
		return false
	}
	for _, fd := range entries {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, fd.Name()))
		// lock:	1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF
		if err != nil || !bytes.Contains(text, []byte(": FLOCK ")) {
			continue
		}
		if open, err := os.Stat(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name())); err == nil && os.SameFile(open, info) {
			return true
		}
	}
	return false
}
