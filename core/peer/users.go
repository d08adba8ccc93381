package peer

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// defaultOverflow is the overflow user id of Linux unless it is configured.
const defaultOverflow = 65534

// overflowUser returns the id by which the kernel shows users that this process's user
// namespace does not map, and whether there may be such users.
func overflowUser() (uid uint32, ambiguous bool) {
	uid = defaultOverflow
	if text, err := os.ReadFile("/proc/sys/kernel/overflowuid"); err == nil {
		if n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32); err == nil {
			uid = uint32(n)
		}
	}
	text, err := os.ReadFile("/proc/self/uid_map")
	return uid, err != nil || strings.Join(strings.Fields(string(text)), " ") != "0 0 4294967295"
}

// Ids of people in /etc/passwd; those below are services', which run only while they have a
// process.
const (
	firstLogin = 1000
	lastLogin  = 60000
)

// otherUsers reports whether users other than this process's and root have, or may have,
// processes on this machine. It is called only if the kernel does not reveal a connection's user,
// and returns true if it cannot tell.
func otherUsers() bool {
	self := uint32(os.Geteuid())
	return otherLogins(passwdFile, self) || otherProcesses(self)
}

// passwdFile lists the users of a machine that are in no directory.
const passwdFile = "/etc/passwd"

func otherLogins(passwd string, self uint32) bool {
	other := false
	err := eachLogin(passwd, func(_ string, uid uint64) bool {
		other = uint32(uid) != self && uid >= firstLogin && uid < lastLogin
		return !other
	})
	return other || err != nil && !os.IsNotExist(err)
}

// eachLogin calls f for each user of a file until it returns false.
func eachLogin(passwd string, f func(name string, uid uint64) bool) error {
	file, err := os.Open(passwd)
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Split(lines.Text(), ":")
		if len(fields) < 3 {
			continue
		}
		if uid, err := strconv.ParseUint(fields[2], 10, 32); err == nil && !f(fields[0], uid) {
			return nil
		}
	}
	return lines.Err()
}

func otherProcesses(self uint32) bool {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return true
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // it has ended
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok || st.Uid != 0 && st.Uid != self {
			return true
		}
	}
	return false
}
