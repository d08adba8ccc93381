package run

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"rallypoint/internal/testkit"
)

// runScript runs our command on a Python script.
func runScript(t *testing.T, command, script string, args ...string) (code int, stdout, stderr, dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.WriteFile(dir+"/train.py", []byte(script), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/beside.py", nil, 0o666); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], append([]string{command}, args...)...)
	cmd.Dir = dir
	cmd.Env = []string{testkit.EndAtOnce, asRun + "=1", "PATH=" + os.Getenv("PATH"), "TMPDIR=" + dir, "PYTHONDONTWRITEBYTECODE=1"}
	var out, err strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &err
	_ = cmd.Run()
	return cmd.ProcessState.ExitCode(), out.String(), err.String(), dir
}

// TestRunPath runs the script as a program inside the interpreter.
func TestRunPath(t *testing.T) {
	code, stdout, stderr, _ := runScript(t, "run", "import sys, beside\nprint(__name__, sys.argv)", "--run-path", "--no-python", "--module", "train.py", "a", "-c")
	if code != 0 || stdout != "__main__ ['train.py', 'a', '-c']\n" {
		t.Errorf("code %d, stdout %q, stderr:\n%s", code, stdout, stderr)
	}
	code, _, stderr, dir := runScript(t, "run", "def f():\n    raise ValueError('bad ü')\nf()", "--run-path", "--log-dir=logs", "train.py")
	if code != 1 || !strings.Contains(stderr, "\ntrain.py FAILED\n") || !strings.Contains(stderr, "traceback : Traceback (most recent call last):\n    File \"train.py\", line 3, in <module>\n") {
		t.Errorf("code %d, stderr:\n%s", code, stderr)
	}
	files, _ := filepath.Glob(dir + "/logs/*/attempt_0/0/error.json")
	if len(files) != 1 {
		t.Fatalf("error files %v", files)
	}
	text, _ := os.ReadFile(files[0])
	var file struct {
		Message struct {
			Message   string
			ExtraInfo map[string]string
		}
	}
	if err := json.Unmarshal(text, &file); err != nil || file.Message.Message != "ValueError: bad ü" || file.Message.ExtraInfo["timestamp"] == "" {
		t.Errorf("%v: %s", err, text)
	}
	code, _, stderr, dir = runScript(t, "run", "raise SystemExit(7)", "--run-path", "--log-dir=logs", "train.py")
	if files, _ := filepath.Glob(dir + "/logs/*/attempt_0/0/error.json"); code != 1 || len(files) > 0 || !strings.Contains(stderr, "exitcode  : 7 ") {
		t.Errorf("code %d, error files %v, stderr:\n%s", code, files, stderr)
	}
}

// TestLaunch is the command line of torch.distributed.launch.
func TestLaunch(t *testing.T) {
	const script = "import os, sys\nprint(sys.argv[1:], os.environ['LOCAL_RANK'])"
	for _, c := range []struct {
		command string
		args    []string
		want    string
		code    int
	}{
		{"launch", []string{"train.py", "x"}, "['--local-rank=0', 'x'] 0\n", 0},
		{"launch", []string{"--use-env", "train.py", "x"}, "['x'] 0\n", 0},
		{"launch", []string{"--use_env", "train.py"}, "[] 0\n", 0},
		{"launch", []string{"--no-python", "true"}, "", 2},
		{"launch", []string{"--no-python", "--use-env", "true"}, "", 0},
		{"run", []string{"--use-env", "train.py"}, "", 2},
	} {
		code, stdout, stderr, _ := runScript(t, c.command, script, c.args...)
		if code != c.code || stdout != c.want {
			t.Errorf("%s %q: code %d, stdout %q, stderr:\n%s", c.command, c.args, code, stdout, stderr)
		}
	}
}

// TestEventHandler hands events to a handler that torch knows under a name, and
// those of the rendezvous to another or the same.
func TestEventHandler(t *testing.T) {
	dir := t.TempDir()
	events := dir + "/torch/distributed/elastic/events"
	if err := os.MkdirAll(events, 0o777); err != nil {
		t.Fatal(err)
	}
	const module = `import logging
def get_logging_handler(name):
    return {"mine": logging.FileHandler("events.log"), "dynamic_rendezvous": logging.FileHandler("events.log")}[name]
`
	if err := os.WriteFile(events+"/__init__.py", []byte(module), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		option, says string
		code         int
		events, rdzv int
	}{
		{"--event-log-handler=mine", "", 0, 5, 0},
		{"--event-log-handler=dynamic_rendezvous", "", 0, 0, 0},
		{"--event-log-handler=other", "event-log-handler: there is no handler \"other\"", 2, 0, 0},
		{"--rdzv-event-log-handler=mine", "", 0, 0, 5},
		{"--rdzv-event-log-handler=dynamic_rendezvous", "", 0, 0, 5},
		{"--rdzv-event-log-handler=console", `"name":"rallypoint:next_rendezvous","run_id":"`, 0, 0, 0},
		{"--rdzv-event-log-handler=other", "rdzv-event-log-handler: there is no handler \"other\"", 2, 0, 0},
	} {
		cmd := exec.Command(os.Args[0], "run", c.option, "--no-python", "true")
		cmd.Dir = dir
		cmd.Env = []string{testkit.EndAtOnce, asRun + "=1", "PATH=" + os.Getenv("PATH"), "TMPDIR=" + dir, "PYTHONPATH=" + dir, "PYTHONDONTWRITEBYTECODE=1"}
		var stderr strings.Builder
		cmd.Stderr = &stderr
		_ = cmd.Run()
		if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(stderr.String(), c.says) || c.code == 2 && strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("%s: code %d, stderr:\n%s", c.option, code, stderr.String())
		}
		text, err := os.ReadFile(dir + "/events.log")
		events, rdzv := strings.Count(string(text), `{"name":"torchelastic.worker.status.`), strings.Count(string(text), `{"name":"rallypoint:`)
		if events != c.events || rdzv != c.rdzv || strings.Count(string(text), "\n") != events+rdzv || err != nil && events+rdzv > 0 {
			t.Errorf("%s: %d events, %d of the rendezvous, %v:\n%s", c.option, events, rdzv, err, text)
		}
		_ = os.Remove(dir + "/events.log")
	}
}

