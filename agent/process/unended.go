package process

import (
	"bytes"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// foreign says that this process may not signal another one, and what to do; "" if it may. That is so
// for a worker that sudo or a program with the set-user-ID bit runs as another user.
func foreign(pid int) string {
	if unix.Kill(pid, 0) != unix.EPERM {
		return ""
	}
	return fmt.Sprintf("runs as another user (uid %s), whose processes this one may not signal; end it as that user (sudo kill %d), or start the job as that user", realUID(pid), pid)
}

// realUID is the user of a process as kill compares it; "unknown" if that is not known.
func realUID(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range bytes.Lines(text) {
		if fields := bytes.Fields(line); len(fields) > 1 && string(fields[0]) == "Uid:" {
			return string(fields[1])
		}
	}
	return "unknown"
}

// unended says why a process is there although it was sent SIGKILL.
func unended(pid int) string {
	if why := foreign(pid); why != "" {
		return why
	}
	if stat, ok := readStat(pid); ok && stat.state == 'D' {
		return "is in uninterruptible sleep (state D), which no signal ends: see what its disk, network file system or driver waits for"
	}
	return "has not ended after SIGKILL"
}
