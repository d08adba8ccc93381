package pack

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// ErrMalformed is the cause of every error of an Unpacker.
var ErrMalformed = errors.New("malformed data")

// maxDepth bounds how deep unknown fields may nest.
const maxDepth = 8

// Unpacker reads the values of one record that is wholly in memory. The first error
// sticks and makes every later value zero. A list may be shorter than its reader asks for
// (an older peer): missing values are zero. It may be longer (a newer one): the rest is
// skipped.
type Unpacker struct {
	src  bytes.Reader
	dec  *msgpack.Decoder
	left []int // values left in each open list
	err  error
}

var unpackers = sync.Pool{New: func() any {
	u := &Unpacker{}
	u.dec = msgpack.NewDecoder(&u.src)
	return u
}}

// NewUnpacker reads body, which must not change before Release. Its results share no memory with
// body.
func NewUnpacker(body []byte) *Unpacker {
	u := unpackers.Get().(*Unpacker)
	u.src.Reset(body)
	u.dec.ResetReader(&u.src)
	u.left, u.err = u.left[:0], nil
	return u
}

// Err returns the first error.
func (u *Unpacker) Err() error { return u.err }

// End fails unless everything was read.
func (u *Unpacker) End() {
	if u.err == nil && u.src.Len() > 0 {
		u.Fail("%d bytes too many", u.src.Len())
	}
}

// Release ends the use of u.
func (u *Unpacker) Release() {
	u.src.Reset(nil)
	unpackers.Put(u)
}

// Fail makes what was read an error, unless there is one.
func (u *Unpacker) Fail(format string, args ...any) {
	if u.err == nil {
		u.err = fmt.Errorf("%w: "+format, append([]any{ErrMalformed}, args...)...)
	}
}

// more takes the next value of the open list; false means that it is absent.
func (u *Unpacker) more() bool {
	if u.err != nil {
		return false
	}
	if n := len(u.left); n > 0 {
		if u.left[n-1] == 0 {
			return false
		}
		u.left[n-1]--
	}
	return true
}

// Open enters a list and returns its length, 0 for an absent or nil one. Each
// Open is followed by a Close.
func (u *Unpacker) Open() int {
	n := 0
	if u.more() {
		length, err := u.dec.DecodeArrayLen()
		switch {
		case err != nil:
			u.Fail("%v", err)
		case length > u.src.Len(): // each value takes a byte at least
			u.Fail("a list of %d values in %d bytes", length, u.src.Len())
		case length > 0:
			n = length
		}
	}
	u.left = append(u.left, n)
	return n
}

// Close leaves a list, over the values that were not read.
func (u *Unpacker) Close() {
	last := len(u.left) - 1
	for ; u.err == nil && u.left[last] > 0; u.left[last]-- {
		u.skip(maxDepth)
	}
	u.left = u.left[:last]
}

// Each enters a list, yields the index of each of its values, which the caller reads, and
// leaves the list. It ends at the first error.
func (u *Unpacker) Each() iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range u.Open() {
			if u.Err() != nil || !yield(i) {
				break
			}
		}
		u.Close()
	}
}

// ListOf reads a list of at most so many of what; read reads one of them.
func ListOf[T any](u *Unpacker, most int, what string, read func() T) (all []T) {
	n := u.Open()
	if n > most {
		u.Fail("a list of %d %s, at most %d are allowed", n, what, most)
	}
	for range n {
		if u.err != nil {
			break
		}
		all = append(all, read())
	}
	u.Close()
	return all
}

// Lists is ListOf where each is a list of values, which read reads.
func Lists[T any](u *Unpacker, most int, what string, read func() T) []T {
	return ListOf(u, most, what, func() T {
		u.Open()
		defer u.Close()
		return read()
	})
}

// skip passes over one value. The decoder's own Skip recurses as deep as the
// peer likes.
func (u *Unpacker) skip(depth int) {
	code, err := u.dec.PeekCode()
	if err != nil {
		u.Fail("%v", err)
		return
	}
	n := 0
	switch {
	case msgpcode.IsFixedArray(code), code == msgpcode.Array16, code == msgpcode.Array32:
		n, err = u.dec.DecodeArrayLen()
	case msgpcode.IsFixedMap(code), code == msgpcode.Map16, code == msgpcode.Map32:
		n, err = u.dec.DecodeMapLen()
		n *= 2
	default:
		err = u.dec.Skip()
	}
	switch {
	case err != nil:
		u.Fail("%v", err)
	case n > 0 && depth == 0:
		u.Fail("lists nested too deep")
	case n > u.src.Len():
		u.Fail("a list of %d values in %d bytes", n, u.src.Len())
	}
	for ; u.err == nil && n > 0; n-- {
		u.skip(depth - 1)
	}
}

// Uint reads an unsigned number.
func (u *Unpacker) Uint() uint64 {
	if !u.more() {
		return 0
	}
	v, err := u.dec.DecodeUint64()
	if err != nil {
		u.Fail("%v", err)
	}
	return v
}

// Int64 reads a number.
func (u *Unpacker) Int64() int64 {
	if !u.more() {
		return 0
	}
	v, err := u.dec.DecodeInt64()
	if err != nil {
		u.Fail("%v", err)
	}
	return v
}

// Int reads a number.
func (u *Unpacker) Int() int { return int(u.Int64()) }

// IntOr returns missing for an absent value.
func (u *Unpacker) IntOr(missing int) int {
	if n := len(u.left); n > 0 && u.left[n-1] == 0 {
		return missing
	}
	return u.Int()
}

// Duration reads a duration.
func (u *Unpacker) Duration() time.Duration { return time.Duration(u.Int64()) }

// Time reads a time, in UTC.
func (u *Unpacker) Time() time.Time {
	if ns := u.Int64(); ns != 0 {
		return time.Unix(0, ns).UTC()
	}
	return time.Time{}
}

// Bool reads a truth value.
func (u *Unpacker) Bool() bool {
	if !u.more() {
		return false
	}
	v, err := u.dec.DecodeBool()
	if err != nil {
		u.Fail("%v", err)
	}
	return v
}

// length reads the length of a text or byte string and checks that so much was
// received; -1 stands for nil.
func (u *Unpacker) length(most int) int {
	n, err := u.dec.DecodeBytesLen()
	switch {
	case err != nil:
		u.Fail("%v", err)
	case n > most:
		u.Fail("a text of %d bytes where %d are allowed", n, most)
	case n > u.src.Len():
		u.Fail("a text of %d bytes in a rest of %d", n, u.src.Len())
	}
	return n
}

// Bytes returns a copy of at most so many bytes; nil stays distinct from empty.
func (u *Unpacker) Bytes(most int) []byte {
	if !u.more() {
		return nil
	}
	n := u.length(most)
	if u.err != nil || n < 0 {
		return nil
	}
	b := make([]byte, n)
	_, _ = u.src.Read(b) // length has checked that body has so much
	return b
}

// Text reads a text as it is: names are compared byte by byte.
func (u *Unpacker) Text(most int) string { return string(u.Bytes(most)) }

// Texts reads a list of at most count texts.
func (u *Unpacker) Texts(count, most int) []string {
	return ListOf(u, count, "texts", func() string { return u.Text(most) })
}

// Values reads a list of at most count byte strings.
func (u *Unpacker) Values(count, most int) [][]byte {
	return ListOf(u, count, "values", func() []byte { return u.Bytes(most) })
}
