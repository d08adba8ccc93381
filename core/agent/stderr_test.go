package agent

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// TestTap passes everything on unchanged and keeps its end, whatever is written
// in what pieces.
func TestTap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var passed bytes.Buffer
		to, other, err := os.Pipe()
		tty := rapid.Bool().Draw(t, "tty")
		if tty {
			_, _ = to.Close(), other.Close()
			to, other, err = openPty(os.Stderr)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _, _ = to.Close(), other.Close() }()
		tap, write, err := newTap(other, func(text []byte) { passed.Write(text) })
		if err != nil {
			t.Fatal(err)
		}
		var all []byte
		for range rapid.IntRange(0, 5).Draw(t, "writes") {
			unit := rapid.SliceOfN(rapid.Byte(), 1, 50).Draw(t, "unit")
			text := bytes.Repeat(unit, rapid.IntRange(1, 3000).Draw(t, "times"))
			all = append(all, text...)
			if _, err := write.Write(text); err != nil {
				t.Fatal(err)
			}
			if tty { // which hands over what was written when it is closed, at the latest
				continue
			}
			if got := tap.last(); !bytes.Equal(got, all[max(0, len(all)-maxStderr):]) {
				t.Fatalf("kept %d bytes of %d", len(got), len(all))
			}
		}
		if tty || rapid.Bool().Draw(t, "closed") { // else somebody holds it still
			_ = write.Close()
		}
		tap.stop()
		_ = write.Close()
		if got := tap.last(); !bytes.Equal(got, all[max(0, len(all)-maxStderr):]) {
			t.Fatalf("kept %d bytes of %d", len(got), len(all))
		}
		if !bytes.Equal(passed.Bytes(), all) {
			t.Fatalf("passed %d bytes of %d", passed.Len(), len(all))
		}
	})
}

// TestTapKeepsLinesWhole where one read does not take all that is there.
func TestTapKeepsLinesWhole(t *testing.T) {
	var parts []string
	tap := &tap{pass: func(text []byte) { parts = append(parts, string(text)) }}
	tap.take([]byte("a\nbeg"), true)
	tap.take([]byte("un\nc"), false)
	if !slices.Equal(parts, []string{"a\n", "begun\nc"}) {
		t.Errorf("parts %q", parts)
	}
}

func TestTailLines(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
		more bool
	}{
		{"", nil, false},
		{"\n\n", nil, false},
		{"a\nb\n", []string{"a", "b"}, false},
		{"a\nb\nc\n\n", []string{"b", "c"}, true},
		{"10%\r50%\r\nend", []string{"50%", "end"}, false},
		{"\x1b[31mred\x1b[0m\x1b]0;title\x07\a\n\tx\xff", []string{"red", "\tx\uFFFD"}, false},
	} {
		got, more := tailLines([]byte(c.text), 2)
		if !slices.Equal(got, c.want) || more != c.more {
			t.Errorf("%q: %q, %v", c.text, got, more)
		}
	}
}

// TestStderrInReport shows what the culprit said last, wherever its stderr went
// (issue: no decorator needed).
func TestStderrInReport(t *testing.T) {
	for _, streams := range []Std{StdNone, StdErr} {
		s := newStage(t, 1, `i=0; while [ $i -lt 60 ]; do echo line $i >&2; i=$((i+1)); done; exit 3`)
		s.spec.Logs.Redirects = AllRanks(streams)
		out, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		s.spec.Stderr = out
		err = s.run()
		s.failed(err)
		const end = "\n  stderr    : (the last 50 lines)\n    line 10\n    line 11\n"
		if text := err.Error(); !strings.Contains(text, end) || strings.Contains(text, "line 9\n") || !strings.Contains(text, "\n    line 59\n====") {
			t.Errorf("report:\n%s", text)
		}
		passed, _ := os.ReadFile(out.Name())
		if got := strings.Count(string(passed), "\n"); (got == 60) != (streams == StdNone) {
			t.Errorf("%d lines were passed on", got)
		}
	}
}

