package filestore

import (
	"encoding/binary"
	"errors"
	"io"
	"math"
	"unsafe"

	"rallypoint/core/store"
)

// Stored keys (docs/spec/filestore-format.md 1).
const (
	keyPrefix    = "/"         // of what users store
	deletePrefix = "-"         // of a record that deletes the key after it
	refcountKey  = "refcount/" // stores that are open
	cleanupKey   = "cleanup/"  // stores that were closed
)

const lengthBytes = 4

// maxField is the largest length of a key or a value that a record can hold.
const maxField = math.MaxUint32

// record is one entry of the log. The fields are views of one buffer.
type record struct {
	raw   []byte // the whole record
	key   []byte // the stored key
	value []byte
}

// deletes returns the stored key that the record deletes, if that is what it does.
func (r record) deletes() (key []byte, ok bool) {
	if len(r.key) > 0 && r.key[0] == deletePrefix[0] {
		return r.key[1:], true
	}
	return nil, false
}

func (r record) apply(e *store.Engine) {
	if key, ok := r.deletes(); ok {
		e.Delete(text(key))
		return
	}
	// An engine without limits takes everything, and copies what it keeps.
	_ = e.Set(text(r.key), r.value)
}

// text is a view of b for a callee that does not keep it.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// appendRecord appends a record to log. ErrTooLarge if a length does not fit.
func appendRecord(log []byte, key string, value []byte) ([]byte, error) {
	if uint64(len(key)) > maxField || uint64(len(value)) > maxField {
		return log, store.ErrTooLarge
	}
	log = binary.LittleEndian.AppendUint32(log, uint32(len(key)))
	log = append(log, key...)
	log = binary.LittleEndian.AppendUint32(log, uint32(len(value)))
	return append(log, value...), nil
}

var errTorn = errors.New("incomplete record")

const (
	// scanChunk is how much a scanner reads at once if a record needs no more.
	scanChunk = 256 << 10

	// maxKeptBuffer is the largest buffer that is worth keeping from one call to the next.
	maxKeptBuffer = 64 << 10
)

// scanner reads the records of a part of a log in order. It never asks for memory by a length that a
// record declares, only by bytes that have been read.
type scanner struct {
	source io.ReaderAt
	pos    int64  // where the next record begins
	end    int64  // bytes after it do not exist for the scanner
	buffer []byte // memory to use, may be nil
	unread []byte // the bytes from pos on that have been read
}

// next returns the record at pos and moves past it. It returns io.EOF at the
// end, errTorn if the record is not complete, and the file's errors otherwise;
// then it stays where it is. The record is good until the next call.
func (s *scanner) next() (record, error) {
	if s.pos == s.end {
		return record{}, io.EOF
	}
	keyEnd, err := s.field(0)
	if err != nil {
		return record{}, err
	}
	valueEnd, err := s.field(keyEnd)
	if err != nil {
		return record{}, err
	}
	raw := s.unread[:valueEnd]
	s.skip(valueEnd)
	return record{raw: raw, key: raw[lengthBytes:keyEnd], value: raw[keyEnd+lengthBytes:]}, nil
}

// field makes the field at offset from pos available and returns where it ends.
func (s *scanner) field(offset int64) (end int64, err error) {
	if err := s.need(offset + lengthBytes); err != nil {
		return 0, err
	}
	end = offset + lengthBytes + int64(binary.LittleEndian.Uint32(s.unread[offset:]))
	return end, s.need(end)
}

// need makes n bytes from pos on available, as the beginning of unread. It returns
// errTorn if there are fewer up to end.
func (s *scanner) need(n int64) error {
	if int64(len(s.unread)) >= n {
		return nil
	}
	if n > s.end-s.pos {
		return errTorn
	}
	want := min(max(n, scanChunk), s.end-s.pos)
	if int64(cap(s.buffer)) < want {
		s.buffer = make([]byte, want)
	}
	mem := s.buffer[:min(int64(cap(s.buffer)), s.end-s.pos)]
	had := copy(mem, s.unread)
	got, err := s.source.ReadAt(mem[had:], s.pos+int64(had))
	s.unread = mem[:had+got]
	switch {
	case int64(len(s.unread)) >= n:
		return nil
	case err == nil:
		return io.ErrUnexpectedEOF
	}
	return err
}

// skip moves n bytes forward, which must be available.
func (s *scanner) skip(n int64) {
	s.pos += n
	s.unread = s.unread[n:]
}
