package cli

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"rallypoint/cli/run"
	"rallypoint/core/params"
	"rallypoint/core/secret"
	"rallypoint/internal/testkit"
)

// TestToken uses every command that takes a token with the right one, a wrong one
// and none.
func TestToken(t *testing.T) {
	good, other := testkit.TokenFile(t, "correct horse battery staple, and more"), testkit.TokenFile(t, "something that is quite different here")
	t.Setenv(params.EnvTokenFile, "")
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
		{job(), 1, "requires a token"},
		{job("--token-file", other), 1, "does not know the token in " + other},
		{job("--token-file", good+"x"), 2, "no such file"},
		{closeJob(), 1, "requires a token"},
		{closeJob("--token-file", other), 1, "does not know the token"},
		{closeJob("--token-file", good+"x"), 1, "no such file"},
		{closeJob("--token-file", good), 0, ""},
		{[]string{"status", s.addr}, 0, ""}, // from this machine
		{[]string{"status", s.addr, "--token-file", good}, 0, ""},
		{[]string{"status", s.addr, "--token-file", other}, 1, "does not know the token"},
	} {
		code, stdout, stderr := execute(t, test.args...)
		if code != test.code || !strings.Contains(stderr, test.says) {
			t.Errorf("%v: %d, %q, %q; want %d and %q", test.args, code, stdout, stderr, test.code, test.says)
		}
	}
	t.Setenv(params.EnvTokenFile, good)
	fingerprint := secret.Fingerprint([]byte("correct horse battery staple, and more"))
	for _, args := range [][]string{job(), closeJob(), {"status", s.addr}} {
		if args[0] == "run" {
			args[4] = "another"
		}
		if code, stdout, stderr := execute(t, args...); code != 0 {
			t.Errorf("%v: %d, %q, %q", args, code, stdout, stderr)
		} else if args[0] == "status" && !strings.Contains(stdout, "\nToken: "+fingerprint) {
			t.Errorf("the token %s is not in %q", fingerprint, stdout)
		}
	}

	own := filepath.Join(t.TempDir(), "own")
	if code, _, stderr := execute(t, "token", "derive", good, "--rdzv-id", "job", "--output", own); code != 0 {
		t.Fatal(stderr)
	}
	t.Setenv(params.EnvTokenFile, "")
	code, stdout, stderr := execute(t, "status", s.addr, "--token-file", own)
	if code != 0 || !strings.Contains(stdout, "\nRun job: ") || strings.Contains(stdout, "pid 0") || strings.Contains(stdout, "Run another") {
		t.Errorf("by the token of a run, which is not named: %d, %q, %q", code, stdout, stderr)
	}

	open := serve(t, command("serve", "--listen", "127.0.0.1:0"))
	defer open.end(t)
	code, _, stderr = execute(t, "status", open.addr, "--token-file", good)
	if code != 1 || !strings.Contains(stderr, "has no token, but this process was given one") {
		t.Errorf("%d %q", code, stderr)
	}
	code, _, stderr = execute(t, "serve", "--listen", "127.0.0.1:0", "--token-file", filepath.Dir(good))
	if code != 1 || !strings.Contains(stderr, "it is not a regular file") {
		t.Errorf("%d %q", code, stderr)
	}
}

// TestTokenThatProtectsNothing gives a token where there is no control plane.
func TestTokenThatProtectsNothing(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	job := func(args ...string) []string {
		return append(append([]string{"run", "--no-python"}, args...), "true")
	}
	for _, test := range []struct {
		args []string
	}{
		{job("--standalone")},
		{job()},
	} {
		t.Setenv(params.EnvTokenFile, "")
		byFlag := append([]string{test.args[0], "--token-file", none}, test.args[1:]...)
		lines := [][]string{byFlag}
		if test.args[0] == "run" {
			lines = append(lines, append([]string{"run", "--rdzv-conf", "token_file=" + none}, test.args[1:]...))
		}
		for _, args := range lines {
			if code, stdout, stderr := execute(t, args...); code != run.ExitUsage || !strings.Contains(stderr, none+" would protect nothing") {
				t.Errorf("%v: %d, %q, %q", args, code, stdout, stderr)
			}
		}
		t.Setenv(params.EnvTokenFile, none)
		code, stdout, stderr := execute(t, test.args...)
		if refused := strings.Contains(stderr, "would protect nothing"); refused || code == run.ExitUsage {
			t.Errorf("%v, by the variable: %d, %q, %q", test.args, code, stdout, stderr)
		}
	}
}

// TestTokenFileMissing: wherever several nodes meet, the file of a token has to be there.
func TestTokenFileMissing(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	job := func(args ...string) []string {
		return append(append([]string{"run", "--no-python", "--token-file", none}, args...), "true")
	}
	for _, args := range [][]string{
		job("--nnodes", "2", "--rdzv-backend", "static", "--rdzv-endpoint", "127.0.0.1:29500"),
		job("--rdzv-id", "j", "--rdzv-endpoint", "file://"+t.TempDir()),
		job("--rdzv-id", "j", "--rdzv-endpoint", "etcd://127.0.0.1:1"),
		job("--rdzv-id", "j", "--rdzv-backend", "etcd"),
	} {
		if code, stdout, stderr := execute(t, args...); code == 0 || !strings.Contains(stderr, none+": stat") {
			t.Errorf("%v: %d, %q, %q", args, code, stdout, stderr)
		}
	}
}

