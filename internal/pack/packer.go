// Package pack reads and writes the msgpack records that Rallypoint sends and
// keeps: lists of values in a fixed order, which grow at their end. A reader takes
// shorter lists (of an older program) and longer ones (of a newer one), and trusts
// no length that it reads.
package pack

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"
)

// Packer appends msgpack values to a buffer. Writing to memory cannot fail, so
// its methods return nothing.
type Packer struct {
	buf   bytes.Buffer
	enc   *msgpack.Encoder
	unfit error
}

var packers = sync.Pool{New: func() any {
	p := &Packer{}
	p.enc = msgpack.NewEncoder(&p.buf)
	return p
}}

// maxKept is the largest buffer that is kept for the next use.
const maxKept = 64 << 10

// Append appends what write packs to dst.
func Append(dst []byte, write func(p *Packer)) []byte {
	dst, _ = AppendFit(dst, write)
	return dst
}

// AppendFit is Append for readers with limits: the error is the first that Fit has found.
func AppendFit(dst []byte, write func(p *Packer)) ([]byte, error) {
	p := packers.Get().(*Packer)
	p.buf.Reset()
	p.enc.ResetWriter(&p.buf)
	p.unfit = nil
	write(p)
	dst, unfit := append(dst, p.buf.Bytes()...), p.unfit
	if p.buf.Cap() <= maxKept {
		packers.Put(p)
	}
	return dst, unfit
}

// Fit makes more of something than its reader takes an error of AppendFit.
func (p *Packer) Fit(n, most int, what string) {
	if n > most && p.unfit == nil {
		p.unfit = fmt.Errorf("%d %s, at most %d are allowed", n, what, most)
	}
}

// List begins a list of n values, which follow.
func (p *Packer) List(n int) { _ = p.enc.EncodeArrayLen(n) }

// Uint writes an unsigned number.
func (p *Packer) Uint(v uint64) { _ = p.enc.EncodeUint(v) }

// Int writes a number.
func (p *Packer) Int(v int) { p.Int64(int64(v)) }

// Int64 writes a number.
func (p *Packer) Int64(v int64) { _ = p.enc.EncodeInt(v) }

// Bool writes a truth value.
func (p *Packer) Bool(v bool) { _ = p.enc.EncodeBool(v) }

// Text writes a text as it is.
func (p *Packer) Text(v string) { _ = p.enc.EncodeString(v) }

// None writes that there is no value.
func (p *Packer) None() { _ = p.enc.EncodeNil() }

// Time writes a time to the nanosecond, without its zone; the zero time stays so.
func (p *Packer) Time(t time.Time) {
	if t.IsZero() {
		p.Int64(0)
		return
	}
	p.Int64(t.UnixNano())
}

// Duration writes a duration.
func (p *Packer) Duration(d time.Duration) { p.Int64(int64(d)) }

// Bytes keeps an empty value distinct from none.
func (p *Packer) Bytes(v []byte) {
	if v == nil {
		p.None()
		return
	}
	_ = p.enc.EncodeBytes(v)
}

// Values writes a list of byte strings.
func (p *Packer) Values(list [][]byte) {
	p.List(len(list))
	for _, v := range list {
		p.Bytes(v)
	}
}

// Texts writes a list of texts.
func (p *Packer) Texts(list []string) {
	p.List(len(list))
	for _, s := range list {
		p.Text(s)
	}
}

// Cut writes a text for display, shortened as CutText does.
func (p *Packer) Cut(s string, n int) { p.Text(CutText(s, n)) }

// CutText makes a text valid and shortens it to n bytes at a character's border.
func CutText(s string, n int) string {
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
