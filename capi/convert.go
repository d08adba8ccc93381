package main

// #include <stdlib.h>
// #include <string.h>
// #include "glue.h"
import "C"

import (
	"context"
	"math"
	"strings"
	"time"
	"unicode/utf8"
	"unsafe"

	"rallypoint/core/rendezvous"
)

// What C may hand in at most: above it an argument is more likely a mistake, and
// copying it could take the process down.
const (
	maxBytes = 1 << 30 // of one text, key or value
	maxItems = 1 << 20 // of one array
)

// untilNUL is RP_TEXT, which compilers tell cgo of as -1 or as its value.
const untilNUL = ^C.size_t(0)

// text copies a text; "" for NULL.
func text(name string, s *C.char) (string, error) {
	if s == nil {
		return "", nil
	}
	n := C.strlen(s)
	if n > maxBytes {
		return "", rendezvous.Errorf(rendezvous.CodeTooLarge, "%s has %d bytes", name, uint64(n))
	}
	t := string(unsafe.Slice((*byte)(unsafe.Pointer(s)), int(n)))
	if !utf8.ValidString(t) {
		return "", invalid("%s is not valid UTF-8: %.100q", name, t)
	}
	return t, nil
}

type textField struct {
	name string
	from *C.char
	to   *string
}

// texts copies the texts of a struct; NULL leaves the present ones.
func texts(fields ...textField) error {
	for _, field := range fields {
		if field.from == nil {
			continue
		}
		t, err := text(field.name, field.from)
		if err != nil {
			return err
		}
		*field.to = t
	}
	return nil
}

// view returns bytes of C without copying them.
func view(name string, b C.rp_bytes) ([]byte, error) {
	n := b.len
	switch {
	case b.data == nil && (n == 0 || n == untilNUL):
		return nil, nil
	case b.data == nil:
		return nil, invalid("%s is NULL with a length of %d", name, uint64(n))
	case n == untilNUL:
		n = C.strlen((*C.char)(b.data))
	}
	if n > maxBytes {
		return nil, rendezvous.Errorf(rendezvous.CodeTooLarge, "%s has %d bytes", name, uint64(n))
	}
	return unsafe.Slice((*byte)(b.data), int(n)), nil
}

func keyOf(name string, b C.rp_bytes) (string, error) {
	v, err := view(name, b)
	return string(v), err
}

func valueOf(name string, b C.rp_bytes) ([]byte, error) {
	v, err := view(name, b)
	return append(make([]byte, 0, len(v)), v...), err
}

// itemsOf is an array of the caller; nil if it is NULL.
func itemsOf[T any](name string, items *T, n C.size_t) ([]T, error) {
	if n > maxItems {
		return nil, rendezvous.Errorf(rendezvous.CodeTooLarge, "%s has %d items; the limit is %d", name, uint64(n), maxItems)
	}
	if items == nil && n > 0 {
		return nil, invalid("%s is NULL with a length of %d", name, uint64(n))
	}
	return unsafe.Slice(items, int(n)), nil
}

func listOf[T any](name string, items *C.rp_bytes, n C.size_t, convert func(string, C.rp_bytes) (T, error)) ([]T, error) {
	given, err := itemsOf(name, items, n)
	if err != nil {
		return nil, err
	}
	list := make([]T, 0, len(given))
	for _, item := range given {
		v, err := convert(name, item)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}

// fillBuffer hands a value out: in C memory, followed by a NUL.
func fillBuffer(out *C.rp_buffer, value []byte) {
	p := C.malloc(C.size_t(len(value) + 1))
	b := unsafe.Slice((*byte)(p), len(value)+1)
	copy(b, value)
	b[len(value)] = 0
	out.data, out.len = p, C.size_t(len(value))
}

func fillList[T []byte | string](out *C.rp_list, values []T) {
	out.items, out.len = nil, C.size_t(len(values))
	if len(values) == 0 {
		return
	}
	p := C.calloc(C.size_t(len(values)), C.size_t(unsafe.Sizeof(C.rp_buffer{})))
	out.items = (*C.rp_buffer)(p)
	items := unsafe.Slice(out.items, len(values))
	for i, value := range values {
		fillBuffer(&items[i], []byte(value))
	}
}

// fillText copies a text into an array of C, cut if need be.
func fillText(out []C.char, s string) {
	s = toUTF8(s)
	C.glue_text(&out[0], C.size_t(len(out)), (*C.char)(unsafe.Pointer(unsafe.StringData(s))), C.size_t(len(s)))
}

// toUTF8 makes s fit for a NUL-terminated UTF-8 text.
func toUTF8(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

func truth(is bool) C.int32_t {
	if is {
		return 1
	}
	return 0
}

// timeLimit converts a timeout; ok is false for "no limit".
func timeLimit(ms C.int64_t) (d time.Duration, ok bool) {
	if ms < 0 || int64(ms) > math.MaxInt64/int64(time.Millisecond) {
		return 0, false
	}
	return time.Duration(ms) * time.Millisecond, true
}

func withTimeout(parent context.Context, ms C.int64_t) (context.Context, context.CancelFunc) {
	if d, ok := timeLimit(ms); ok {
		return context.WithTimeout(parent, d)
	}
	return context.WithCancel(parent)
}
