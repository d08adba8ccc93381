package etcdlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"rallypoint/internal/etcdclient"
)

// The keys and values of the run's log.

func entryKey(root, node string, number uint64) string {
	return fmt.Sprintf("%s%s%s/%016x", root, keyEntries, node, number)
}

func splitEntryKey(name string) (node string, number uint64, err error) {
	node, text, ok := strings.Cut(name, "/")
	if _, err := fmt.Sscanf(text, "%016x", &number); !ok || err != nil || len(text) != 16 {
		return "", 0, errForeign
	}
	return node, number, nil
}

func encodeEntries(entries [][]byte) []byte {
	var b []byte
	for _, e := range entries {
		b = binary.AppendUvarint(b, uint64(len(e)))
		b = append(b, e...)
	}
	return b
}

func decodeEntries(b []byte) (entries [][]byte, err error) {
	for len(b) > 0 {
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n) || len(entries) == 1<<placeBits-1 {
			return nil, errForeign
		}
		entries = append(entries, b[n:n+int(size):n+int(size)])
		b = b[n+int(size):]
	}
	return entries, nil
}

// formatVersion is that of the values of gen and snap.
const formatVersion = 1

// generation is the value of the key gen.
type generation struct {
	name  string
	lease int64
}

func (g generation) encode() []byte {
	return appendNumber(appendBytes(appendNumber(nil, 1, formatVersion), 2, []byte(g.name)), 3, g.lease)
}

func decodeGeneration(b []byte) (g generation, err error) {
	version := int64(0)
	err = fields(b, func(f field) {
		switch f.id {
		case 1:
			version = f.number
		case 2:
			g.name = string(f.bytes)
		case 3:
			g.lease = f.number
		}
	})
	if err == nil && (version != formatVersion || g.name == "" || g.lease == 0) {
		err = errForeign
	}
	return g, err
}

// snapshotKey is the key snap.
type snapshotKey struct {
	modified int64 // its revision; 0: there is none
	index    uint64
	state    []byte
	id       string // of the keys that hold the state, if state does not
	parts    int64
}

func (s snapshotKey) encode() []byte {
	b := appendNumber(appendNumber(nil, 1, formatVersion), 2, int64(s.index))
	return appendNumber(appendBytes(appendBytes(b, 3, s.state), 4, []byte(s.id)), 5, s.parts)
}

func decodeSnapshotKey(kv etcdclient.KeyValue) (s snapshotKey, err error) {
	version := int64(0)
	err = fields(kv.Value, func(f field) {
		switch f.id {
		case 1:
			version = f.number
		case 2:
			s.index = uint64(f.number)
		case 3:
			s.state = f.bytes
		case 4:
			s.id = string(f.bytes)
		case 5:
			s.parts = f.number
		}
	})
	s.modified = kv.Modified
	if err == nil && (version != formatVersion || s.parts < 0 || s.parts > maxParts) {
		err = errForeign
	}
	return s, err
}

var errForeign = errors.New("not of rallypoint")

// The values that a run keeps are protocol buffers, written field by field: as proto3
// has it, the zero value of a field is left out.

func appendNumber(b []byte, field protowire.Number, v int64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), uint64(v))
}

func appendBytes(b []byte, field protowire.Number, v []byte) []byte {
	if len(v) == 0 {
		return b
	}
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), v)
}

// field is one field of a value: number or bytes, by the field's definition. bytes is a
// view of the value.
type field struct {
	id     protowire.Number
	number int64
	bytes  []byte
}

// fields calls f with each field of a value in order; those of other kinds are skipped.
func fields(b []byte, f func(field)) error {
	for len(b) > 0 {
		id, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errForeign
		}
		b = b[n:]
		v := field{id: id}
		switch kind {
		case protowire.VarintType:
			var number uint64
			number, n = protowire.ConsumeVarint(b)
			v.number = int64(number)
		case protowire.BytesType:
			v.bytes, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(id, kind, b)
			id = 0
		}
		if n < 0 {
			return errForeign
		}
		b = b[n:]
		if id != 0 {
			f(v)
		}
	}
	return nil
}
