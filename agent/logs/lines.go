package logs

import (
	"bytes"
	"unicode/utf8"
)

// maxPartial is how much of an unfinished line is held back at most.
const maxPartial = 64 << 10

// lines splits a worker's output into whole lines. Line ends are \n, \r and \r\n, and come out as
// \n.
type lines struct {
	partial []byte // begun, not ended
	afterCR bool   // the next \n belongs to a \r that was a line end already
}

// add takes more text and returns the lines that are whole now, to be used
// before the next call.
func (l *lines) add(text []byte) []byte {
	if l.afterCR && len(text) > 0 {
		text = bytes.TrimPrefix(text, []byte("\n"))
		l.afterCR = false
	}
	if bytes.IndexByte(text, '\r') >= 0 {
		l.afterCR = text[len(text)-1] == '\r'
		text = bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))
		text = bytes.ReplaceAll(text, []byte("\r"), []byte("\n"))
	}
	whole := bytes.LastIndexByte(text, '\n') + 1
	if whole == 0 {
		l.partial = append(l.partial, text...)
		if len(l.partial) < maxPartial {
			return nil
		}
		whole = len(l.partial)
		for begin := whole - 1; begin > whole-utf8.UTFMax; begin-- { // of the last character, which may be cut
			if utf8.RuneStart(l.partial[begin]) {
				if !utf8.FullRune(l.partial[begin:]) {
					whole = begin
				}
				break
			}
		}
		out := l.partial[:whole]
		l.partial = bytes.Clone(l.partial[whole:])
		return out
	}
	out := text[:whole]
	if len(l.partial) > 0 {
		out = append(l.partial, out...)
		l.partial = nil
	}
	l.partial = append(l.partial[:0:0], text[whole:]...)
	return out
}

func (l *lines) rest() []byte {
	rest := l.partial
	l.partial = nil
	return rest
}
