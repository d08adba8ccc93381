package journal

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	lockName    = "lock"
	lockWait    = 2 * time.Second
	lockEvery   = 20 * time.Millisecond
	maxLockText = 200
)

// takeLock takes the lock of a data directory, until the file is closed. It is the system's, so that
// it ends with the process, however that ends; the text in it only names the holder.
func takeLock(dir string, wait time.Duration) (*os.File, error) {
	wait = cmp.Or(wait, lockWait)
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory %s: %w", dir, err)
	}
	for deadline := time.Now().Add(wait); ; time.Sleep(lockEvery) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			sign(f)
			return f, nil
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EWOULDBLOCK):
			f.Close()
			return nil, fmt.Errorf("cannot lock %s: %w; a data directory has to be on a file system with locks", path, err)
		case time.Now().After(deadline):
			who := holder(f)
			f.Close()
			return nil, fmt.Errorf("data directory %s is in use by another server%s, waited %v: "+
				"stop that one, or give this one another --data-dir", dir, who, wait)
		}
	}
}

// sign writes which process has the lock. Only readers use it, so that a full disk does
// not matter.
func sign(f *os.File) {
	host, _ := os.Hostname()
	_ = f.Truncate(0)
	_, _ = f.WriteAt(fmt.Appendf(nil, "pid %d on %s\n", os.Getpid(), host), 0)
}

// holder reads which process has the lock.
func holder(f *os.File) string {
	text, _ := io.ReadAll(io.LimitReader(f, maxLockText))
	if who := strings.TrimSpace(string(text)); who != "" {
		return " (" + who + ")"
	}
	return ""
}