// TestTokenDerive prints the token of a run, which is the same each time, takes no other's place
// and is never derived again.
func TestTokenDerive(t *testing.T) {
	master := filepath.Join(t.TempDir(), "master")
	if code, _, stderr := execute(t, "token", "new", master); code != 0 {
		t.Fatal(stderr)
	}
	derive := func(file, run string) (int, string, string) {
		return execute(t, "token", "derive", file, "--rdzv-id", run)
	}
	_, one, _ := derive(master, "job:1")
	_, again, _ := derive(master, "job:1")
	_, two, _ := derive(master, "job:2")
	if !strings.HasPrefix(one, "run:") || !strings.HasSuffix(one, ":job:1\n") || one != again || strings.TrimSuffix(one, "1\n") == strings.TrimSuffix(two, "2\n") {
		t.Errorf("%q, %q, %q", one, again, two)
	}
	own := filepath.Join(t.TempDir(), "own")
	if err := os.WriteFile(own, []byte(one), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "job.token")
	umask := syscall.Umask(0)
	defer syscall.Umask(umask)
	if code, stdout, stderr := execute(t, "token", "derive", master, "--rdzv-id", "job:1", "--output", file); code != 0 || stdout != "" {
		t.Errorf("to a file: %d, %q, %s", code, stdout, stderr)
	}
	st, err := os.Stat(file)
	if text, _ := os.ReadFile(file); err != nil || st.Mode().Perm() != 0o600 || string(text) != one {
		t.Errorf("the file: %v, %v, %q", err, st.Mode(), text)
	}
	if code, _, _ := execute(t, "token", "derive", master, "--rdzv-id", "job:2", "--output", file); code == 0 {
		t.Error("a token file was replaced")
	}
	if code, _, stderr := derive(own, "job:2"); code == 0 || !strings.Contains(stderr, `opens run "job:1" only`) {
		t.Errorf("of a run's token: %d, %q", code, stderr)
	}
	for _, run := range []string{"", " x", "a\nb", strings.Repeat("x", 500)} {
		if code, stdout, _ := derive(master, run); code == 0 || stdout != "" {
			t.Errorf("for run %q: %d, %q", run, code, stdout)
		}
	}
	if err := os.WriteFile(own, []byte(one+two), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := execute(t, "token", "show", own); code == 0 || !strings.Contains(stderr, "not for the same run") {
		t.Errorf("two runs in one file: %d, %q", code, stderr)
	}
}

// TestTokenNew makes a file that passes, and replaces none.
func TestTokenNew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	if code, stdout, stderr := execute(t, "token", "new", path); code != run.ExitOK || stdout+stderr != "" {
		t.Fatalf("%d, %q, %q", code, stdout, stderr)
	}
	made, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	token, err := secret.OpenToken(path, nil)
	if err != nil || len(token.Keys()) != 1 || len(token.Keys()[0]) != 64 {
		t.Errorf("%q: %v", made, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("its mode is %v, %v", info.Mode(), err)
	}
	if code, _, stderr := execute(t, "token", "new", path); code != run.ExitFailure || !strings.Contains(stderr, "file exists; it stays as it is") {
		t.Errorf("%d, %q", code, stderr)
	}
	if again, err := os.ReadFile(path); err != nil || string(again) != string(made) {
		t.Errorf("it was replaced by %q, %v", again, err)
	}
}

// TestTokenShow prints fingerprints and nothing else; a bad file is refused by name.
func TestTokenShow(t *testing.T) {
	first, second := "correct horse battery staple, and more", "something that is quite different here"
	path := testkit.TokenFile(t, first+"\n"+second)
	want := secret.Fingerprint([]byte(first)) + "\n" + secret.Fingerprint([]byte(second)) + "\n"
	if code, stdout, stderr := execute(t, "token", "show", path); code != run.ExitOK || stdout != want || len(want) != 18 || stderr != "" {
		t.Errorf("%d, %q, %q; want %q", code, stdout, stderr, want)
	}
	for _, bad := range []string{testkit.TokenFile(t, "short"), t.TempDir(), path + "x"} {
		if code, stdout, stderr := execute(t, "token", "show", bad); code != run.ExitFailure || stdout != "" || !strings.Contains(stderr, bad) {
			t.Errorf("%s: %d, %q, %q", bad, code, stdout, stderr)
		}
	}
}

// TestTokenOnAFullDisk: what could not be printed was not done.
func TestTokenOnAFullDisk(t *testing.T) {
	full := testkit.Must(os.OpenFile("/dev/full", os.O_WRONLY, 0))(t)
	defer full.Close()
	file := filepath.Join(t.TempDir(), "token")
	if code, _, stderr := execute(t, "token", "new", file); code != 0 {
		t.Fatal(stderr)
	}
	for _, args := range [][]string{{"token", "show", file}, {"token", "derive", file, "--rdzv-id", "job"}} {
		var stderr strings.Builder
		if code := Main(t.Context(), append([]string{"rallypoint"}, args...), full, &stderr); code != 1 || !strings.Contains(stderr.String(), "no space left on device") {
			t.Errorf("%v: %d, %q", args, code, stderr.String())
		}
	}
}
