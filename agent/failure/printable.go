package failure

import (
	"regexp"
	"strings"
	"unicode"

	"rallypoint/internal/printable"
)

var escapes = regexp.MustCompile("\x1b(\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(\x07|\x1b\\\\)|[@-Z\\\\^_])")

// plainLines is a text without colours and whatever else a terminal would obey.
func plainLines(text string) string {
	return printable.Lines(strings.ReplaceAll(escapes.ReplaceAllString(text, ""), "\r\n", "\n"))
}

// tailLines makes the last lines of an output fit to be shown: at most most of
// them, of what a line was overwritten with by \r only the last, without colours
// and control characters. more reports whether there were others before.
func tailLines(text []byte, most int) (shown []string, more bool) {
	plain := escapes.ReplaceAllString(strings.ToValidUTF8(string(text), "\uFFFD"), "")
	all := strings.Split(strings.TrimRight(plain, "\r\n \t"), "\n")
	if len(all) > most {
		all, more = all[len(all)-most:], true
	}
	for _, line := range all {
		line = strings.TrimRight(line, "\r \t")
		line = line[strings.LastIndexByte(line, '\r')+1:]
		shown = append(shown, strings.Map(func(r rune) rune {
			if r != '\t' && unicode.IsControl(r) {
				return -1
			}
			return r
		}, line))
	}
	if len(shown) == 1 && shown[0] == "" {
		return nil, false
	}
	return shown, more
}
