package etcdstore

import (
	"encoding/binary"
	"errors"
)

// The part of protocol buffers that etcd's messages need: varints, and fields
// with a length. Fields of other kinds are skipped.

// errMalformed is a message that does not follow its format.
var errMalformed = errors.New("malformed protocol buffer")

// The wire types of fields.
const (
	wireVarint  = 0
	wireFixed64 = 1
	wireBytes   = 2
	wireFixed32 = 5
)

// message is an encoded message that grows field by field. As proto3 has it, the
// zero value of a field is left out.
type message []byte

func (m message) number(field int, v int64) message {
	if v == 0 {
		return m
	}
	m = binary.AppendUvarint(m, uint64(field)<<3|wireVarint)
	return binary.AppendUvarint(m, uint64(v))
}

func (m message) flag(field int, v bool) message {
	if v {
		return m.number(field, 1)
	}
	return m
}

func (m message) bytes(field int, v []byte) message {
	if len(v) == 0 {
		return m
	}
	return m.message(field, v)
}

func (m message) text(field int, v string) message { return m.bytes(field, []byte(v)) }

// message adds a field that is there even if it is empty: a message, or an item
// of a list or of a oneof.
func (m message) message(field int, v []byte) message {
	m = binary.AppendUvarint(m, uint64(field)<<3|wireBytes)
	m = binary.AppendUvarint(m, uint64(len(v)))
	return append(m, v...)
}

// field is one field of a message: number or bytes, by the field's definition.
// bytes is a view of the message.
type field struct {
	id     int
	number int64
	bytes  []byte
}

// decode calls f with each field of a message in order, until f returns an error.
func decode(m []byte, f func(field) error) error {
	for len(m) > 0 {
		tag, n := binary.Uvarint(m)
		if n <= 0 || tag>>3 == 0 || tag>>3 > 1<<29-1 {
			return errMalformed
		}
		m = m[n:]
		fl := field{id: int(tag >> 3)}
		switch tag & 7 {
		case wireVarint:
			v, n := binary.Uvarint(m)
			if n <= 0 {
				return errMalformed
			}
			fl.number, m = int64(v), m[n:]
		case wireBytes:
			size, n := binary.Uvarint(m)
			if n <= 0 || size > uint64(len(m)-n) {
				return errMalformed
			}
			fl.bytes, m = m[n:n+int(size):n+int(size)], m[n+int(size):]
		case wireFixed64, wireFixed32:
			size := 8
			if tag&7 == wireFixed32 {
				size = 4
			}
			if len(m) < size {
				return errMalformed
			}
			m = m[size:]
			continue
		default:
			return errMalformed
		}
		if err := f(fl); err != nil {
			return err
		}
	}
	return nil
}
