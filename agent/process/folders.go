package process

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// LookingTime bounds how long EachFolder looks where others may make any number of names. It reads so
// many at a time.
const (
	LookingTime = 50 * time.Millisecond
	NamesAtOnce = 1000
)

// OpenFolder is a folder of this user that EachFolder has found.
type OpenFolder struct {
	*os.File
	base int // descriptor of the folder that it is in
}

// EachFolder calls do with the folders of a user in base whose names have a prefix and a suffix. It
// opens nothing of another user's, and looks for LookingTime at most.
func EachFolder(base, prefix, suffix string, user int, now func() time.Time, do func(f OpenFolder)) {
	dir, err := OpenFolderAt(unix.AT_FDCWD, base+"/.") // it may be a link itself
	if err != nil {
		return
	}
	defer func() { _ = dir.Close() }()
	fd, end := int(dir.Fd()), now().Add(LookingTime)
	for {
		names, err := dir.Readdirnames(NamesAtOnce)
		for _, name := range names {
			if !now().Before(end) {
				return
			}
			if !strings.HasPrefix(name, prefix) || !strings.HasSuffix(name, suffix) || !owns(user, fd, name) {
				continue
			}
			if f, err := OpenFolderAt(fd, name); err == nil {
				var info unix.Stat_t
				if unix.Fstat(int(f.Fd()), &info) == nil && int(info.Uid) == user {
					do(OpenFolder{f, fd})
				}
				_ = f.Close()
			}
		}
		if err != nil {
			return
		}
	}
}

// OpenFolderAt opens a folder, and fails for anything else: opening a FIFO could block.
func OpenFolderAt(base int, name string) (*os.File, error) {
	fd, err := unix.Openat(base, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// owns reports whether a name in a folder is of a folder of the user's.
func owns(user, base int, name string) bool {
	var info unix.Stat_t
	err := unix.Fstatat(base, name, &info, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && int(info.Uid) == user && info.Mode&unix.S_IFMT == unix.S_IFDIR
}

// Remove removes the folder with all that is in it. It goes by descriptors, so that a name which leads
// elsewhere by then costs nothing there.
func (f OpenFolder) Remove() {
	names, _ := f.Readdirnames(-1)
	for _, name := range names {
		if err := unix.Unlinkat(int(f.Fd()), name, 0); !errors.Is(err, unix.EISDIR) {
			continue
		}
		if inner, err := OpenFolderAt(int(f.Fd()), name); err == nil {
			OpenFolder{inner, int(f.Fd())}.Remove()
			_ = inner.Close()
		}
	}
	_ = unix.Unlinkat(f.base, f.Name(), unix.AT_REMOVEDIR)
}
