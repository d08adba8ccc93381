package run

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// program makes a file that can be run.
func program(t *testing.T, elements ...string) string {
	t.Helper()
	path := filepath.Join(elements...)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestInterpreter that runs the scripts: of the active environment, of the command's
// own, or of the shell.
func TestInterpreter(t *testing.T) {
	dir := t.TempDir()
	active := program(t, dir, "active", "bin", "python")
	own := program(t, dir, "project", "bin", "python3.11")
	uv := program(t, dir, "tools", "uv", "bin", "python")
	program(t, dir, "tools", "uv", "uv-receipt.toml")
	pipx := program(t, dir, "tools", "pipx", "bin", "python")
	program(t, dir, "tools", "pipx", "pipx_metadata.json")
	shell := program(t, dir, "shell", "python3")
	only := program(t, dir, "only", "python")
	for _, c := range []struct {
		virtualEnv, own, path string
		want                  string
		note                  bool
	}{
		{"", "", dir + "/shell", shell, false},
		{"", "", dir + "/only", only, false},
		{"", "", dir + "/none", "python3", false},
		{dir + "/active", "", dir + "/shell", active, false},
		{dir + "/active", own, dir + "/shell", active, true},
		{dir + "/active", dir + "/active/bin/python3.11", dir + "/shell", active, false},
		{dir + "/gone", own, dir + "/shell", own, false},
		{"active", own, dir + "/shell", own, false}, // relative: to what?
		{"", own, dir + "/shell", own, false},
		{dir + "/active", uv, dir + "/shell", active, true},
		{"", uv, dir + "/shell", shell, true},
		{"", pipx, dir + "/shell", shell, true},
		{"", uv, dir + "/none", uv, false},
	} {
		t.Setenv("PATH", c.path)
		env := environ{"VIRTUAL_ENV=" + c.virtualEnv, envInterpreter + "=" + c.own}
		if got := chooseInterpreter(env); got.path != c.want || got.note != c.note || got.why == "" {
			t.Errorf("%+v: %+v", c, got)
		}
	}
}

// TestInterpreterIsNamed in the log, as a warning if it is another than this command's.
func TestInterpreterIsNamed(t *testing.T) {
	dir := t.TempDir()
	active, own := program(t, dir, "active", "bin", "python"), program(t, dir, "own", "bin", "python")
	for _, more := range []string{"", "PYTHON_EXEC=/other"} {
		o, err := parseOptions([]string{"x.py"}, environ{}.lookup, false)
		if err != nil {
			t.Fatal(err)
		}
		c, err := configure(o, environ{"VIRTUAL_ENV=" + filepath.Dir(filepath.Dir(active)), envInterpreter + "=" + own, more})
		if err != nil {
			t.Fatal(err)
		}
		said := strings.Join(c.warnings, "\n")
		if named := strings.Contains(said, active) && strings.Contains(said, "VIRTUAL_ENV"); named != (more == "") {
			t.Errorf("%q: %q", more, said)
		}
	}
}
