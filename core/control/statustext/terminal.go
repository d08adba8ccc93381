package statustext

import (
	"io"
	"math"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/internal/wording"
)

// Terminal describes the terminal for which text is formatted.
type Terminal struct {
	Interactive bool
	Colour      bool
	Width       int
	Zone        *time.Location
}

// Widths in columns: of output that is not a terminal, which loses nothing, and the narrowest for
// which the tables are made.
const (
	Unlimited  = math.MaxInt
	leastWidth = 60
)

// Most is how many of a list are shown: all but on a terminal.
func (t Terminal) Most(n int) int {
	if t.Width == Unlimited {
		return math.MaxInt
	}
	return n
}

// TerminalOf looks at a stream's device. Colour is for terminals only, and not
// where NO_COLOR is set (no-color.org) or TERM says that there is none.
func TerminalOf(out io.Writer) Terminal {
	s := Terminal{Width: Unlimited, Zone: time.Local}
	f, ok := out.(*os.File)
	if !ok {
		return s
	}
	if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err != nil {
		return s
	}
	s.Interactive = true
	s.Colour = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
		s.Width = max(int(size.Col), leastWidth)
	}
	return s
}

// Style is the colour of a text.
type Style string

// The colours.
const (
	Plain  Style = ""
	bold   Style = "\x1b[1m"
	faint  Style = "\x1b[2m"
	red    Style = "\x1b[31m"
	green  Style = "\x1b[32m"
	yellow Style = "\x1b[33m"
)

// apply colours a text that has its final width.
func (t Terminal) apply(p Style, text string) string {
	if !t.Colour || p == Plain || text == "" {
		return text
	}
	return string(p) + text + "\x1b[0m"
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
