package failure

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"rallypoint/agent/process"
)

const maxReportWidth = 60

// Report lays failures out as the reference does, byte for byte. It begins with a line feed and
// ends without one. next, which says what the agent does about them, is one more line of the root
// cause unless it is "". Without failures it is "".
func Report(name string, failures []Failure, next string) string {
	if len(failures) == 0 {
		return ""
	}
	title := name + " FAILED"
	root := RootCause(failures)
	width := utf8.RuneCountInString(title)
	var first string
	var others []string
	for i := range failures {
		text := failures[i].record(i) + failures[i].stackLines()
		for line := range strings.SplitSeq(text, "\n") {
			width = max(width, utf8.RuneCountInString(line))
		}
		if i == root {
			first = text + failures[i].hangLines() + failures[i].stderrLines()
			if next != "" {
				first += "\n  next      : " + next
			}
		} else {
			others = append(others, text)
		}
	}
	if len(others) == 0 {
		others = []string{"  <NO_OTHER_FAILURES>"}
	}
	width = min(width, maxReportWidth)
	border, rule := strings.Repeat("=", width), strings.Repeat("-", width)
	return strings.Join([]string{
		"", border, title, rule, "Failures:", strings.Join(others, "\n"),
		rule, "Root Cause (first observed failure):", first, border,
	}, "\n")
}

const maxStderrLines = 50

// stderrLines are the last lines of the root cause's stderr, for its record. They are left out if
// the record has the worker's own traceback. A known cause takes the place of its tracebacks.
func (f *Failure) stderrLines() string {
	switch {
	case f.Unguarded():
		return "\n  cause     : " + noMainGuard
	case f.ErrorFile != process.NotAvailable:
		return ""
	}
	shown, more := tailLines(f.output(), maxStderrLines)
	if len(shown) == 0 {
		return ""
	}
	title := ""
	if more {
		title = fmt.Sprintf(" (the last %d lines)", len(shown))
	}
	if f.SharedOutput {
		return "\n  output    :" + title + " (of all workers of its node: stdout and stderr go to one file)\n    " + strings.Join(shown, "\n    ")
	}
	return "\n  stderr    :" + title + "\n    " + strings.Join(shown, "\n    ")
}

// hangLines says that the job had hung or stood still before, as one more line of the root cause.
func (f *Failure) hangLines() string {
	switch {
	case f.Hang == "" && f.Still <= 0:
		return ""
	case f.Hang == "" && f.Stood != "":
		return "\n  standstill: the job stood still before this failure: " + f.Stood
	case f.Hang == "":
		return "\n  standstill: " + f.stillText() + "; this worker may have waited for another one, which hung"
	}
	return "\n  hang      : the job hung before this failure: " + f.Hang
}

// stackLines are the stack of a worker that had to be killed, or whose job hung, for its record.
func (f *Failure) stackLines() string {
	if f.Stack == "" {
		return ""
	}
	when := "it did not end within its grace"
	switch {
	case f.Hang != "":
		when = "while the job hung"
	case f.Stood != "":
		when = "while the job stood still"
	}
	return "\n  last stack: (" + when + ")\n  " + strings.ReplaceAll(strings.TrimSuffix(f.Stack, "\n"), "\n", "\n  ")
}

func (f *Failure) record(index int) string {
	name := ""
	if n := f.signalName(); n != process.NotAvailable {
		name = " (" + n + ")"
	}
	return fmt.Sprintf(`[%d]:
  time      : %s
  host      : %s
  rank      : %d (local_rank: %d)
  exitcode  : %d (pid: %d) %s
  error_file: %s
  traceback : %s`,
		index, f.Time.Local().Format("2006-01-02_15:04:05"), f.Host, f.Rank, f.LocalRank,
		f.ExitCode, f.Pid, name, f.ErrorFile, f.Message)
}
