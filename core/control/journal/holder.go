package journal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"rallypoint/internal/lockedfile"
)

// Holder returns which process has a data directory; 0 if none has. The text of the lock
// proposes it, the kernel decides: anyone with write access could name any process. The directory
// has to be one that Open takes; root may ask of another user's, too, if the process is that
// user's.
func Holder(dir string) (pid int, err error) {
	info, err := os.Stat(dir)
	if err != nil {
		return 0, fmt.Errorf("data directory %s: %w", dir, err)
	}
	fault := foreign(info, dir)
	if fault != "" && (os.Geteuid() != 0 || info.Mode().Perm()&0o022 != 0) {
		return 0, fmt.Errorf("data directory %s %s", dir, fault)
	}
	f, err := openLock(dir)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if err == nil {
		return 0, nil
	}
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return 0, fmt.Errorf("data directory %s: %w", dir, err)
	}
	pid, host, err := signature(f)
	if err != nil {
		return 0, fmt.Errorf("data directory %s is in use, but %w", dir, err)
	}
	if own, err := os.Hostname(); err == nil && host != "" && own != host {
		return 0, fmt.Errorf("data directory %s is in use by process %d on %s: run this there", dir, pid, host)
	}
	lock, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if !lockedfile.HoldsLock(pid, lock) {
		return 0, fmt.Errorf("data directory %s is in use, but by all that this process can see not by process %d, which its lock names: "+
			"run this as the server's user and, of a container, in it", dir, pid)
	}
	who := -1
	if process, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
		who = ownerOf(process)
	}
	if who < 0 || who != ownerOf(info) && (fault != "" || who != os.Geteuid()) {
		return 0, fmt.Errorf("data directory %s belongs to user %d, process %d, which has it, to user %d: such a process is not asked", dir, ownerOf(info), pid, who)
	}
	return pid, nil
}

// openLock opens the lock of a directory for reading, and nothing else that may be in its place.
func openLock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("data directory %s: %w", dir, err)
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("data directory %s: its %s is not a regular file", dir, lockName), err, f.Close())
	}
	return f, nil
}

// signature reads which process says that it has the lock.
func signature(f *os.File) (pid int, host string, err error) {
	text, err := io.ReadAll(io.LimitReader(f, maxLockText))
	if err != nil {
		return 0, "", err
	}
	if n, _ := fmt.Sscanf(string(text), "pid %d on %s", &pid, &host); n < 1 || pid <= 0 {
		return 0, "", errors.New("its lock does not say by which process")
	}
	return pid, host, nil
}
