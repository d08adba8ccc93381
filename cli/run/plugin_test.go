package run

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/internal/testkit"
)

// plugins are log plug-ins. Each writes its process id to "pid".
const plugins = `import os, sys, time, types

class Named:
    def __init__(self, log_dir=None, redirects=None, tee=None, local_ranks_filter=None):
        print("noise on stdout")
        self.given = (log_dir, redirects, tee, local_ranks_filter)
        open("pid", "w").write(str(os.getpid()))
    def reify(self, envs):
        open("given", "a").write(repr(self.given) + "\n")
        attempt = envs[0]["TORCHELASTIC_RESTART_COUNT"]
        name = lambda what: {r: "%s.%s.%s" % (what, attempt, env["RANK"]) for r, env in envs.items()}
        envs[1]["ADDED"] = "yes"
        del envs[0]["ROLE_NAME"]
        out = {0: "", 1: "both.%s" % attempt}
        return types.SimpleNamespace(stdouts=name("out"), stderrs={0: "", 1: "out.%s.1" % attempt},
            tee_stdouts={0: "out.%s.0" % attempt}, tee_stderrs={}, error_files=name("error"),
            filtered_stdout="filtered." + attempt, filtered_stderr="")

class Refuses(Named):
    def __init__(self, **kwargs):
        raise ValueError("no such bucket\nline two")

class Raises(Named):
    def reify(self, envs):
        raise KeyError("bucket")

class Hangs(Named):
    def reify(self, envs):
        time.sleep(1000)

class Terminates(Named):
    def reify(self, envs):
        while not os.path.exists("agent"):
            time.sleep(0.01)
        os.kill(int(open("agent").read()), 15)
        time.sleep(1000)

class HangsAtOnce(Named):
    def __init__(self, **kwargs):
        super().__init__()
        time.sleep(1000)

class Stops(Named):
    def reify(self, envs):
        os.kill(os.getpid(), 19)

class Dies(Named):
    def reify(self, envs):
        os._exit(3)

class Odd(Named):
    def reify(self, envs):
        dest = super().reify(envs)
        dest.stdouts = {0: "a\0b"}
        return dest

class Lost(Named):
    def reify(self, envs):
        dest = super().reify(envs)
        dest.stdouts = {0: "no/such/folder"}
        return dest

class Fifo(Named):
    def reify(self, envs):
        dest = super().reify(envs)
        os.mkfifo("fifo")
        dest.stdouts = {0: "fifo"}
        return dest

class Slow(Named):
    def __init__(self, **kwargs):
        super().__init__()
        import atexit
        atexit.register(lambda: open("flushed", "w").close())
`

// runPlugin runs our command with one of the plug-ins.
func runPlugin(t *testing.T, class, patience string, args ...string) (code int, stdout, stderr, dir string) {
	t.Helper()
	dir = t.TempDir()
	info := dir + "/site/plug-1.dist-info"
	if err := os.MkdirAll(info, 0o777); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		dir + "/site/plug.py":      plugins,
		info + "/METADATA":         "Metadata-Version: 2.1\nName: plug\nVersion: 1\n",
		info + "/entry_points.txt": "[torchrun.logs_specs]\nmine = plug:" + class + "\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	hostile(t, dir)
	cmd := exec.Command(os.Args[0], append([]string{"run"}, args...)...)
	cmd.Dir = dir
	cmd.Env = []string{testkit.EndAtOnce, asRun + "=1", testPluginPatience + "=" + patience, "PATH=" + os.Getenv("PATH"), "TMPDIR=" + dir,
		"PYTHONPATH=" + dir + "/site", "PYTHONDONTWRITEBYTECODE=1"}
	var out, err strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &err
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = os.WriteFile(dir+"/agent.new", []byte(strconv.Itoa(cmd.Process.Pid)), 0o666)
	_ = os.Rename(dir+"/agent.new", dir+"/agent")
	_ = cmd.Wait()
	if text, err := os.ReadFile(dir + "/pid"); err == nil {
		pid, _ := strconv.Atoi(string(text))
		gone(t, pid)
	}
	return cmd.ProcessState.ExitCode(), out.String(), err.String(), dir
}

