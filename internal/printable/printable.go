// Package printable makes texts that come from elsewhere fit for logs and terminals.
package printable

import (
	"strings"
	"unicode"
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