// TestTracebackInsteadOfStderr: a worker that wrote an error file has said it all.
func TestTracebackInsteadOfStderr(t *testing.T) {
	f := Failure{ErrorFile: "error.json", Stderr: []byte("again\n")}
	if text := report("x", []Failure{f}); strings.Contains(text, "again") {
		t.Errorf("report:\n%s", text)
	}
}

// TestOOM finds the kernel's count in each layout of control groups.
func TestOOM(t *testing.T) {
	for _, c := range []struct{ cgroup, file, where string }{
		{"0::/job\n", "sys/fs/cgroup/job/memory.events", "the control group /job"},
		{"0::/job\n", "sys/fs/cgroup/memory.events", "the control group /job"},
		{"4:memory:/a\n0::/\n", "sys/fs/cgroup/memory/a/memory.oom_control", "the control group /a"},
		{"4:cpu,memory:/a\n", "sys/fs/cgroup/memory/memory.oom_control", "the control group /a"},
		{"", "proc/vmstat", "this machine"},
	} {
		root := t.TempDir()
		write := func(name, text string) {
			path := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		write("proc/self/cgroup", c.cgroup)
		write(c.file, "low 0\noom_kill 4\n")
		counter := newOOMCounter(root)
		if note := counter.note(); note != "" {
			t.Errorf("%s: %q", c.file, note)
		}
		write(c.file, "low 0\noom_kill 6\n")
		if note, want := counter.note(), fmt.Sprintf("out of memory: the kernel killed 2 processes of %s since the workers started", c.where); note != want {
			t.Errorf("%s: %q", c.file, note)
		}
	}
	if note := new(oomCounter).note(); note != "" {
		t.Errorf("the zero value says %q", note)
	}
}

// TestOOMInReport marks the victim, and not one that the agent itself killed.
func TestOOMInReport(t *testing.T) {
	root := t.TempDir()
	events := filepath.Join(root, "proc/vmstat")
	if err := os.MkdirAll(filepath.Dir(events), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(events, []byte("oom_kill 0\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	s := newStage(t, 2, `[ $RANK = 1 ] && trap '' TERM && echo up > $SAY && while :; do sleep 100; done
		read up < $SAY; echo oom_kill 1 > $EVENTS; kill -KILL $$`)
	s.spec.Environ = append(s.spec.Environ, "EVENTS="+events)
	s.spec.ShutdownTimeout = 0
	a, err := New(s.spec, "test", s.rdzv, discard())
	if err != nil {
		t.Fatal(err)
	}
	a.oom = newOOMCounter(root)
	failures := s.failed(a.Run(t.Context()))
	if len(failures) != 2 || !failures[0].OOM || failures[1].OOM ||
		!strings.HasSuffix(failures[0].Message, "(out of memory: the kernel killed a process of this machine since the workers started)") ||
		!strings.HasSuffix(failures[0].summary(), "was killed because memory ran out") {
		t.Errorf("failures %+v", failures)
	}
}

// newTerminal makes a terminal of 11 rows and 77 columns; resize gives it 12 and 78.
func newTerminal(t *testing.T) (screen, terminal *os.File, resize func()) {
	t.Helper()
	screen, terminal, err := openPty(os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = screen.Close(), terminal.Close() })
	set := func(rows, columns uint16) {
		t.Helper()
		if err := control(terminal, func(fd int) error {
			return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
		}); err != nil {
			t.Fatal(err)
		}
	}
	set(11, 77)
	return screen, terminal, func() { set(12, 78) }
}

// shows waits for a line on a screen.
func shows(t *testing.T, screen *os.File, want string) {
	t.Helper()
	line := make([]byte, 100)
	if n, err := screen.Read(line); err != nil || string(line[:n]) != want+"\n" {
		t.Fatalf("on the screen: %q, %v; want %s", line[:n], err, want)
	}
}

// TestStderrIsTerminal for the workers if it is one for the agent, and its end is in
// the report all the same.
func TestStderrIsTerminal(t *testing.T) {
	screen, terminal, _ := newTerminal(t)
	s := newStage(t, 1, "[ -t 2 ] && echo $(stty size <&2) >&2; exit 3")
	s.spec.Stderr = terminal
	err := s.run()
	s.failed(err)
	if text := err.Error(); !strings.Contains(text, "\n  stderr    :\n    11 77\n====") {
		t.Errorf("report:\n%s", text)
	}
	shows(t, screen, "11 77")
}

// TestTerminalIsResized and the workers' terminals follow: at once if the agent is told,
// else when a worker has written something.
func TestTerminalIsResized(t *testing.T) {
	for name, script := range map[string]string{
		"told":     `echo $(stty size <&2) >&2; until [ "$(stty size <&2)" = "12 78" ]; do sleep 0.01; done; echo seen >&2`,
		"not told": `echo $(stty size <&2) >&2; until [ -e "$SAY.go" ]; do sleep 0.01; done; echo drawn >&2; until [ "$(stty size <&2)" = "12 78" ]; do sleep 0.01; done; echo seen >&2`,
	} {
		t.Run(name, func(t *testing.T) {
			screen, terminal, resize := newTerminal(t)
			s := newStage(t, 1, script)
			s.spec.Stderr = terminal
			s.start()
			shows(t, screen, "11 77")
			resize()
			if name == "told" {
				s.agent.Resized()
			} else {
				say := strings.TrimPrefix(s.spec.Environ[1], "SAY=")
				if err := os.WriteFile(say+".go", nil, 0o600); err != nil {
					t.Fatal(err)
				}
				shows(t, screen, "drawn")
			}
			shows(t, screen, "seen")
			if err := s.wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestOneFile: a terminal and a pipe are one file by whatever descriptor, two files are
// not; of what is dropped there is no order.
func TestOneFile(t *testing.T) {
	_, terminal, _ := newTerminal(t)
	again, err := os.OpenFile(terminal.Name(), os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = read.Close(), write.Close() }()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	one, err := os.Create(filepath.Join(t.TempDir(), "one"))
	if err != nil {
		t.Fatal(err)
	}
	defer one.Close()
	reopened, err := os.OpenFile(one.Name(), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reopened.Close()
	for _, c := range []struct {
		a, b *os.File
		want bool
	}{
		{terminal, again, true}, {read, write, true}, {one, reopened, true},
		{one, write, false}, {terminal, write, false}, {null, null, false},
	} {
		if got := isOneFile(int(c.a.Fd()), int(c.b.Fd())); got != c.want {
			t.Errorf("%s and %s: %v", c.a.Name(), c.b.Name(), got)
		}
	}
	if isOneFile(-1, -1) {
		t.Error("descriptors that are closed are a file")
	}
}

// TestSharedFile: the part of a log that a worker's run has filled is shown, also if
// the log was there before, or was cut meanwhile.
func TestSharedFile(t *testing.T) {
	file, err := os.OpenFile(filepath.Join(t.TempDir(), "log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	say := func(text string) {
		if _, err := file.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	say("before\n")
	shared := newSharedFile(file)
	say("during\n")
	if got := string(shared.last()); got != "during\n" {
		t.Errorf("%q", got)
	}
	shared.ended()
	say("after\n")
	if got := string(shared.last()); got != "during\n" {
		t.Errorf("%q", got)
	}
	if err := file.Truncate(0); err != nil {
		t.Fatal(err)
	}
	say("new\n")
	if got := string(shared.last()); got != "new\n" {
		t.Errorf("%q", got)
	}
	shared = newSharedFile(file)
	say(strings.Repeat("x", maxStderr) + "end")
	if got := string(shared.last()); len(got) != maxStderr || !strings.HasSuffix(got, "xend") {
		t.Errorf("%d bytes", len(got))
	}
}
