package secret

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"rallypoint/core/rendezvous"
)

const (
	goodToken  = "correct horse battery staple, and more"
	otherToken = "Tr0ub4dor&3 Tr0ub4dor&3 Tr0ub4dor&3"
)

// writeTokens replaces a file at once, as an administrator's tool does.
func writeTokens(t *testing.T, path string, tokens ...string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(strings.Join(tokens, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// logged are the lines of a log.
type logged struct{ bytes.Buffer }

func (l *logged) want(t *testing.T, text string, times int) {
	t.Helper()
	if n := strings.Count(l.String(), text); n != times {
		t.Errorf("%q was logged %d times, want %d, in %s", text, n, times, l)
	}
}

func wantInvalid(t *testing.T, err error, says ...string) {
	t.Helper()
	if !errors.Is(err, rendezvous.ErrInvalid) {
		t.Fatalf("%v, want ErrInvalid", err)
	}
	for _, text := range says {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%v; want an error that says %q", err, text)
		}
	}
}

func TestTokenFile(t *testing.T) {
	umask := syscall.Umask(0)
	defer syscall.Umask(umask)
	long := strings.Repeat("x", maxToken+1)
	for name, test := range map[string]struct {
		text string
		mode os.FileMode
		want string // in the error; "": none
	}{
		"one":            {goodToken + "\n", 0o600, ""},
		"no newline":     {goodToken, 0o640, ""},
		"two":            {"\n " + goodToken + "\r\n\n" + otherToken + "\n", 0o400, ""},
		"three":          {strings.Repeat(goodToken+"\n", 3), 0o600, "more than 2 lines"},
		"empty":          {"\n \n", 0o600, "it is empty"},
		"short":          {"0123456789abcdef0123456789abcde\n", 0o600, "a line has 31 bytes"},
		"long":           {long, 0o600, "a line has 513 bytes"},
		"large":          {strings.Repeat(" ", maxTokenFile+1), 0o600, "more than 4096 bytes"},
		"world-writable": {goodToken, 0o602, "anybody on this machine may write it"},
		"group-writable": {goodToken, 0o660, "its group may write it"},
	} {
		path := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(path, []byte(test.text), test.mode); err != nil {
			t.Fatal(err)
		}
		token, err := OpenToken(path, nil)
		if test.want == "" {
			if err != nil || string(token.Keys()[0]) != goodToken {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		wantInvalid(t, err, path, test.want)
	}
	for _, path := range []string{filepath.Join(t.TempDir(), "none"), t.TempDir()} {
		_, err := OpenToken(path, nil)
		wantInvalid(t, err, path)
	}
}

// TestTokenFileIsWatched changes the file, makes it unreadable and repairs it.
func TestTokenFileIsWatched(t *testing.T) {
	lines := &logged{}
	log := slog.New(slog.NewTextHandler(lines, nil))
	path := filepath.Join(t.TempDir(), "token")
	writeTokens(t, path, goodToken)
	byRoot := os.Geteuid() == 0 // only of root others may read one
	if byRoot {
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	token, err := OpenToken(path, log)
	if err != nil {
		t.Fatal(err)
	}
	if byRoot {
		lines.want(t, "anybody on this machine may read the token file", 1)
	}
	holds := func(want ...string) {
		t.Helper()
		var got []string
		for _, secret := range token.Keys() {
			got = append(got, string(secret))
		}
		if strings.Join(got, ",") != strings.Join(want, ",") {
			t.Errorf("it holds %q, want %q", got, want)
		}
	}
	holds(goodToken)
	writeTokens(t, path, otherToken, goodToken)
	holds(otherToken, goodToken)
	writeTokens(t, path, "short")
	holds(otherToken, goodToken)
	holds(otherToken, goodToken)
	lines.want(t, "cannot be used as it is now", 1)
	writeTokens(t, path, otherToken)
	holds(otherToken)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	holds(otherToken)
	lines.want(t, "cannot be used as it is now", 2)
}

// TestTokenFileOfOthers: whose file it is and who may read it, for this user and another.
func TestTokenFileOfOthers(t *testing.T) {
	const self, other = 1000, 1001
	for _, test := range []struct {
		owner, mode uint32
		want        string
	}{
		{self, 0o600, ""},
		{self, 0o440, ""},
		{0, 0o640, ""},
		{0, 0o444, ""}, // a secret that is mounted into a container
		{self, 0o644, "anybody on this machine may read it"},
		{other, 0o600, "belongs to user 1001, this process to user 1000"},
		{0, 0o620, "its group may write it"},
		{0, 0o602, "anybody on this machine may write it"},
	} {
		err := checkFile(&unix.Stat_t{Uid: test.owner, Mode: unix.S_IFREG | test.mode}, self)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("mode %04o of user %d: %v, want %q", test.mode, test.owner, err, test.want)
		}
	}
}

// TestTokenFileIsNone: anything but a file is refused at once, and nothing is read of it.
func TestTokenFileIsNone(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, t.TempDir(), "/dev/null"} {
		_, err := OpenToken(path, nil)
		wantInvalid(t, err, path, "it is not a regular file")
	}
}

// FuzzTokens reads any file as a token file: an accepted one is within the limits.
func FuzzTokens(f *testing.F) {
	f.Add([]byte(goodToken + "\n" + otherToken + "\n"))
	f.Add([]byte(" \n\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		keys, err := parseTokens(text)
		if (err == nil) != (len(keys) > 0) || len(keys) > maxTokens {
			t.Fatalf("%d tokens, %v", len(keys), err)
		}
		for _, key := range keys {
			if len(key) < minToken || len(key) > maxToken || !bytes.Equal(bytes.TrimSpace(key), key) || bytes.ContainsRune(key, '\n') {
				t.Errorf("%q is taken as a token", key)
			}
		}
	})
}
