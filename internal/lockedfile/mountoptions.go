package lockedfile

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// CheckLocksReach refuses a file system whose locks end at this machine although its
// files do not.
func (f *File) CheckLocksReach() error {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	if option := localLockOption(table, unix.Major(f.dev), unix.Minor(f.dev)); option != "" {
		return fmt.Errorf("%w over machines: it is mounted with %s", ErrNoLocks, option)
	}
	return nil
}

// localLockOption returns the option of an NFS mount by which its locks are this
// machine's own; "" if there is none. table is that of proc_pid_mountinfo(5).
func localLockOption(table []byte, major, minor uint32) string {
	device := fmt.Sprintf("%d:%d", major, minor)
	for line := range strings.Lines(string(table)) {
		mount, system, ok := strings.Cut(line, " - ")
		fields, types := strings.Fields(mount), strings.Fields(system)
		if !ok || len(fields) < 3 || len(types) < 3 || fields[2] != device || !strings.HasPrefix(types[0], "nfs") {
			continue
		}
		for option := range strings.SplitSeq(types[2], ",") {
			switch option {
			case "nolock", "local_lock=flock", "local_lock=all":
				return option
			}
		}
	}
	return ""
}
