package logs

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// isOneFile tells whether two descriptors are of one file, so that readers see the order of writes
// to both. Writes to /dev/null have no order that anyone could see.
func isOneFile(a, b int) bool {
	var at, bt unix.Stat_t
	if unix.Fstat(a, &at) != nil || unix.Fstat(b, &bt) != nil || at.Mode&unix.S_IFMT != bt.Mode&unix.S_IFMT {
		return false
	}
	if at.Mode&unix.S_IFMT == unix.S_IFCHR { // a terminal has several names
		return at.Rdev == bt.Rdev && at.Rdev != unix.Mkdev(1, 3)
	}
	return at.Dev == bt.Dev && at.Ino == bt.Ino
}

// sharedFile is the part of a file that was written while a worker ran. The stdout and stderr of
// all workers go to that file. A nil sharedFile stands for none. Its methods are safe for
// concurrent use.
type sharedFile struct {
	file *os.File

	mu       sync.Mutex
	from, to int64 // 0: to the end
}

// newSharedFile returns nil if the file is not a regular one.
func newSharedFile(file *os.File) *sharedFile {
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	return &sharedFile{file: file, from: info.Size()}
}

// Ended notes that the worker has ended.
func (s *sharedFile) Ended() {
	if s == nil {
		return
	}
	info, err := s.file.Stat()
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.to = info.Size()
}

// last returns the last Kept bytes of the part.
func (s *sharedFile) last() []byte {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	part := fileEnd{path: fmt.Sprintf("/proc/self/fd/%d", s.file.Fd()), start: s.from, end: s.to} // the descriptor may be for writing alone
	s.mu.Unlock()
	return part.last()
}