// TestScriptsWithoutFile are on standard input, or in the interpreter's own options.
func TestScriptsWithoutFile(t *testing.T) {
	for _, c := range []struct {
		args, in, out string
		warns         bool
	}{
		{"-", "print('one')", "one\n", false},
		{"- --foo 3", "import sys; print(sys.argv)", "['-', '--foo', '3']\n", false},
		{"--max-restarts=1 -", "print('one')", "one\n", true},
		{"--nproc-per-node=2 -", "print('one')", "one\n", true},
		{"-- -c print('two')", "", "two\n", false},
		{"-- -W error -c print('two')", "", "two\n", false},
	} {
		dir := t.TempDir()
		cmd := exec.Command(os.Args[0], append([]string{"run"}, strings.Fields(c.args)...)...)
		cmd.Dir, cmd.Stdin = dir, strings.NewReader(c.in)
		cmd.Env = []string{testkit.EndAtOnce, asRun + "=1", "PATH=" + os.Getenv("PATH"), "TMPDIR=" + dir}
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil || string(out) != c.out || strings.Contains(stderr.String(), "standard input") != c.warns {
			t.Errorf("%s: %v, %q\n%s", c.args, err, out, stderr.String())
		}
	}
}

// TestWithoutTempFolder: a TMPDIR that is not there is replaced as Python's tempfile does it.
func TestWithoutTempFolder(t *testing.T) {
	dir := t.TempDir()
	for _, options := range []string{"", "--redirects=3", "--tee=3", "--fold-logs"} {
		cmd := exec.Command(os.Args[0], append([]string{"run"}, append(strings.Fields(options), "--no-python", "true")...)...)
		cmd.Dir = dir
		cmd.Env = []string{testkit.EndAtOnce, asRun + "=1", "PATH=" + os.Getenv("PATH"), "TMPDIR=" + dir + "/none", "TEMP=" + dir, "TORCHELASTIC_ENABLE_FILE_TIMER=1"}
		out, err := cmd.CombinedOutput()
		if err != nil || strings.Count(string(out), "TMPDIR is "+dir+"/none, which is no folder that this process may write to: temporary files are in "+dir+"\n") != 1 {
			t.Errorf("%s: %v\n%s", options, err, out)
		}
	}
}

// TestRunPathFromElsewhere: the script's folder is in its path, the current one is not.
func TestRunPathFromElsewhere(t *testing.T) {
	dir, here := t.TempDir(), t.TempDir()
	hostile(t, here)
	for name, text := range map[string]string{"train.py": "import beside, json\nraise ValueError(json.dumps(beside.__file__))", "beside.py": ""} {
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(os.Args[0], "run", "--run-path", dir+"/train.py")
	cmd.Dir = here
	cmd.Env = []string{testkit.EndAtOnce, asRun + "=1", "PATH=" + os.Getenv("PATH"), "TMPDIR=" + here, "PYTHONDONTWRITEBYTECODE=1"}
	out, _ := cmd.CombinedOutput()
	if !strings.Contains(string(out), `ValueError: "`+dir+`/beside.py"`) || strings.Contains(string(out), "current directory") {
		t.Error(string(out))
	}
}
