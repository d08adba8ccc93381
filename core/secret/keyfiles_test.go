package secret

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rallypoint/core/rendezvous"
)

// TestKeyFiles is what a careless owner gives as the token: taken is what means the same on each
// node, and the rest refused with what to do. (TestTokenFileOfOthers and TestTokenFileIsNone
// have owners, modes and what is no file.)
func TestKeyFiles(t *testing.T) {
	const key = "0123456789abcdef0123456789abcdef"
	utf16 := func(text string) string {
		wide := "\xff\xfe"
		for _, b := range []byte(text) {
			wide += string([]byte{b, 0})
		}
		return wide
	}
	for name, test := range map[string]struct{ text, want string }{
		"plain":                  {key + "\n", ""},
		"without a line's end":   {key, ""},
		"of Windows":             {key + "\r\n", ""},
		"spaces around":          {"\n  " + key + " \t\n\n", ""},
		"byte order mark":        {"\xef\xbb\xbf" + key + "\n", "it is no plain text"},
		"UTF-16":                 {utf16(key + "\r\n"), "it is no plain text"},
		"UTF-16, other order":    {"\xfe\xff" + strings.Repeat("\x00a", 32), "it is no plain text"},
		"sparse":                 {key + strings.Repeat("\x00", 32), "it is no plain text"},
		"a megabyte":             {strings.Repeat(key+"\n", 1<<15), "it has more than 4096 bytes"},
		"a private key in PEM":   {"-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIA==\n-----END PRIVATE KEY-----\n", "a line has 27 bytes"},
		"31 bytes and a space":   {key[:31] + " \n", "a line has 31 bytes"},
		"a comment above":        {"# the key of the job that trains the larger model\n" + key, "a token file has no comments"},
		"tokens of other runs":   {string(deriveRunKey([]byte(key), "a")) + "\n" + string(deriveRunKey([]byte(key), "b")), "not for the same run"},
		"a run's and a server's": {string(deriveRunKey([]byte(key), "a")) + "\n" + key, "not for the same run"},
	} {
		path := filepath.Join(t.TempDir(), "key")
		if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		token, err := OpenToken(path, nil)
		switch {
		case test.want != "" && (!errors.Is(err, rendezvous.ErrInvalid) || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), path)):
			t.Errorf("%s: %v, want %q", name, err, test.want)
		case err != nil && strings.Contains(err.Error(), key[:8]):
			t.Errorf("%s: the key is in %v", name, err)
		case test.want == "" && (err != nil || string(token.Keys()[0]) != key):
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestKeyFileIsReplaced by what is no token while it is in use: what it held counts on, and the
// log says so once.
func TestKeyFileIsReplaced(t *testing.T) {
	for name, replace := range map[string]func(path string) error{
		"directory":      func(path string) error { return os.Mkdir(path, 0o700) },
		"dangling link":  func(path string) error { return os.Symlink(path+".none", path) },
		"link in a ring": func(path string) error { return os.Symlink(path, path) },
		"device":         func(path string) error { return os.Symlink("/dev/zero", path) },
		"group may write": func(path string) error {
			return errors.Join(os.WriteFile(path, []byte(otherToken), 0o600), os.Chmod(path, 0o660))
		},
		"empty": func(path string) error { return os.WriteFile(path, nil, 0o600) },
	} {
		lines := &logged{}
		path := filepath.Join(t.TempDir(), "key")
		writeTokens(t, path, goodToken)
		token, err := OpenToken(path, slog.New(slog.NewTextHandler(lines, nil)))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Remove(path), replace(path)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if keys := token.Keys(); len(keys) != 1 || !bytes.Equal(keys[0], []byte(goodToken)) {
				t.Errorf("%s: %q counts", name, keys)
			}
		}
		lines.want(t, "cannot be used as it is now", 1)
		lines.want(t, goodToken, 0)
	}
}
