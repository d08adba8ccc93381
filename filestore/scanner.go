package filestore

import (
	"errors"
	"io"
)

// errTorn is what a scanner returns for bytes that begin a record and end before
// it does.
var errTorn = errors.New("incomplete record")

// scanChunk is how much a scanner reads at once if a record needs no more.
const scanChunk = 256 << 10

// scanner reads a part of a file in order, for a reader of records that each say how
// long they are. It never asks for memory by a length that a record declares, only by
// bytes that are there.
type scanner struct {
	file io.ReaderAt
	pos  int64  // where the next record begins
	end  int64  // what is behind does not exist for the scanner
	mem  []byte // memory to use, may be nil
	have []byte // the bytes from pos on that have been read
}

// need makes n bytes from pos on available, as the beginning of have. It returns errTorn
// if there are fewer up to end.
func (s *scanner) need(n int64) error {
	if int64(len(s.have)) >= n {
		return nil
	}
	if n > s.end-s.pos {
		return errTorn
	}
	want := min(max(n, scanChunk), s.end-s.pos)
	if int64(cap(s.mem)) < want {
		s.mem = make([]byte, want)
	}
	mem := s.mem[:min(int64(cap(s.mem)), s.end-s.pos)]
	had := copy(mem, s.have)
	got, err := s.file.ReadAt(mem[had:], s.pos+int64(had))
	s.have = mem[:had+got]
	switch {
	case int64(len(s.have)) >= n:
		return nil
	case err == nil:
		return io.ErrUnexpectedEOF
	}
	return err
}

// skip moves n bytes on, which must be available.
func (s *scanner) skip(n int64) {
	s.pos += n
	s.have = s.have[n:]
}
