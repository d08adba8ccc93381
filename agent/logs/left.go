package logs

import (
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent/process"
)

const (
	// basePrefix begins the name of a folder for logs that the user has not named, as in torch.
	basePrefix = "torchelastic_"
	// lockName is a file in such a folder. It has this name only once its agent has locked it
	// (flock(2)), for as long as that lives. Folders of torch have none.
	lockName = ".rallypoint-agent"
)

// lockBase marks a new folder as one whose agent lives. A nil file means that it could not: then
// no other agent removes the folder.
func lockBase(base string) *os.File {
	made := base + "/" + lockName + ".new"
	lock, err := os.OpenFile(made, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil
	}
	if err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
		err = os.Rename(made, base+"/"+lockName)
	}
	if err != nil {
		_ = os.Remove(made)
		_ = lock.Close()
		return nil
	}
	return lock
}

// removeLeft removes the folders without content of the user's agents that were killed together with
// the process that watches them.
func removeLeft(temp string, user int) {
	process.EachFolder(temp, basePrefix, "", user, time.Now, func(in *os.Root, name string, _ *os.File) {
		lock, err := in.OpenFile(name+"/"+lockName, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			return // torch's, or what an agent has left that ended in order
		}
		defer func() { _ = lock.Close() }()
		switch {
		case unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil:
		case hasContent(filepath.Join(temp, name)):
			_ = in.Remove(name + "/" + lockName) // it stays, as if its agent had ended in order
		default:
			_ = in.RemoveAll(name)
		}
	})
}

// hasContent reports whether a file in a folder is not empty.
func hasContent(base string) (content bool) {
	_ = filepath.WalkDir(base, func(_ string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			info, err := entry.Info()
			content = content || err != nil || info.Size() > 0
		}
		return nil
	})
	return content
}
