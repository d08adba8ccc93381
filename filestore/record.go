package filestore

import (
	"encoding/binary"
	"io"
	"math"
	"unsafe"

	"rallypoint/core/store"
	"rallypoint/internal/lockedfile"
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

// recordScanner reads records from a part of a file in order.
type recordScanner struct{ lockedfile.Scanner }

// next returns the record at pos and moves past it. It returns io.EOF at the
// end, lockedfile.ErrTorn if the record is not complete, and the file's errors otherwise;
// then it stays where it is. The record is good until the next call.
func (r *recordScanner) next() (record, error) {
	if r.Pos == r.End {
		return record{}, io.EOF
	}
	keyEnd, err := r.field(0)
	if err != nil {
		return record{}, err
	}
	valueEnd, err := r.field(keyEnd)
	if err != nil {
		return record{}, err
	}
	raw := r.Unread[:valueEnd]
	r.Skip(valueEnd)
	return record{raw: raw, key: raw[lengthBytes:keyEnd], value: raw[keyEnd+lengthBytes:]}, nil
}

// field makes the field at offset from pos available and returns where it ends.
func (r *recordScanner) field(offset int64) (end int64, err error) {
	if err := r.Need(offset + lengthBytes); err != nil {
		return 0, err
	}
	end = offset + lengthBytes + int64(binary.LittleEndian.Uint32(r.Unread[offset:]))
	return end, r.Need(end)
}
