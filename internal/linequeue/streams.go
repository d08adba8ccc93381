package linequeue

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Streams are the queues of a process's stdout and stderr. They are one queue if both are one file,
// so that readers see the order of what is written to them.
type Streams struct{ Out, Err *Queue }

// NewStreams returns queues for two streams.
func NewStreams(stdout, stderr io.Writer) *Streams {
	s := &Streams{New(stdout, "stdout"), New(stderr, "stderr")}
	a, aFile := stdout.(*os.File)
	b, bFile := stderr.(*os.File)
	if aFile && bFile && SameFile(int(a.Fd()), int(b.Fd())) {
		s.Out = s.Err
	}
	return s
}

// Flush flushes both.
func (s *Streams) Flush() { FlushAll(s.Out, s.Err) }

// Report is Queue.Report of both.
func (s *Streams) Report(f func(text string)) {
	s.Out.Report(f)
	s.Err.Report(f)
}

// SameFile reports whether two descriptors are of one file, so that readers see the order of writes
// to both. Writes to /dev/null have no order that anyone could see.
func SameFile(a, b int) bool {
	var at, bt unix.Stat_t
	if unix.Fstat(a, &at) != nil || unix.Fstat(b, &bt) != nil || at.Mode&unix.S_IFMT != bt.Mode&unix.S_IFMT {
		return false
	}
	if at.Mode&unix.S_IFMT == unix.S_IFCHR { // a terminal has several names
		return at.Rdev == bt.Rdev && at.Rdev != unix.Mkdev(1, 3)
	}
	return at.Dev == bt.Dev && at.Ino == bt.Ino
}
