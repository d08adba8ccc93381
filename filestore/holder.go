package filestore

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// holder names the process that holds the file's lock, for a person to look at:
// a process that hangs while it holds the lock stops all others. The kernel does
// not tell about processes of other machines and containers.
func (f *file) holder() string {
	const unknown = "another process"
	table, err := os.ReadFile("/proc/locks")
	if err != nil {
		return unknown
	}
	where := fmt.Sprintf("%02x:%02x:%d", unix.Major(f.dev), unix.Minor(f.dev), f.ino)
	for lines := bufio.NewScanner(bytes.NewReader(table)); lines.Scan(); {
		// 1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF
		// Those who wait have an arrow behind the number.
		fields := strings.Fields(lines.Text())
		if len(fields) >= 6 && fields[1] == "FLOCK" && fields[5] == where && fields[4] > "0" {
			return "process " + fields[4]
		}
	}
	return unknown
}
