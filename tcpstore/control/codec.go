package control

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// errMalformed is the cause of every decoding error.
var errMalformed = errors.New("malformed frame")

// maxDepth bounds how deep unknown fields may nest.
const maxDepth = 8

// packer appends msgpack values to a buffer. Writing to memory cannot fail, so
// its methods return nothing.
type packer struct {
	buf bytes.Buffer
	enc *msgpack.Encoder
}

var packers = sync.Pool{New: func() any {
	p := &packer{}
	p.enc = msgpack.NewEncoder(&p.buf)
	return p
}}

// maxKept is the largest buffer that is kept for the next use.
const maxKept = 64 << 10

func (p *packer) list(n int)       { _ = p.enc.EncodeArrayLen(n) }
func (p *packer) uint(v uint64)    { _ = p.enc.EncodeUint(v) }
func (p *packer) int(v int64)      { _ = p.enc.EncodeInt(v) }
func (p *packer) bool(v bool)      { _ = p.enc.EncodeBool(v) }
func (p *packer) text(v string)    { _ = p.enc.EncodeString(v) }
func (p *packer) none()            { _ = p.enc.EncodeNil() }
func (p *packer) time(t time.Time) { p.int(unixNano(t)) }
func (p *packer) duration(d time.Duration) {
	p.int(int64(d))
}

// bytes keeps an empty value distinct from none.
func (p *packer) bytes(v []byte) {
	if v == nil {
		p.none()
		return
	}
	_ = p.enc.EncodeBytes(v)
}

func (p *packer) texts(list []string) {
	p.list(len(list))
	for _, s := range list {
		p.text(s)
	}
}

// cut writes a text for people, shortened to n bytes at a character's border.
func (p *packer) cut(s string, n int) { p.text(cutText(s, n)) }

func cutText(s string, n int) string {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	if len(s) > n {
		for n > 0 && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n]
	}
	return s
}

func unixNano(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// unpacker reads the values of one frame that is wholly in memory. The first
// error sticks and makes every later value zero. A list may be shorter than its
// reader asks for (an older peer): missing values are zero; or longer (a newer
// one): what is left over is skipped.
type unpacker struct {
	src  bytes.Reader
	dec  *msgpack.Decoder
	left []int // values left in each open list
	err  error
}

var unpackers = sync.Pool{New: func() any {
	u := &unpacker{}
	u.dec = msgpack.NewDecoder(&u.src)
	return u
}}

func newUnpacker(body []byte) *unpacker {
	u := unpackers.Get().(*unpacker)
	u.src.Reset(body)
	u.dec.ResetReader(&u.src)
	u.left, u.err = u.left[:0], nil
	return u
}

func (u *unpacker) release() {
	u.src.Reset(nil)
	unpackers.Put(u)
}

func (u *unpacker) fail(format string, args ...any) {
	if u.err == nil {
		u.err = fmt.Errorf("%w: "+format, append([]any{errMalformed}, args...)...)
	}
}

// more takes the next value of the open list; false means that it is absent.
func (u *unpacker) more() bool {
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

// open enters a list and returns its length, 0 for an absent or nil one. Each
// open is followed by a close.
func (u *unpacker) open() int {
	n := 0
	if u.more() {
		length, err := u.dec.DecodeArrayLen()
		switch {
		case err != nil:
			u.fail("%v", err)
		case length > u.src.Len(): // each value takes a byte at least
			u.fail("a list of %d values in %d bytes", length, u.src.Len())
		case length > 0:
			n = length
		}
	}
	u.left = append(u.left, n)
	return n
}

// close leaves a list, over the values that were not read.
func (u *unpacker) close() {
	last := len(u.left) - 1
	for ; u.err == nil && u.left[last] > 0; u.left[last]-- {
		u.skip(maxDepth)
	}
	u.left = u.left[:last]
}

// skip passes over one value. The decoder's own Skip recurses as deep as the
// peer likes.
func (u *unpacker) skip(depth int) {
	code, err := u.dec.PeekCode()
	if err != nil {
		u.fail("%v", err)
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
		u.fail("%v", err)
	case n > 0 && depth == 0:
		u.fail("lists nested too deep")
	case n > u.src.Len():
		u.fail("a list of %d values in %d bytes", n, u.src.Len())
	}
	for ; u.err == nil && n > 0; n-- {
		u.skip(depth - 1)
	}
}

func (u *unpacker) uint() uint64 {
	if !u.more() {
		return 0
	}
	v, err := u.dec.DecodeUint64()
	if err != nil {
		u.fail("%v", err)
	}
	return v
}

func (u *unpacker) int64() int64 {
	if !u.more() {
		return 0
	}
	v, err := u.dec.DecodeInt64()
	if err != nil {
		u.fail("%v", err)
	}
	return v
}

func (u *unpacker) int() int { return int(u.int64()) }

// intOr returns missing for an absent value.
func (u *unpacker) intOr(missing int) int {
	if n := len(u.left); n > 0 && u.left[n-1] == 0 {
		return missing
	}
	return u.int()
}

func (u *unpacker) duration() time.Duration { return time.Duration(u.int64()) }

func (u *unpacker) time() time.Time {
	if ns := u.int64(); ns != 0 {
		return time.Unix(0, ns).UTC()
	}
	return time.Time{}
}

func (u *unpacker) bool() bool {
	if !u.more() {
		return false
	}
	v, err := u.dec.DecodeBool()
	if err != nil {
		u.fail("%v", err)
	}
	return v
}

// length reads the length of a text or byte string and checks that so much was
// received; -1 stands for nil.
func (u *unpacker) length(most int) int {
	n, err := u.dec.DecodeBytesLen()
	switch {
	case err != nil:
		u.fail("%v", err)
	case n > most:
		u.fail("a text of %d bytes where %d are allowed", n, most)
	case n > u.src.Len():
		u.fail("a text of %d bytes in a rest of %d", n, u.src.Len())
	}
	return n
}

// bytes returns a copy; nil stays distinct from empty.
func (u *unpacker) bytes(most int) []byte {
	if !u.more() {
		return nil
	}
	n := u.length(most)
	if u.err != nil || n < 0 {
		return nil
	}
	b := make([]byte, n)
	_, _ = u.src.Read(b) // length has checked that so much is there
	return b
}

// text reads a text as it is: names are compared byte by byte.
func (u *unpacker) text(most int) string { return string(u.bytes(most)) }

// texts reads a list of at most count texts.
func (u *unpacker) texts(count, most int) []string {
	var list []string
	n := u.open()
	if n > count {
		u.fail("a list of %d texts where %d are allowed", n, count)
	}
	for range n {
		if u.err != nil {
			break
		}
		list = append(list, u.text(most))
	}
	u.close()
	return list
}
