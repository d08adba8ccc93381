package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rallypoint/core/rendezvous"
)

// writeToken writes a token file that is removed with the test.
func writeToken(t *testing.T, token string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestToken uses every command that takes a token with the right one, a wrong one
// and none.
func TestToken(t *testing.T) {
	good, other := writeToken(t, "correct horse battery staple"), writeToken(t, "something quite different")
	t.Setenv(rendezvous.EnvTokenFile, "")
	s := serve(t, command("serve", "--listen", "127.0.0.1:0", "--token-file", good))
	defer s.end(t)
	job := func(args ...string) []string {
		return append([]string{"run", "--rdzv-endpoint", s.addr, "--rdzv-id", "job", "--no-python"}, append(args, "true")...)
	}
	closeJob := func(args ...string) []string {
		return append([]string{"admin", "close", s.addr, "--rdzv-id", "job", "--reason", "x"}, args...)
	}
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{job("--token-file", good), 0, ""},
		{job("--rdzv-conf", "token_file="+good), 0, ""},
		{job(), 1, "wants a token"},
		{job("--token-file", other), 1, "does not know the token in " + other},
		{job("--token-file", good+"x"), 2, "no such file"},
		{closeJob(), 1, "wants a token"},
		{closeJob("--token-file", other), 1, "does not know the token"},
		{closeJob("--token-file", good+"x"), 1, "no such file"},
		{closeJob("--token-file", good), 0, ""},
		{[]string{"status", s.addr}, 0, ""}, // from this machine
		{[]string{"status", s.addr, "--token-file", good}, 0, ""},
		{[]string{"status", s.addr, "--token-file", other}, 1, "does not know the token"},
	} {
		code, stdout, stderr := run(t, test.args...)
		if code != test.code || !strings.Contains(stderr, test.says) {
			t.Errorf("%v: %d, %q, %q; want %d and %q", test.args, code, stdout, stderr, test.code, test.says)
		}
	}
	t.Setenv(rendezvous.EnvTokenFile, good)
	for _, args := range [][]string{job(), closeJob(), {"status", s.addr}} {
		if args[0] == "run" {
			args[4] = "another"
		}
		if code, stdout, stderr := run(t, args...); code != 0 {
			t.Errorf("%v: %d, %q, %q", args, code, stdout, stderr)
		}
	}

	t.Setenv(rendezvous.EnvTokenFile, "")
	open := serve(t, command("serve", "--listen", "127.0.0.1:0"))
	defer open.end(t)
	code, _, stderr := run(t, "status", open.addr, "--token-file", good)
	if code != 1 || !strings.Contains(stderr, "has no token, but this process was given one") {
		t.Errorf("%d %q", code, stderr)
	}
	code, _, stderr = run(t, "serve", "--listen", "127.0.0.1:0", "--token-file", filepath.Dir(good))
	if code != 1 || !strings.Contains(stderr, "it is no regular file") {
		t.Errorf("%d %q", code, stderr)
	}
}
