package progress

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"rallypoint/agent/process"
)

// memoryDir is where records are made if nothing else is said: a store into a page that
// lies in memory never waits for a disk or a network.
const memoryDir = "/dev/shm"

// newFolder makes the folder of a run, which only this user may enter.
func newFolder(environ []string) (string, error) {
	var tried []error
	for _, base := range bases(environ) {
		for {
			path := filepath.Join(base, "rallypoint-progress-"+strings.ToLower(rand.Text()[:8]))
			err := os.Mkdir(path, 0o700)
			if err == nil {
				return path, nil
			}
			if !errors.Is(err, fs.ErrExist) {
				tried = append(tried, err)
				break
			}
		}
	}
	return "", errors.Join(tried...)
}

// bases are the folders to be tried.
func bases(environ []string) []string {
	if dir, _ := process.LookupEnv(environ, EnvDir); dir != "" {
		return []string{dir}
	}
	temp, _ := process.LookupEnv(environ, "TMPDIR")
	if temp == "" {
		temp = os.TempDir()
	}
	if unix.Access(memoryDir, unix.W_OK) == nil {
		return []string{memoryDir, temp}
	}
	return []string{temp}
}

// newRecords makes the records of an attempt's workers: all of them or none.
func newRecords(folder string, attempt, workers int) (records []*record, err error) {
	for local := range workers {
		r, err := newRecord(filepath.Join(folder, strconv.Itoa(attempt)+"."+strconv.Itoa(local)))
		if err != nil {
			removeRecords(records)
			return nil, err
		}
		records = append(records, r)
	}
	return records, nil
}

// removeRecords closes records and removes their files. A worker that is still there
// keeps its mapping.
func removeRecords(records []*record) {
	for _, r := range records {
		_ = r.file.Close()
		_ = os.Remove(r.file.Name())
		_ = os.Remove(directivePath(r))
	}
}

// unavailable says why there are no records, in one line for the log.
func unavailable(err error) string {
	return fmt.Sprintf("the workers' progress cannot be recorded: %s; the job runs without it; give another folder by %s",
		strings.ReplaceAll(err.Error(), "\n", ", "), EnvDir)
}
