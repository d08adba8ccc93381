package cli

import (
	"encoding/json"
	"io"
	"math"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"rallypoint/internal/wording"
)

// terminal is what human-readable text is made for.
type terminal struct {
	interactive bool
	colour      bool
	width       int
	zone        *time.Location
}

// Widths in columns: of what is no terminal, which is for programs and files and loses
// nothing, and the least that the tables are made for.
const (
	unlimited  = math.MaxInt
	leastWidth = 60
)

// most is how many of a list are shown: all but on a terminal.
func (t terminal) most(n int) int {
	if t.width == unlimited {
		return math.MaxInt
	}
	return n
}

// terminalOf looks at what is behind a stream. Colour is for terminals only, and not
// where NO_COLOR is set (no-color.org) or TERM says that there is none.
func terminalOf(out io.Writer) terminal {
	s := terminal{width: unlimited, zone: time.Local}
	f, ok := out.(*os.File)
	if !ok {
		return s
	}
	if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err != nil {
		return s
	}
	s.interactive = true
	s.colour = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
		s.width = max(int(size.Col), leastWidth)
	}
	return s
}

// style is the colour of a text.
type style string

// The colours.
const (
	plain  style = ""
	bold   style = "\x1b[1m"
	faint  style = "\x1b[2m"
	red    style = "\x1b[31m"
	green  style = "\x1b[32m"
	yellow style = "\x1b[33m"
)

// apply colours a text that has its final width.
func (t terminal) apply(p style, text string) string {
	if !t.colour || p == plain || text == "" {
		return text
	}
	return string(p) + text + "\x1b[0m"
}

// clean makes what came from elsewhere fit to be shown: one line, and nothing
// that a terminal would obey.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case r == utf8.RuneError || !unicode.IsPrint(r):
			return '\uFFFD'
		}
		return r
	}, text)
}

// cut shortens a text to a width.
func cut(text string, width int) string { return wording.Columns.Truncate(text, width, "…") }

// pad fills a text up to a width; a negative one puts it to the right.
func pad(text string, width int) string {
	fill := strings.Repeat(" ", max(max(width, -width)-wording.Columns.StringWidth(text), 0))
	if width < 0 {
		return fill + text
	}
	return text + fill
}

// jsonText is a text as JSON writes it.
func jsonText(text string) []byte {
	b, _ := json.Marshal(text) // a text cannot fail
	return b
}
