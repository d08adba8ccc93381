package progress

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent/process"
)

// memoryDir is the default place of the records: a write to a page in memory never waits for a
// disk or a network.
const memoryDir = "/dev/shm"

// The names of folders. One with the ending is locked (flock(2)) for as long as its agent lives:
// it has no such name before it is locked, so that one which is not locked any more is of an
// agent that is gone.
const (
	folderPrefix = "rallypoint-progress-"
	lockedSuffix = "-locked"
)

// folder is where the records of a run lie.
type folder struct {
	path string
	lock *os.File // nil: the file system cannot lock folders
}

// newFolder makes the folder of a run, which only this user may enter. Before it removes
// those that killed agents have left.
func newFolder(environ []string) (folder, error) {
	var tried []error
	for _, base := range bases(environ) {
		removeLeft(base, os.Geteuid(), time.Now)
		path, err := os.MkdirTemp(base, folderPrefix)
		if err == nil {
			return lockFolder(path), nil
		}
		tried = append(tried, err)
	}
	return folder{}, errors.Join(tried...)
}

// lockFolder locks a new folder and gives it the name of one that is. A folder that cannot be
// locked keeps its name: no other agent removes it.
func lockFolder(path string) folder {
	lock, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return folder{path: path}
	}
	if err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
		err = unix.Rename(path, path+lockedSuffix)
	}
	if err != nil {
		_ = lock.Close()
		return folder{path: path}
	}
	return folder{path + lockedSuffix, lock}
}

func (f folder) remove() error {
	err := os.RemoveAll(f.path)
	if f.lock != nil {
		_ = f.lock.Close()
	}
	return err
}

// removeLeft removes the folders of the user's agents that were killed together with the process that
// watches them. It opens nothing of another user's. A folder that it cannot remove, or that it does
// not get to, stays: it harms nothing.
func removeLeft(base string, user int, now func() time.Time) {
	process.EachFolder(base, folderPrefix, lockedSuffix, user, now, func(in *os.Root, name string, folder *os.File) {
		if unix.Flock(int(folder.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = in.RemoveAll(name)
		}
	})
}

func bases(environ []string) []string {
	if dir, _ := process.LookupEnv(environ, EnvDir); dir != "" {
		if absolute, err := filepath.Abs(dir); err == nil { // workers may run elsewhere
			dir = absolute
		}
		return []string{dir}
	}
	temp := process.TempDir(process.Getenv(environ))
	if unix.Access(memoryDir, unix.W_OK) == nil {
		return []string{memoryDir, temp}
	}
	return []string{temp}
}

// newRecords makes the records of an attempt's workers: all of them or none.
func newRecords(folder string, attempt, workers int) (records []*record, err error) {
	for local := range workers {
		r, err := newRecord(recordPath(folder, attempt, local))
		if err != nil {
			removeRecords(records)
			return nil, err
		}
		records = append(records, r)
	}
	return records, nil
}

func recordPath(folder string, attempt, local int) string {
	return filepath.Join(folder, strconv.Itoa(attempt)+"."+strconv.Itoa(local))
}

// removeRecords removes the files of records. A worker that is still there
// keeps its mapping.
func removeRecords(records []*record) {
	for _, r := range records {
		r.file.Remove()
		_ = os.Remove(directivePath(r))
	}
}

// unavailable says why there are no records, in one line for the log.
func unavailable(err error) string {
	return fmt.Sprintf("the workers' progress cannot be recorded: %s; the job runs without it; give another folder by %s",
		strings.ReplaceAll(err.Error(), "\n", ", "), EnvDir)
}
