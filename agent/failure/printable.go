package failure

import (
	"math"
	"regexp"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"rallypoint/agent/logs"
	"rallypoint/agent/process"
	"rallypoint/internal/pack"
	"rallypoint/internal/printable"
)

// plainLines is a text without colours and whatever else a terminal would obey.
func plainLines(text string) string {
	return printable.Lines(strings.ReplaceAll(logs.Drawing.ReplaceAllString(text, ""), "\r\n", "\n"))
}

// tailLines returns the last lines of an output in printable form, at most most of them, without
// colours and control characters. Of a line that was overwritten by \r it keeps the last version.
// more reports whether there were lines before.
func tailLines(text []byte, most int) (shown []string, more bool) {
	plain := logs.Drawing.ReplaceAllString(strings.ToValidUTF8(string(text), "\uFFFD"), "")
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

// agentLine is a line of an agent's log.
var agentLine = regexp.MustCompile(`(?m)^[DIWE]\d{4} [0-9:.]{15} \d+ rallypoint\] .*\n?`)

// output is Stderr, of a file that the agent shares without its log.
func (f *Failure) output() []byte {
	if !f.SharedOutput {
		return f.Stderr
	}
	return agentLine.ReplaceAll(f.Stderr, nil)
}

const (
	maxLastError  = 300     // bytes of a worker's own word in a summary
	lastErrorFrom = 8 << 10 // bytes of its stderr in which that is looked for
)

// lastError is the worker's own word on its failure, in one line: the exception of its
// last traceback, else the last line of its stderr. A worker that a signal ended had none
// unless it called abort. In a file that several workers share a line may be another's.
func (f *Failure) lastError() string {
	if f.ExitCode < 0 && f.ExitCode != -int(unix.SIGABRT) || f.Terminated {
		return ""
	}
	text := f.output()
	if f.ErrorFile != process.NotAvailable && f.ErrorFile != "" {
		text = []byte(f.Message)
	}
	lines, _ := tailLines(text[max(0, len(text)-lastErrorFrom):], math.MaxInt)
	last, heads, open := "", 0, false // open: the exception of the traceback is still to come
	for _, line := range lines {
		line = logs.RankPrefix.ReplaceAllString(line, "")
		switch {
		case strings.Contains(line, logs.TracebackHead):
			heads, open = heads+1, true
		case open && line != "" && line[0] != ' ' && line[0] != '\t':
			last, open = line, false
		case heads == 0 && strings.TrimSpace(line) != "" && !f.SharedOutput:
			last = strings.TrimSpace(line)
		}
	}
	if f.SharedOutput && heads > 1 {
		return ""
	}
	return pack.CutText(printable.Text(last), maxLastError)
}
