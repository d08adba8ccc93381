package logs

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"rallypoint/agent/pty"
	"rallypoint/internal/linequeue"
	"rallypoint/internal/testkit"
)

// TestStderrTee passes everything on unchanged and keeps its end, whatever is written
// in what pieces.
func TestStderrTee(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var passed bytes.Buffer
		to, other, err := os.Pipe()
		tty := rapid.Bool().Draw(t, "tty")
		if tty {
			_, _ = to.Close(), other.Close()
			to, other, err = pty.Open(os.Stderr)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _, _ = to.Close(), other.Close() }()
		tee, write, err := newStderrTee(other, linequeue.New(io.Discard, "stderr"), func(text []byte) { passed.Write(text) })
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
			if got := tee.last(); !bytes.Equal(got, all[max(0, len(all)-Kept):]) {
				t.Fatalf("kept %d bytes of %d", len(got), len(all))
			}
		}
		if tty || rapid.Bool().Draw(t, "closed") { // else another process holds it still
			_ = write.Close()
		}
		tee.stop()
		_ = write.Close()
		if got := tee.last(); !bytes.Equal(got, all[max(0, len(all)-Kept):]) {
			t.Fatalf("kept %d bytes of %d", len(got), len(all))
		}
		if !bytes.Equal(passed.Bytes(), all) {
			t.Fatalf("passed %d bytes of %d", passed.Len(), len(all))
		}
	})
}

// TestStderrTeeKeepsLinesWhole where one read does not take all that has been written.
func TestStderrTeeKeepsLinesWhole(t *testing.T) {
	var parts []string
	tee := &stderrTee{pass: func(text []byte) { parts = append(parts, string(text)) }}
	tee.take([]byte("a\nbeg"), true)
	tee.take([]byte("un\nc"), false)
	if !slices.Equal(parts, []string{"a\n", "begun\nc"}) {
		t.Errorf("parts %q", parts)
	}
}

// TestOneFile: a terminal and a pipe are one file by whatever descriptor, two files are
// not; of what is dropped there is no order.
func TestOneFile(t *testing.T) {
	screen, terminal, err := pty.Open(os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = screen.Close(), terminal.Close() }()
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
		if got := linequeue.SameFile(int(c.a.Fd()), int(c.b.Fd())); got != c.want {
			t.Errorf("%s and %s: %v", c.a.Name(), c.b.Name(), got)
		}
	}
	if linequeue.SameFile(-1, -1) {
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
	shared := endOf(int(file.Fd()))
	say("during\n")
	if got := string(shared.last()); got != "during\n" {
		t.Errorf("%q", got)
	}
	shared.Ended()
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
	shared = endOf(int(file.Fd()))
	say(strings.Repeat("x", Kept) + "end")
	if got := string(shared.last()); len(got) != Kept || !strings.HasSuffix(got, "xend") {
		t.Errorf("%d bytes", len(got))
	}
}

// TestNoPseudoTerminal: where this process can make no terminal, as in a container without /dev/ptmx or on a machine
// that has given all away, workers start with a pipe.
func TestNoPseudoTerminal(t *testing.T) {
	const marker = "RALLYPOINT_TEST_NO_PTMX"
	if os.Getenv(marker) == "" {
		_, terminal, err := pty.Open(os.Stderr)
		testkit.Check(t, err)
		args := []string{"-m", "sh", "-c", `mount --bind /dev/null /dev/ptmx || { echo CANNOT; exit 0; }; exec "$0" -test.run='^TestNoPseudoTerminal$'`, testkit.Must(os.Executable())(t)}
		if os.Getuid() != 0 {
			args = append([]string{"-r"}, args...)
		}
		cmd := exec.Command("unshare", args...)
		cmd.Env, cmd.ExtraFiles = append(os.Environ(), marker+"=1"), []*os.File{terminal}
		out, err := cmd.CombinedOutput()
		switch {
		case strings.Contains(string(out), "CANNOT") || err != nil && strings.Contains(string(out), "unshare"):
			t.Skipf("/dev/ptmx cannot be hidden here: %s", out)
		case err != nil:
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	tee, write, err := newStderrTee(os.NewFile(3, "terminal"), linequeue.New(io.Discard, "stderr"), func([]byte) {})
	testkit.Check(t, err)
	_ = testkit.Must(write.WriteString("x"))(t)
	testkit.Check(t, write.Close())
	tee.stop()
	testkit.Equal(t, string(tee.last()), "x")
}
