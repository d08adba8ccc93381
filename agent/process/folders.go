package process

import (
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// LookingTime bounds how long EachFolder looks where others may make any number of names. It reads so
// many at a time.
const (
	LookingTime = 50 * time.Millisecond
	NamesAtOnce = 1000
)

// EachFolder calls do with the folders of a user in base whose names have a prefix and a suffix, and
// with base itself. It opens nothing of another user's, and looks for LookingTime at most.
func EachFolder(base, prefix, suffix string, user int, now func() time.Time, do func(in *os.Root, name string, folder *os.File)) {
	in, err := os.OpenRoot(base + "/.") // of a FIFO, which would wait for a writer, that is an error
	if err != nil {
		return
	}
	defer func() { _ = in.Close() }()
	dir, err := in.Open(".")
	if err != nil {
		return
	}
	defer func() { _ = dir.Close() }()
	for end := now().Add(LookingTime); ; {
		names, err := dir.Readdirnames(NamesAtOnce)
		for _, name := range names {
			if !now().Before(end) {
				return
			}
			if !strings.HasPrefix(name, prefix) || !strings.HasSuffix(name, suffix) || folderOwner(in.Lstat(name)) != user {
				continue
			}
			if f, err := in.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0); err == nil {
				if folderOwner(f.Stat()) == user {
					do(in, name, f)
				}
				_ = f.Close()
			}
		}
		if err != nil {
			return
		}
	}
}

// folderOwner is the user who owns a folder; -1 of anything else.
func folderOwner(info fs.FileInfo, err error) int {
	if err != nil || !info.IsDir() {
		return -1
	}
	return int(info.Sys().(*syscall.Stat_t).Uid)
}
