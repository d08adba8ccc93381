package run

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// writeScripts makes a folder of programs and modules, some of which cannot be run.
func writeScripts(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for path, file := range map[string]struct {
		text string
		mode os.FileMode
	}{
		"text":            {"hello\n", 0o644},
		"crlf":            {"#!/bin/sh\r\necho\r\n", 0o755},
		"fine.sh":         {"#!/bin/sh\necho fine\n", 0o755},
		"fine.py":         {"print('fine')\n", 0o644},
		"folder/x.py":     {"", 0o644},
		"app/__main__.py": {"print('fine')\n", 0o644},
		"pkg/__init__.py": {"", 0o644},
		"pkg/train.py":    {"print('fine')\n", 0o644},
		"lazy/__init__.py": {"import os\n__path__.append(os.path.join(os.path.dirname(__path__[0]), 'elsewhere'))\nprint('noise')\n",
			0o644},
		"elsewhere/train.py": {"print('fine')\n", 0o644},
		"broken/__init__.py": {"raise RuntimeError('boom')\n", 0o644},
	} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(file.text), file.mode); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestScriptIsChecked: a script that is missing or cannot run is found before this node
// meets another.
func TestScriptIsChecked(t *testing.T) {
	dir := writeScripts(t)
	t.Chdir(dir)
	t.Setenv("PYTHONDONTWRITEBYTECODE", "1")
	for _, c := range []struct{ args, why string }{
		{"none.py", "the script none.py does not exist in " + dir},
		{"--run-path none.py", "the script none.py does not exist"},
		{"/none/none.py", "the script /none/none.py does not exist"},
		{"folder", "a folder without a __main__.py"},
		{"--no-python ./none", "the program cannot be run: ./none: no such file"},
		{"--no-python no-such-program", "no-such-program: no such file or directory in PATH"},
		{"--no-python ./text", "./text: not executable"},
		{"--no-python ./folder", "is a directory"},
		{"--no-python ./crlf", `names the interpreter "/bin/sh\r", which does not exist`},
		{"-m none", "No module named none"},
		{"-m pkg.none", "No module named pkg.none"},
		{"-m pkg", "pkg is a package without a __main__"},
		{"-m lazy.none", "No module named lazy.none"},
		{"fine.py", ""}, {"./fine.py", ""}, {"app", ""}, {"--run-path app", ""}, {"${local_rank}.py", "0.py does not exist"},
		{"--no-python ./fine.sh", ""}, {"--no-python sh", ""},
		{"-m pkg.train", ""}, {"-m app", ""}, {"-m lazy.train", ""}, {"-m json.tool", ""}, {"-m broken.train", ""}, {"-m os.path", ""},
	} {
		o, err := parseOptions(strings.Fields("--nnodes=2 --rdzv-endpoint=127.0.0.1:1 "+c.args), noEnv, false)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := configure(o, os.Environ())
		if err != nil {
			t.Fatal(err)
		}
		switch err := cfg.checkScript(o); {
		case c.why == "" && err != nil:
			t.Errorf("%s: %v", c.args, err)
		case c.why != "" && (err == nil || !strings.Contains(err.Error(), c.why) || strings.Contains(err.Error(), "\n")):
			t.Errorf("%s: %v, expected %q", c.args, err, c.why)
		}
	}
	t.Setenv("PYTHON_EXEC", "/none/python")
	o, _ := parseOptions([]string{"fine.py"}, noEnv, false)
	cfg, err := configure(o, os.Environ())
	if err == nil {
		err = cfg.checkScript(o)
	}
	if err == nil || !strings.Contains(err.Error(), "the workers' interpreter cannot be run: /none/python") {
		t.Errorf("an interpreter that is missing: %v", err)
	}
}

// TestMissingScript ends the command with one line and exit code 2, and nothing is left
// behind.
func TestMissingScript(t *testing.T) {
	t.Chdir(t.TempDir())
	code, stdout, stderr, left := runScript(t, "run", "", "--nnodes=2", "--rdzv-endpoint=127.0.0.1:1", "none.py")
	if files, _ := filepath.Glob(left + "/torchelastic_*"); code != ExitUsage || stdout != "" || strings.Count(stderr, "\n") != 1 || len(files) > 0 {
		t.Errorf("exit code %d, %q, %q, left %v", code, stdout, stderr, files)
	}
	code, _, stderr, _ = runScript(t, "run", "", "--no-python", "./none")
	if code != ExitUsage {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}
