package logs

import (
	"bytes"
	"regexp"
	"slices"
)

// traceback collects the lines of a traceback of Python, so that it stays whole. The
// zero value is none. torch prints one with [rank0]: before each line.
type traceback struct {
	text   []byte
	prefix []byte // before each line
	inset  bool   // of an exception group: all of it is indented
	over   bool   // the line of the exception was read
}

// TracebackHead begins a traceback of Python.
const TracebackHead = "Traceback (most recent call last):"

// RankPrefix matches the prefix that torch writes before each line of a traceback.
var RankPrefix = regexp.MustCompile(`^\[rank\d+\]: ?`)

var (
	tracebackHead = []byte(TracebackHead)
	// chained are the lines between a traceback and the one of what followed from it.
	chained = []string{
		"During handling of the above exception, another exception occurred:",
		"The above exception was the direct cause of the following exception:",
	}
)

// Chains reports whether a line is between a traceback and the one of what followed from it.
func Chains(line string) bool { return slices.Contains(chained, line) }

func (t *traceback) open() bool { return len(t.text) > 0 }

func (t *traceback) reset() { *t = traceback{text: t.text[:0]} }

// goesOn reports whether a line belongs to the traceback that is open.
func (t *traceback) goesOn(line []byte) bool {
	body, ok := bytes.CutPrefix(line, t.prefix)
	if !ok {
		return t.over && len(bytes.TrimSpace(line)) == 0
	}
	body = bytes.TrimRight(body, "\r\n")
	indented := len(body) > 0 && (body[0] == ' ' || body[0] == '\t')
	switch {
	case bytes.Contains(body, tracebackHead):
		return true
	case t.over:
		return len(body) == 0 || Chains(string(body))
	}
	return indented || !t.inset
}

// takes adds a line that continues or begins a traceback, and reports whether it does.
func (t *traceback) takes(line []byte) bool {
	begins := bytes.Contains(line, tracebackHead)
	if !t.open() {
		if !begins {
			return false
		}
		t.prefix = append(t.prefix[:0:0], RankPrefix.Find(line)...)
	}
	body := bytes.TrimPrefix(line, t.prefix)
	indented := len(body) > 0 && (body[0] == ' ' || body[0] == '\t')
	switch {
	case begins:
		t.inset, t.over = indented, false
	case !t.over:
		t.over = !indented
	}
	t.text = append(t.text, line...)
	return true
}
