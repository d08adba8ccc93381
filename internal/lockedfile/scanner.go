package lockedfile

import (
	"errors"
	"io"
)

// ErrTorn says that bytes begin a record and end before it does.
var ErrTorn = errors.New("incomplete record")

// ScanChunk is how much a Scanner reads at once if a record needs no more.
const ScanChunk = 256 << 10

// MaxKeptBuffer is the largest buffer that is worth keeping from one call to the next.
const MaxKeptBuffer = 64 << 10

// Scanner reads a part of a file in order, for a reader of records that each say how long they
// are. It never asks for memory by a length that a record declares, only by bytes that have been
// read.
type Scanner struct {
	Source io.ReaderAt
	Pos    int64  // where the next record begins
	End    int64  // bytes after it do not exist for the scanner
	Buffer []byte // memory to use, may be nil
	Unread []byte // the bytes from Pos on that have been read
}

// Need makes n bytes from Pos on available, as the beginning of Unread. It returns
// ErrTorn if there are fewer up to End.
func (s *Scanner) Need(n int64) error {
	if int64(len(s.Unread)) >= n {
		return nil
	}
	if n > s.End-s.Pos {
		return ErrTorn
	}
	want := min(max(n, ScanChunk), s.End-s.Pos)
	if int64(cap(s.Buffer)) < want {
		s.Buffer = make([]byte, want)
	}
	mem := s.Buffer[:min(int64(cap(s.Buffer)), s.End-s.Pos)]
	had := copy(mem, s.Unread)
	got, err := s.Source.ReadAt(mem[had:], s.Pos+int64(had))
	s.Unread = mem[:had+got]
	switch {
	case int64(len(s.Unread)) >= n:
		return nil
	case err == nil:
		return io.ErrUnexpectedEOF
	}
	return err
}

// Skip moves n bytes forward, which must be available.
func (s *Scanner) Skip(n int64) {
	s.Pos += n
	s.Unread = s.Unread[n:]
}
