package journal

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// checkDir refuses a data directory that belongs to another user than root, or to which others
// can write: they could put anything there, and truncate the mapped file.
func checkDir(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return fmt.Errorf("data directory %s: %w", dir, err)
	case !info.IsDir():
		return fmt.Errorf("data directory %s is not a directory; give another --data-dir", dir)
	}
	fault := foreign(info, dir)
	switch {
	case fault == "":
		return nil
	case info.Mode().Perm()&0o022 != 0: // of a volume that is a group's, for instance
		return fmt.Errorf("data directory %s %s; chmod go-w it, or give another --data-dir, such as one below it, which is made: %s",
			dir, fault, filepath.Join(dir, "rallypoint"))
	}
	return fmt.Errorf("data directory %s %s; give another --data-dir", dir, fault)
}

// foreign says why other users control a file or directory; "" if they do not. This process can
// make files in dir.
func foreign(info os.FileInfo, dir string) string {
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		return fmt.Sprintf("may be written to by others (mode %04o)", mode)
	}
	if who, own := ownerOf(info), os.Geteuid(); who > 0 && who != own && who != ownerOfNew(dir) {
		return fmt.Sprintf("belongs to user %d, this process to user %d", who, own)
	}
	return ""
}

// ownerOf returns to which user a file, directory or process (its folder of /proc) belongs; -1
// if it cannot be known.
func ownerOf(info os.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}

// ownerOfNew returns the owner of a new file of this process in a directory: a network file
// system may map the process to another user. If it cannot make one there, it returns root, which
// is trusted anyway.
func ownerOfNew(dir string) int {
	f, err := os.OpenFile(filepath.Join(dir, "new-"+rand.Text()), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0
	}
	defer os.Remove(f.Name())
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0
	}
	return max(ownerOf(info), 0)
}
