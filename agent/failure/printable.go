package failure

import (
	"fmt"
	"math"
	"regexp"
	"slices"
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

var agentLine = regexp.MustCompile(`(?m)^[DIWE]\d{4} [0-9:.]{15} \d+ rallypoint\] .*\n?`)

// output is Stderr, of a file that the agent shares without its log.
func (f *Failure) output() []byte {
	if !f.SharedOutput {
		return f.Stderr
	}
	return agentLine.ReplaceAll(f.Stderr, nil)
}

// maxLastError limits a worker's own word in a summary, in bytes.
const maxLastError = 300

// noMainGuard is the cause of a worker that has failed for want of a guard, and what to do.
const noMainGuard = "the script starts processes (multiprocessing, spawn) at its top level, and each of them runs the script again: put that code under `if __name__ == \"__main__\":`"

// unguarded are what multiprocessing says in a process that runs the script again.
var unguarded = []string{
	"An attempt has been made to start a new process before the",
	"in _fixup_main_from_path\n(?s:.*)RuntimeError: context has already been set",
}

var unguardedSign = regexp.MustCompile(strings.Join(unguarded, "|"))

// Unguarded reports whether the worker failed because its script starts processes that import it, and
// does not guard that: it fails in the same way whenever it is started.
func (f *Failure) Unguarded() bool { return f.ExitCode > 0 && unguardedSign.Match(f.output()) }

// lastError is the worker's own word on its failure, in one line: the exception of its
// last traceback, else the last line of its stderr. A worker that a signal ended had none
// unless it called abort. In a file that several workers share a line may be another's: there it is
// the exception that torch has marked with the worker's rank, else one that nothing contradicts.
func (f *Failure) lastError() string {
	switch {
	case f.ExitCode < 0 && f.ExitCode != -int(unix.SIGABRT) || f.Terminated:
		return ""
	case f.Unguarded():
		return noMainGuard
	}
	text := f.output()
	if f.ErrorFile != process.NotAvailable && f.ErrorFile != "" {
		text = []byte(f.Message)
	}
	lines, _ := tailLines(text[max(0, len(text)-logs.Kept):], math.MaxInt)
	own := fmt.Sprintf("[rank%d]:", f.Rank)
	if f.SharedOutput && slices.ContainsFunc(lines, func(line string) bool {
		return strings.HasPrefix(line, own) && strings.Contains(line, logs.TracebackHead)
	}) {
		lines = slices.DeleteFunc(lines, func(line string) bool { return !strings.HasPrefix(line, own) })
	} else if f.SharedOutput {
		lines = slices.DeleteFunc(lines, logs.RankPrefix.MatchString)
	}
	last, errors := exceptions(lines)
	switch {
	case len(errors) == 0 && f.SharedOutput:
		return ""
	case f.SharedOutput && !strings.HasPrefix(lines[0], own) && len(slices.Compact(slices.Sorted(slices.Values(errors)))) > 1:
		return ""
	}
	return pack.CutText(printable.Text(last), maxLastError)
}

// exceptions returns the exceptions of the tracebacks in some lines, the last one of each chain, and the
// last of all; without a traceback, the last line.
func exceptions(lines []string) (last string, errors []string) {
	open, chained := false, false // open: the exception of a traceback is still to come
	for _, line := range lines {
		line = logs.RankPrefix.ReplaceAllString(line, "")
		switch {
		case strings.Contains(line, logs.TracebackHead):
			open = true
		case logs.Chains(line):
			chained = true
		case open && line != "" && line[0] != ' ' && line[0] != '\t':
			if chained && len(errors) > 0 {
				errors = errors[:len(errors)-1]
			}
			last, open, chained = line, false, false
			errors = append(errors, line)
		case len(errors) == 0 && !open && strings.TrimSpace(line) != "":
			last = strings.TrimSpace(line)
		}
	}
	return last, errors
}
