// Package descriptors tells how many files and connections this process may have open, how many
// it has, and whether a number of further ones will fit.
package descriptors

import (
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// Spare is the number of descriptors that a process needs besides its connections: logs,
// listeners, pipes, epoll.
const Spare = 64

// Limit is how many descriptors the process may have, math.MaxInt if that is not known. The Go
// runtime has raised the soft limit to the hard one.
func Limit() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil || limit.Cur > math.MaxInt {
		return math.MaxInt
	}
	return int(limit.Cur)
}

// Open is how many descriptors the process has; 0 if that is not known.
func Open() int {
	const folder = "/proc/self/fd"
	if info, err := os.Stat(folder); err == nil && info.Size() > 0 { // Linux 6.2 and newer count them
		return int(info.Size())
	}
	dir, err := os.Open(folder)
	if err != nil {
		return 0
	}
	defer func() { _ = dir.Close() }()
	names, _ := dir.Readdirnames(-1)
	return max(0, len(names)-1) // without dir
}

// Shortage says that the named part will have more connections than the limit allows, and what to
// do; "" if they fit.
func Shortage(what string, connections int) string {
	limit := Limit()
	if connections <= limit-Spare {
		return ""
	}
	return fmt.Sprintf("%s will have %d connections, and this process may have %d descriptors, %d of them for other things: "+
		"set LimitNOFILE or `ulimit -Hn` to at least %d where it is started", what, connections, limit, Spare, connections+Spare)
}
