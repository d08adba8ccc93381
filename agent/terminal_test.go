package agent

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"rallypoint/agent/pty"
)

// newTerminal makes a terminal of 11 rows and 77 columns; resize gives it 12 and 78.
func newTerminal(t *testing.T) (screen, terminal *os.File, resize func()) {
	t.Helper()
	screen, terminal, err := pty.Open(os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = screen.Close(), terminal.Close() })
	set := func(rows, columns uint16) {
		t.Helper()
		if err := pty.Control(terminal, func(fd int) error {
			return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
		}); err != nil {
			t.Fatal(err)
		}
	}
	set(11, 77)
	return screen, terminal, func() { set(12, 78) }
}

// shows waits for a line on a screen, which may have the next one already.
func shows(t *testing.T, screen *os.File, want string) {
	t.Helper()
	var line []byte
	for b := make([]byte, 1); len(line) == 0 || b[0] != '\n'; line = append(line, b[0]) {
		if _, err := screen.Read(b); err != nil {
			t.Fatalf("on the screen: %q, %v; want %s", line, err, want)
		}
	}
	if string(line) != want+"\n" {
		t.Fatalf("on the screen: %q; want %s", line, want)
	}
}
