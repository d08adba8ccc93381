package agent

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxReportWidth is the longest border of a report.
const maxReportWidth = 60

// report lays failures out as the reference does, byte for byte (A78). It begins
// with a line feed and ends without one.
func report(name string, failures []Failure) string {
	title := name + " FAILED"
	root := rootCause(failures)
	width := utf8.RuneCountInString(title)
	var first string
	var others []string
	for i := range failures {
		text := failures[i].record(i)
		for line := range strings.SplitSeq(text, "\n") {
			width = max(width, utf8.RuneCountInString(line))
		}
		if i == root {
			first = text
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

// record is one failure in a report.
func (f *Failure) record(index int) string {
	name := ""
	if n := f.SignalName(); n != notAvailable {
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
