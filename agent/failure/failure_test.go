package failure

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rallypoint/agent/process"
	"rallypoint/internal/filetest"
)

func TestReport(t *testing.T) {
	at := time.Date(2026, 11, 21, 4, 30, 13, 5e8, time.Local)
	failures := []Failure{
		{Rank: 1, LocalRank: 1, Pid: 14114, ExitCode: 1, Host: "node-a.example", Time: at},
		{Rank: 0, LocalRank: 0, Pid: 14113, ExitCode: -9, Host: "node-a.example", Time: at.Add(30 * time.Second)},
	}
	for i := range failures {
		if err := failures[i].Complete(""); err != nil {
			t.Fatal(err)
		}
	}
	const want = `
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-21_04:30:43
  host      : node-a.example
  rank      : 0 (local_rank: 0)
  exitcode  : -9 (pid: 14113)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 14113
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_04:30:13
  host      : node-a.example
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 14114) 
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================`
	if got := Report("train.py", failures, ""); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestReportOfOneFailure(t *testing.T) {
	f := Failure{Pid: 7, ExitCode: -11, Host: "h", Time: time.Unix(0, 0)}
	_ = f.Complete("")
	got := Report("x", []Failure{f}, "")
	width := len("  traceback : Signal 11 (SIGSEGV) received by PID 7")
	if !strings.HasPrefix(got, "\n"+strings.Repeat("=", width)+"\nx FAILED\n"+strings.Repeat("-", width)+"\n") {
		t.Errorf("the border is not as wide as the longest line:\n%s", got)
	}
	if !strings.Contains(got, "\n  <NO_OTHER_FAILURES>\n") {
		t.Errorf("others:\n%s", got)
	}
}

func TestErrorFiles(t *testing.T) {
	for _, c := range []struct {
		name, text, message string
		seconds             int64
		bad                 bool
	}{
		{"new", `{"message":{"message":"m","extraInfo":{"py_callstack":"T\n  x\nü\n","timestamp":"12"}}}`, "T\n    x\n  ü\n  ", 12, false},
		{"no stack", `{"message":{"message":"m","extraInfo":{"timestamp":12}}}`, "m", 12, false},
		{"no text", `{"message":{"extraInfo":{"timestamp":"12"}}}`, "<N/A>", 12, false},
		{"old", `{"message":"a\nb","timestamp":10}`, "a\nb", 10, false},
		{"old, time as text", `{"message":"m","timestamp":"10"}`, "m", 10, false},
		{"old, no time", `{"message":"m"}`, "m", 0, false},
		{"no message", `{"x":1}`, "", 0, true},
		{"no JSON", `{"mess`, "", 0, true},
		{"empty", ``, "", 0, true},
		{"bad time", `{"message":"m","timestamp":"soon"}`, "", 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "error.json")
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			seen := time.Unix(99, 0)
			f := Failure{ExitCode: 1, Time: seen}
			err := f.Complete(path)
			switch {
			case c.bad && (err == nil || f.Message != noTraceback || !f.Time.Equal(seen) || f.ErrorFile != process.NotAvailable):
				t.Errorf("taken: %v, %+v", err, f)
			case !c.bad && (err != nil || f.Message != c.message || f.Time.Unix() != c.seconds || f.ErrorFile != path):
				t.Errorf("%v, %+v", err, f)
			}
		})
	}
}

func TestRootCause(t *testing.T) {
	at := time.Unix(100, 0)
	f := func(ms int, terminated bool) Failure {
		return Failure{order: at.Add(time.Duration(ms) * time.Millisecond), Terminated: terminated}
	}
	for _, c := range []struct {
		failures []Failure
		want     int
	}{
		{nil, -1},
		{[]Failure{f(5, false)}, 0},
		{[]Failure{f(5, false), f(4, false)}, 1},
		{[]Failure{f(5, false), f(5, false)}, 0},
		{[]Failure{f(1, true), f(5, false)}, 1},
		{[]Failure{f(2, true), f(1, true)}, 1},
	} {
		if got := RootCause(c.failures); got != c.want {
			t.Errorf("%v: %d, expected %d", c.failures, got, c.want)
		}
	}
}

// TestHandUp copies the cause's error file to the agent's own.
func TestHandUp(t *testing.T) {
	own := filepath.Join(t.TempDir(), "own.json")
	for data, want := range map[string]string{
		`{"message":{"message":"m","extraInfo":{"timestamp":"12"}}}`: `{"message":{"errorCode":7,"extraInfo":{"timestamp":"12"},"message":"m"}}`,
		`{"message":"text","timestamp":10}`:                          `{"message":"text","timestamp":10}`,
	} {
		f := Failure{ExitCode: 7, Data: []byte(data)}
		if err := f.Propagate(own); err != nil {
			t.Fatal(err)
		}
		if got, _ := os.ReadFile(own); string(got) != want {
			t.Errorf("got %s", got)
		}
	}
	if err := os.Remove(own); err != nil {
		t.Fatal(err)
	}
	if err := (&Failure{ExitCode: 7}).Propagate(own); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(own); err == nil {
		t.Error("a file was written although the worker wrote none")
	}
}

// TestTracebackInsteadOfStderr: a worker that wrote an error file has said it all.
func TestTracebackInsteadOfStderr(t *testing.T) {
	f := Failure{ErrorFile: "error.json", Stderr: []byte("again\n")}
	if text := Report("x", []Failure{f}, ""); strings.Contains(text, "again") {
		t.Errorf("report:\n%s", text)
	}
}

// TestKnownCause stands in the report in place of the tracebacks that it explains.
func TestKnownCause(t *testing.T) {
	f := Failure{ExitCode: 1, ErrorFile: process.NotAvailable, Stderr: []byte("RuntimeError:\n        An attempt has been made to start a new process before the\n")}
	if text := Report("x.py", []Failure{f}, ""); !strings.Contains(text, "\n  cause     : "+noMainGuard+"\n") || strings.Contains(text, "An attempt") {
		t.Error(text)
	}
}

// TestOnlyFilesAreRead: what a worker left in the place of a file does not hold the
// report of its failure up.
func TestOnlyFilesAreRead(t *testing.T) {
	filetest.AtFIFO(t, func(path string) {
		var f Failure
		if err := f.readErrorFile(path); err == nil {
			t.Error("a FIFO is an error file")
		}
	})
}

// TestLargeErrorFile is not read.
func TestLargeErrorFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "error.json")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, maxErrorFile+1); err != nil {
		t.Fatal(err)
	}
	var f Failure
	if err := f.readErrorFile(path); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("it is read: %v", err)
	}
}