// hostile puts modules into a folder from which no interpreter must import them.
func hostile(t *testing.T, dir string) {
	t.Helper()
	for _, module := range []string{"enum", "json", "logging", "importlib", "runpy", "torch", "traceback"} {
		text := "import os\nos.write(2, b'" + module + " of the current directory')\nos._exit(99)\n"
		if err := os.WriteFile(dir+"/"+module+".py", []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// gone waits until a process is no more, or is a zombie.
func gone(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }()
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 30_000); n != 1 {
		t.Errorf("process %d of the plug-in is still there (%v)", pid, err)
	}
}

// TestLogsSpecs asks a plug-in at each attempt where the workers write.
func TestLogsSpecs(t *testing.T) {
	const script = `echo "out $RANK"; echo "err $RANK" >&2; echo "$ADDED-$ROLE_NAME-$TORCHELASTIC_ERROR_FILE"
		[ $TORCHELASTIC_RESTART_COUNT = 1 ] || { [ $RANK = 0 ] && exit 1; sleep 1000; }`
	code, stdout, stderr, dir := runPlugin(t, "Named", "60s", "--logs-specs=mine", "--nproc-per-node=2", "--max-restarts=1", "--log-dir=s3://x",
		"-r", "0:1,1:3", "-t", "2", "--local-ranks-filter=0,1", "--duplicate-stdout-filters=out", "--role=r", "--no-python", "--no-macros", "sh", "-c", script)
	if code != 0 {
		t.Fatalf("code %d, stderr:\n%s", code, stderr)
	}
	if stdout != "[r0]:out 0\n[r0]:--error.0.0\n[r0]:out 0\n[r0]:--error.1.0\n" {
		t.Errorf("stdout:\n%s", stdout)
	}
	for _, text := range []string{"noise on stdout\n", "err 0\n"} {
		if !strings.Contains(stderr, text) {
			t.Errorf("stderr lacks %q:\n%s", text, stderr)
		}
	}
	given, _ := os.ReadFile(dir + "/given")
	if lines := strings.Split(string(given), "\n"); len(lines) != 3 || !strings.HasPrefix(lines[0], "('s3://x', {0: <Std.OUT: 1>, 1: <Std.ALL: 3>}, <Std.ERR: 2>, {0, 1})") {
		t.Errorf("the plug-in was given\n%s", given)
	}
	for name, want := range map[string]string{"out.1.0": "out 0\n--error.1.0\n", "out.1.1": "out 1\nerr 1\nyes-r-error.1.1\n", "filtered.1": "[r0]:out 0\n"} {
		if text, err := os.ReadFile(dir + "/" + name); string(text) != want {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	if found, _ := filepath.Glob(dir + "/torchelastic_*"); found != nil {
		t.Errorf("a folder for logs of our own: %s", found)
	}
}

// TestLogsSpecsFails has plug-ins that are not there, fail, hang or die: the command
// ends with a line that says so.
func TestLogsSpecsFails(t *testing.T) {
	for _, c := range []struct {
		name, class, patience string
		code                  int
		says                  string
	}{
		{"other", "Named", "60s", 2, "argument --logs-specs: could not find entrypoint torchrun.logs_specs[other]"},
		{"mine", "Absent", "60s", 2, "torchrun.logs_specs[mine]: AttributeError"},
		{"mine", "Refuses", "60s", 2, "torchrun.logs_specs[mine]: ValueError: no such bucket line two"},
		{"mine", "Raises", "60s", 1, "the plug-in for logs: KeyError: 'bucket'"},
		{"mine", "Hangs", "3s", 1, "the plug-in for logs has ended"},
		{"mine", "HangsAtOnce", "3s", 2, "ended without an answer"},
		{"mine", "Terminates", "300s", 1, "signal: 15"},
		{"mine", "Stops", "3s", 1, "did not say within"},
		{"mine", "Dies", "60s", 1, "the plug-in for logs has ended"},
		{"mine", "Odd", "60s", 1, "holds a NUL"},
		{"mine", "Lost", "60s", 1, "no/such/folder"},
		{"mine", "Fifo", "60s", 1, "fifo"},
	} {
		t.Run(c.class+" "+c.name, func(t *testing.T) {
			t.Parallel()
			begin := time.Now()
			code, stdout, stderr, _ := runPlugin(t, c.class, c.patience, "--logs-specs="+c.name, "--nproc-per-node=2", "--no-python", "echo")
			if code != c.code || stdout != "" || !strings.Contains(stderr, c.says) {
				t.Errorf("code %d after %v, stdout %q, stderr:\n%s", code, time.Since(begin), stdout, stderr)
			}
			if strings.HasPrefix(c.class, "Hangs") && !strings.Contains(stderr, "plug.py") {
				t.Errorf("not said where it hangs:\n%s", stderr)
			}
		})
	}
	t.Run("end", func(t *testing.T) {
		t.Parallel()
		code, _, stderr, dir := runPlugin(t, "Slow", "60s", "--logs-specs=mine", "--nproc-per-node=2", "--no-python", "true")
		if _, err := os.Stat(dir + "/flushed"); code != 0 || err != nil {
			t.Errorf("code %d, %v, stderr:\n%s", code, err, stderr)
		}
	})
}
