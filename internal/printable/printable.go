// Package printable makes texts that come from elsewhere fit for logs and terminals.
package printable

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Text makes a text that came from elsewhere fit for a log or a terminal: one
// line of characters that can be seen. Line feeds and other space become spaces, the
// rest U+FFFD.
func Text(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == utf8.RuneError:
			return utf8.RuneError
		case unicode.IsPrint(r):
			return r
		case unicode.IsSpace(r):
			return ' '
		}
		return utf8.RuneError
	}, strings.ReplaceAll(text, "\r\n", "\n"))
}

// Lines is Text for each line of a text.
func Lines(text string) string {
	if !strings.Contains(text, "\n") {
		return Text(text)
	}
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = Text(lines[i])
	}
	return strings.Join(lines, "\n")
}

// JSON escapes what a terminal would obey in a document, which stays the same to its readers.
func JSON(document []byte) []byte {
	hidden := func(r rune) bool { return r >= 0x7f && !unicode.IsPrint(r) || r == utf8.RuneError }
	if bytes.IndexFunc(document, hidden) < 0 {
		return document
	}
	var b []byte
	for _, r := range string(document) {
		if !hidden(r) {
			b = utf8.AppendRune(b, r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			b = fmt.Appendf(b, `\u%04x`, unit)
		}
	}
	return b
}

// Log makes a writer for records of log/slog, which leaves a DEL as it is in text and in JSON:
// either may have it as \u007f.
func Log(w io.Writer) io.Writer { return logWriter{w} }

type logWriter struct{ io.Writer }

func (l logWriter) Write(b []byte) (int, error) {
	if bytes.IndexByte(b, 0x7f) < 0 {
		return l.Writer.Write(b)
	}
	if _, err := l.Writer.Write(bytes.ReplaceAll(b, []byte{0x7f}, []byte(`\u007f`))); err != nil {
		return 0, err
	}
	return len(b), nil
}
