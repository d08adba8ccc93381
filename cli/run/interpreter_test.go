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
		asModule              string
		want, not             string
	}{
		{"", "", dir + "/shell", "", shell, ""},
		{"", "", dir + "/only", "", only, ""},
		{"", "", dir + "/none", "", "python3", ""},
		{dir + "/active", "", dir + "/shell", "", active, ""},
		{dir + "/active", own, dir + "/shell", "", active, own},
		{dir + "/active", own, dir + "/shell", "1", own, active},
		{dir + "/active", dir + "/active/bin/python3.11", dir + "/shell", "", active, ""},
		{dir + "/active", dir + "/active/bin/python3.11", dir + "/shell", "1", active, ""},
		{dir + "/gone", own, dir + "/shell", "", own, ""},
		{"active", own, dir + "/shell", "", own, ""}, // relative: to what?
		{"", own, dir + "/shell", "", own, ""},
		{dir + "/active", uv, dir + "/shell", "", active, uv},
		{"", uv, dir + "/shell", "", shell, uv},
		{"", uv, dir + "/shell", "1", uv, ""},
		{"", pipx, dir + "/shell", "", shell, pipx},
		{"", uv, dir + "/none", "", uv, ""},
	} {
		t.Setenv("PATH", c.path)
		env := environ{"VIRTUAL_ENV=" + c.virtualEnv, envInterpreter + "=" + c.own, envAsModule + "=" + c.asModule}
		if got := chooseInterpreter(env); got.path != c.want || !strings.HasPrefix(got.not, c.not) || (got.not == "") != (c.not == "") || got.why == "" {
			t.Errorf("%+v: %+v", c, got)
		}
	}
}

// TestInterpreterIsNamed in the log, as a warning if it is another than this command's.
func TestInterpreterOfOtherCommands(t *testing.T) {
	active := program(t, t.TempDir(), "active", "bin", "python")
	env := []string{"VIRTUAL_ENV=" + filepath.Dir(filepath.Dir(active))}
	if got := Interpreter(env); got != active {
		t.Errorf("got %q", got)
	}
	if got := Interpreter(append(env, "PYTHON_EXEC=/other")); got != "/other" {
		t.Errorf("PYTHON_EXEC: got %q", got)
	}
}

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
		if named := strings.Contains(said, active) && strings.Contains(said, own) && strings.Contains(said, "VIRTUAL_ENV"); named != (more == "") {
			t.Errorf("%q: %q", more, said)
		}
	}
}
