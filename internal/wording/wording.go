// Package wording has what texts for users share: a number with what it counts, a duration, how
// far a mistyped name is from one that exists, lines of a width.
package wording

import (
	"iter"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mattn/go-runewidth"
)

// HelpWidth is the width of help texts: that of a terminal which was never resized.
const HelpWidth = 80

// Columns counts the columns that a text has on a terminal: two for a CJK character or
// an emoji, none for a combining mark. It does not ask the locale: what Unicode calls
// ambiguous, "…" for one, has one column on today's terminals in any of them.
var Columns = &runewidth.Condition{StrictEmojiNeutral: true}

// Wrap breaks a text at spaces into lines of a width; all but the first are
// indented. The first line follows a text of that many columns.
func Wrap(text string, width, indent int) string {
	var lines []string
	line, length := "", 0
	for word := range strings.FieldsSeq(text) {
		n := Columns.StringWidth(word)
		if length > 0 && indent+length+1+n > width {
			lines = append(lines, line)
			line, length = "", 0
		}
		if length > 0 {
			line += " "
			length++
		}
		line += word
		length += n
	}
	return strings.Join(append(lines, line), "\n"+strings.Repeat(" ", indent))
}

// RunName is what a text calls a run: its id. "none", the id of a run that was given none, is
// quoted, since "run none" reads as "no run".
func RunName(id string) string {
	if id == "none" {
		return `"none"`
	}
	return id
}

// Count is "1 node" or "3 nodes".
func Count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// maxNames bounds the names that a text lists.
const maxNames = 20

// Names quotes the first 20 names and counts the others.
func Names(names []string) string {
	quoted := make([]string, 0, maxNames)
	for _, name := range names[:min(len(names), maxNames)] {
		quoted = append(quoted, strconv.Quote(name))
	}
	text := strings.Join(quoted, ", ")
	if more := len(names) - maxNames; more > 0 {
		text += " and " + strconv.Itoa(more) + " more"
	}
	return text
}

// Distance is how many bytes have to be inserted, deleted, replaced, or swapped with the next one
// to make b of a (optimal string alignment).
func Distance(a, b string) int {
	row, above := make([]int, len(b)+1), make([]int, len(b)+1) // above: one row higher
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0] // of the row above, to the left
		higher := slices.Clone(row)
		row[0] = i + 1
		for j := range len(b) {
			replaced := before
			if a[i] != b[j] {
				replaced++
			}
			before = row[j+1]
			row[j+1] = min(replaced, before+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], above[j-1]+1)
			}
		}
		above = higher
	}
	return row[len(b)]
}

// Seconds is a duration for log lines: "31 s", and "0.5 s" below ten seconds.
func Seconds(d time.Duration) string {
	step := time.Second
	if d < 10*time.Second {
		step = 100 * time.Millisecond
	}
	return strconv.FormatFloat(d.Round(step).Seconds(), 'f', -1, 64) + " s"
}

// WithoutDurations is a text without its durations, as Seconds and package time write them: what is
// left changes only when there is news.
func WithoutDurations(text string) string { return durations.ReplaceAllString(text, "") }

var durations = regexp.MustCompile(`\b[0-9][0-9.hm]* ?([mµ]?s)\b`)

// Runs yields the runs of successive numbers in a growing list, each by its first and its last
// number.
func Runs(numbers []int) iter.Seq2[int, int] {
	return func(yield func(first, last int) bool) {
		for i := 0; i < len(numbers); {
			j := i
			for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
				j++
			}
			if !yield(numbers[i], numbers[j]) {
				return
			}
			i = j + 1
		}
	}
}
