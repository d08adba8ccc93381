package logs

import (
	"fmt"
	"os"
	"sync"
)

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
