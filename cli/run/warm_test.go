package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/internal/testkit"
)

// odd are scripts that see much of what an interpreter and a process are. A first line "# args:"
// has the command line; $D is their folder.
var odd = map[string]string{
	"argv": "# args: odd.py a 'b' --c=d\nimport sys\nprint(sys.argv, sys.orig_argv[1:] if hasattr(sys, 'orig_argv') else '', __name__, __file__, __spec__, __package__)",
	// What waits for torch's optimizers is what differs (docs/warm.md).
	"path":      "import sys\nprint(sys.path, sys.path_hooks, [f for f in sys.meta_path if type(f).__name__ != 'OptimizerImport'], sys.prefix, sys.executable)",
	"flags":     "import sys\nprint(sys.flags, sys.warnoptions, sys._xoptions)",
	"main":      "import sys, __main__\nprint(sorted(vars(__main__)), sys.modules['__main__'] is __main__, type(__loader__))",
	"module":    "# args: -m odd x\nimport sys\nprint(__name__, __spec__.name, __package__, sys.argv, sys.path[0])",
	"package":   "# args: -m pkg x\nimport sys\nprint('unused')",
	"folder":    "# args: pkg x\nprint('unused')",
	"run path":  "# args: --run-path odd.py x\nimport sys\nprint(__name__, sys.argv)\n1/0",
	"modules":   "import sys\nprint('sitecustomize' in sys.modules, [n for n in sys.modules if 'template' in n], [p for p in sys.path_importer_cache if 'rallypoint' in p])",
	"environ":   "import os\nskip = ('RALLYPOINT_', 'TORCHELASTIC_', 'MASTER_PORT')\nprint([(k, v) for k, v in sorted(os.environ.items()) if not k.startswith(skip)], len(os.environ))",
	"C environ": "import ctypes, os, subprocess\nc = ctypes.CDLL(None); c.getenv.restype = ctypes.c_char_p\nprint(c.getenv(b'RANK'), c.getenv(b'PYTHONPATH'), c.getenv(b'RALLYPOINT_TEMPLATE'), subprocess.check_output(['sh', '-c', 'echo $RANK $PYTHONPATH $RALLYPOINT_TEMPLATE']))",
	// The stack file, a file of libffi, and the signals by which stacks are asked for are what differs (docs/warm.md).
	"descriptors":  "import os\nfor fd in range(1024):\n  try: name = os.readlink('/proc/self/fd/%d' % fd).rpartition('/')[2]\n  except OSError: continue\n  if fd < 48 or not name.endswith('.stacks') and 'libffi' not in name: print(fd, name, os.get_inheritable(fd))",
	"streams":      "import sys\nfor s in sys.stdin, sys.stdout, sys.stderr:\n  print(s, s.line_buffering, s.write_through, s.buffer, s.errors, s.newlines, s.seekable(), s.isatty(), s is getattr(sys, '__%s__' % s.name[1:-1]))",
	"tell":         "import sys\nprint('x' * 10)\nprint(sys.stdout.tell(), sys.stdout.buffer.tell())",
	"stdin":        "import sys\nprint(repr(sys.stdin.read()), repr(sys.stdin.buffer.read()))",
	"raw writes":   "import os, sys\nfor i in range(3):\n  print(i); os.write(1, b'raw\\n'); sys.stdout.write('no newline'); sys.stderr.write('e\\n'); sys.stdout.buffer.write(b'buffer\\n')",
	"encoding":     "import sys\nprint('\\u00fc\\u20ac', sys.stdout.encoding, sys.getfilesystemencoding())",
	"limits":       "import resource\nprint([(n, resource.getrlimit(getattr(resource, n))) for n in sorted(dir(resource)) if n.startswith('RLIMIT')])",
	"umask":        "import os\nprint(os.umask(0), os.getcwd(), os.nice(0), os.sched_getaffinity(0), os.getgroups())",
	"signals":      "import signal\nprint([(s, signal.getsignal(s)) for s in sorted(signal.valid_signals())], signal.pthread_sigmask(0, []), signal.sigpending())",
	"proc status":  "keep = ('Name', 'Umask', 'NSpid', 'Threads', 'SigP', 'SigB', 'SigI', 'SigC', 'Shd', 'Cap', 'NoNew', 'Seccomp', 'Cpus')\nfor line in open('/proc/self/status'):\n  if line.startswith(keep) and not line.startswith('NSpid'):\n    name, value = line.split(':')\n    print(name, hex(int(value, 16) & ~(3 << 60)) if name == 'SigCgt' else value.strip())\nprint(open('/proc/self/cmdline').read().split(chr(0))[1:])",
	"session":      "import os\nprint(os.getsid(0) == os.getpid() == os.getpgid(0), open('/proc/%d/comm' % os.getppid()).read())",
	"parent death": "import ctypes, os\nn = ctypes.c_int()\nctypes.CDLL(None).prctl(2, ctypes.byref(n))\nprint(n.value)",
	"threads":      "import threading\nprint(threading.current_thread(), threading.main_thread() is threading.current_thread(), threading.active_count(), threading.get_native_id() == __import__('os').getpid())",
	"traceback":    "def f(x):\n  return g(x)\ndef g(x):\n  raise ValueError('no: %d' % x)\nf(3)",
	"chained":      "import json\ntry:\n  json.loads('{')\nexcept ValueError as e:\n  raise RuntimeError('later') from e",
	"syntax":       "import os\nprint('never'\n",
	"import error": "import os, no_such_module_at_all",
	"exit code":    "import sys\nsys.exit(3)",
	"exit text":    "import sys\nsys.exit('because')",
	"exit hard":    "import os\nos._exit(7)",
	"killed":       "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
	"aborted":      "import os\nprint('before'); os.abort()",
	"atexit":       "import atexit, sys\natexit.register(print, 'first'); atexit.register(print, 'second')\nprint('main')\nsys.exit(5)",
	"excepthook":   "import sys\nsys.excepthook = lambda *a: print('hook', a[0])\n1/0",
	"fork":         "import os, sys\npid = os.fork()\nif not pid: print('child'); sys.exit(4)\nprint(os.waitpid(pid, 0)[1])",
	"spawn":        "import multiprocessing as mp\ndef f(x): return x * x, __name__\nif __name__ == '__main__':\n  with mp.get_context('spawn').Pool(1) as p: print(p.map(f, [1, 2]), mp.current_process())",
	"fork pool":    "import multiprocessing as mp\ndef f(x): return x * x, __name__\nif __name__ == '__main__':\n  with mp.get_context('fork').Pool(1) as p: print(p.map(f, [1, 2]))",
	"pickle":       "import pickle\nclass C: pass\nprint(pickle.dumps(C()), pickle.loads(pickle.dumps(C())).__class__ is C)",
	"inspect":      "import inspect, sys\ndef f(): pass\nprint(inspect.getsource(f), inspect.stack()[0].lineno, len(inspect.stack()), sys._getframe().f_back, sys.gettrace())",
	"warning":      "import warnings\nwarnings.warn('beware')\ndef f(): warnings.warn('of f', DeprecationWarning)\nf()",
	"logging":      "import logging\nlogging.warning('to stderr')\nlogging.basicConfig(); logging.getLogger('x').error('e')",
	"own module":   "import helper, helper as h2\nprint(helper.value, helper.__file__, h2.json.dumps({}), helper.__spec__)",
	"relative":     "# args: -m pkg.sub\nprint('unused')",
	"asyncio":      "import asyncio\nasync def f(): await asyncio.sleep(0); return 3\nprint(asyncio.run(f()))",
	"executor":     "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(2) as e: print(list(e.map(abs, [-1, 2])))",
	"subprocess":   "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'import sys; print(sys.path[1:], \"sitecustomize\" in sys.modules)'], capture_output=True))",
	"closes all":   "import os\nos.closerange(3, 1024)\nprint('fine')",
	"environment":  "import os\nos.environ['JSON_IS'] = 'late'\nimport late\nprint(late.seen)",
	"rank files":   "import os, tempfile\nprint(len(tempfile.gettempdir()) > 0, os.path.basename(__file__), os.path.exists(os.environ['TORCHELASTIC_ERROR_FILE']))",
	"gc":           "import gc\nprint(gc.isenabled(), gc.get_threshold(), gc.callbacks, gc.garbage)",
	"recursion":    "import sys\nprint(sys.getrecursionlimit())\ndef f(): f()\ntry: f()\nexcept RecursionError as e: print(e)",
	"faulthandler": "import faulthandler, sys\nprint(faulthandler.is_enabled())\nfaulthandler.dump_traceback()",
	"deleted":      again + "os.remove(__file__); sys.exit(3)",
	"made empty":   again + "open(__file__, 'w').close(); sys.exit(3)",
	"made wrong":   again + "print(\"print('never'\", file=open(__file__, 'w')); sys.exit(3)",
	"made folder":  again + "os.remove(__file__); os.mkdir(__file__); sys.exit(3)",
	"helper lost":  again + "import helper; os.remove('helper.py'); sys.exit(3)",
	"from stdin":   "# args: /dev/stdin x\nprint('unused')",
	"deep":         "import os\nx = " + strings.Repeat("1 + ", 1200) + "1\nprint(x)",
	"pdb":          "import pdb\ndef f(x): pdb.set_trace(); return x\nf(3)",
	"breakpoint":   "def f(x): breakpoint(); return x\nf(3)",
	"pdb module":   "# args: -m pdb -c next -c where -c p(__name__,__file__) -c continue odd.py x\nimport sys\nprint(sys.argv)\n1/0",
	"remote":       "import os, subprocess, sys, time\nseen = []\nif hasattr(sys, 'remote_exec'):\n  print('import __main__; __main__.seen.append(__main__.__name__)', file=open('remote.py', 'w', buffering=1))\n  print(subprocess.run([sys.executable, '-c', 'import os, sys; sys.remote_exec(os.getppid(), \"remote.py\")'], capture_output=True))\n  for i in range(500):\n    if seen: break\n    time.sleep(0.01)\nprint(seen)",
	"tracer":       "import sys\nseen = []\nsys.settrace(lambda *a: seen.append(a[0].f_code.co_name))\ndef f(): pass\nf(); sys.settrace(None)\nprint(seen)",
	"profiler":     "import cProfile, io, pstats\np = cProfile.Profile()\np.runcall(sum, [1])\nprint(len(pstats.Stats(p, stream=io.StringIO()).stats))",
	"audit":        "import sys\nseen = []\nsys.addaudithook(lambda e, a: seen.append(e))\nopen('/dev/null').close()\nprint(seen)",
	"dead lock":    "import threading\nlock = threading.Lock(); lock.acquire()\nprint(lock.acquire(timeout=0.01), threading.main_thread().ident == threading.get_ident())",
	"user site":    "import sys\nprint('user' in str(sys.modules.get('sitecustomize')))",
}

// again begins a script that fails at its first attempt, after which it is not what it was.
const again = "# args: --max-restarts=1 odd.py\nimport os, sys\nif os.environ['TORCHELASTIC_RESTART_COUNT'] != '0': print('again'); sys.exit()\n"

// quickOdd are those that the quick tests run.
var quickOdd = []string{"argv", "module", "descriptors", "streams", "environ", "traceback", "exit code", "own module", "environment", "deleted", "made wrong"}

// others are the files beside each script; late is read only once the script says so.
var others = map[string]string{
	"helper.py": "import json\nvalue = json.dumps([1])\n", "pkg/__init__.py": "import json\n", "pkg/sub.py": "from . import leaf\nimport sys\nprint(leaf.x, sys.argv, __package__)\n",
	"pkg/leaf.py": "x = 3\n", "pkg/__main__.py": "import sys\nprint(__name__, __spec__, __package__, sys.argv, sys.path[0])\n",
	"late.py": "import os\nseen = os.environ.get('JSON_IS')\n",
}

// runOdd runs a script, and returns how the run ended and what the worker wrote into files, and the
// agent's log.
func runOdd(t *testing.T, dir, text string, options ...string) (result, log string) {
	t.Helper()
	return runOddBy(t, nil, dir, text, options...)
}

// runOddBy has another command run the agent.
func runOddBy(t *testing.T, by []string, dir, text string, options ...string) (result, log string) {
	t.Helper()
	writeAll(t, dir, others)
	_ = os.RemoveAll(filepath.Join(dir, "odd.py")) // which may be a folder by now
	writeAll(t, dir, map[string]string{"odd.py": text + "\n"})
	args := []string{"odd.py"}
	if first, _, _ := strings.Cut(text, "\n"); strings.HasPrefix(first, "# args:") {
		args = strings.Fields(strings.TrimPrefix(first, "# args:"))
	}
	logs := t.TempDir()
	argv := slices.Concat(by, []string{testkit.Must(os.Executable())(t), "run", "--standalone", "-r3", "--log-dir=" + logs}, options, args)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.Env = []string{testkit.EndAtOnce, asRun + "=1", "PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir, "PYTHONDONTWRITEBYTECODE=1", "PYTHONHASHSEED=1", "LOGLEVEL=INFO"}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	result = fmt.Sprintln(err)
	for _, line := range regexp.MustCompile(`exitcode +: -?\d+`).FindAllString(out.String(), -1) {
		result += line + "\n"
	}
	files, _ := filepath.Glob(filepath.Join(logs, "*", "attempt_*", "*", "std*.log")) // in order
	for _, file := range files {
		attempt, _ := filepath.Rel(filepath.Dir(filepath.Dir(filepath.Dir(file))), file)
		result += attempt + ":\n" + string(testkit.Must(os.ReadFile(file))(t))
	}
	return anyAddress.ReplaceAllString(strings.ReplaceAll(result, logs, "LOGS"), "0x"), out.String()
}

// anyAddress is where an object happens to be.
var anyAddress = regexp.MustCompile(`0x[0-9a-f]{6,}|started \d+`)

func writeAll(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// forked is what the log has once workers are forked.
const forked = "workers are forked from a template"

// TestWarmIsCold: a script sees nothing of the template that it was forked from, nor of what observes it.
func TestWarmIsCold(t *testing.T) {
	for name, text := range odd {
		if !long && !slices.Contains(quickOdd, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			observed := []string{"env", envAutoProgress + "=1"}
			plain, _ := runOddBy(t, []string{"env", envAutoProgress + "=0"}, dir, text)
			cold, _ := runOddBy(t, observed, dir, text)
			warm, log := runOddBy(t, observed, dir, text, "--warm")
			if cold != plain || cold != warm {
				t.Errorf("with nothing of ours:\n%s\ncold:\n%s\nwarm:\n%s", plain, cold, warm)
			}
			if !strings.Contains(log, forked) || strings.Contains(log, "start cold") {
				t.Errorf("not warm:\n%s", log)
			}
		})
	}
}

// seen is a script that says what the agent sees of it: the steps of what it takes for torch's
// optimizers, and where it is.
const seen = `import os, struct, sys
import torch.optim.optimizer
for hook in torch.optim.optimizer.hooks:
    for _ in range(3): hook(None, (), {})
with open(os.environ["RALLYPOINT_PROGRESS_FILE"], "rb") as record: print("counted", struct.unpack("<8q", record.read())[7])
def where(): os.kill(os.getpid(), 61)
if sys.version_info >= (3, 11): where(); assert " in where\n" in open(os.environ["RALLYPOINT_STACKS_FILE"]).read()
`

// likeTorch are modules with the hook of torch's optimizers.
var likeTorch = map[string]string{"torch/__init__.py": "", "torch/optim/__init__.py": "", "torch/optim/optimizer.py": `hooks = []
def register_optimizer_step_post_hook(hook):
    hooks.append(hook)
    class Handle: remove = hooks.clear
    return Handle
`}

// TestEachPython: each interpreter of this machine that is new enough forks workers that are as cold
// ones, has their steps counted and their stacks written.
func TestEachPython(t *testing.T) {
	pythons, _ := filepath.Glob(filepath.Join(os.Getenv("HOME"), ".pyenv", "versions", "3.*", "bin", "python3"))
	fetched, _ := filepath.Glob("../../.tools/python/*/bin/python3") // make test-free-threaded FETCH=1
	pythons = append(pythons, fetched...)
	for _, name := range []string{"python3.9", "python3.10", "python3.11", "python3.12", "python3.13", "python3.13t", "python3.14", "python3.14t", "python3.15"} {
		if path, err := exec.LookPath(name); err == nil {
			pythons = append(pythons, path)
		}
	}
	tried := map[string]bool{}
	for _, path := range pythons {
		version, err := exec.Command(path, "-c", "import sys; print(sys.version if sys.version_info >= (3, 9) else '')").Output()
		if name, _, _ := strings.Cut(string(version), " "); err == nil && name != "" && name != "\n" && !tried[string(version)] {
			tried[string(version)] = true
			t.Run(name, func(t *testing.T) { forksByPython(t, path) })
		}
	}
	if len(tried) == 0 {
		t.Skip("no Python from 3.9 on")
	}
}

// TestMuslPython: an interpreter that was built for musl forks its workers as any other.
func TestMuslPython(t *testing.T) {
	path := os.Getenv("RALLYPOINT_TEST_MUSL_PYTHON")
	if path == "" {
		t.Skip("RALLYPOINT_TEST_MUSL_PYTHON names no interpreter that was built for musl")
	}
	testkit.Check(t, exec.Command(path, "-c", "import sysconfig; assert 'linux-musl' in sysconfig.get_config_var('SOABI')").Run())
	forksByPython(t, path)
}

// forksByPython expects of an interpreter that its workers are forked and as cold ones.
func forksByPython(t *testing.T, path string) {
	t.Helper()
	for _, name := range quickOdd {
		if !long && name != "streams" {
			continue
		}
		dir, by := t.TempDir(), []string{"env", "PYTHON_EXEC=" + path}
		cold, _ := runOddBy(t, by, dir, odd[name])
		warm, log := runOddBy(t, by, dir, odd[name], "--warm")
		if cold != warm {
			t.Errorf("%s, cold:\n%s\nwarm:\n%s", name, cold, warm)
		}
		if !strings.Contains(log, forked) || strings.Contains(log, "start cold") {
			t.Errorf("%s is not warm:\n%s", name, log)
		}
	}
	for _, option := range []string{"--warm", "--auto-progress", "--max-restarts=0"} { // the last is the default
		dir := t.TempDir()
		writeAll(t, dir, likeTorch)
		result, log := runOddBy(t, []string{"env", "PYTHON_EXEC=" + path}, dir, seen, option)
		if !strings.HasPrefix(result, "<nil>") || !strings.Contains(result, "counted 3\n") || strings.Contains(log, "start cold") {
			t.Errorf("%s: %s\n%s", option, result, log)
		}
	}
}

// TestWhatCannotBeWarm starts cold, and says so in one line.
func TestWhatCannotBeWarm(t *testing.T) {
	for _, c := range []struct{ text, options, why string }{
		{"import this", "", "the imports printed: The Zen of Python"},
		{"# args: odd.py ${local_rank}\nimport os", "--nproc-per-node=2", "their command lines differ"},
		{"# args: --no-python true\n", "", "--no-python runs a program without an interpreter"},
		{"import os", "--keep-daemons", "with --keep-daemons"},
		{"import os", "--preload=no_such", "importing no_such failed"},
		{"import json", "--preload-timeout=0.001", "did not finish within 1ms"},
	} {
		t.Run(c.why, func(t *testing.T) {
			t.Parallel()
			result, log := runOdd(t, t.TempDir(), c.text, append(strings.Fields(c.options), "--warm")...)
			if !strings.HasPrefix(result, "<nil>") {
				t.Errorf("the run failed: %s\n%s", result, log)
			}
			if strings.Count(log, "workers start cold: ") != 1 || !strings.Contains(log, c.why) {
				t.Errorf("the log has no single %q:\n%s", c.why, log)
			}
		})
	}
}

// TestScriptChangedBetweenRounds is seen by the next workers, also in its own modules.
func TestScriptChangedBetweenRounds(t *testing.T) {
	result, log := runOdd(t, t.TempDir(), `import os, helper
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    open("helper.py", "w").write("import json\nvalue = 'changed'\n")
    raise SystemExit(3)
assert helper.value == "changed", helper.value`, "--warm", "--max-restarts=1")
	if !strings.HasPrefix(result, "<nil>") || strings.Contains(log, "start cold") || strings.Count(log, forked) != 1 {
		t.Errorf("%s\n%s", result, log)
	}
}

// TestDeadAgentLeavesNoTemplate whatever the template does when the agent is killed: it imports,
// waits for a request, or forks.
func TestDeadAgentLeavesNoTemplate(t *testing.T) {
	const say = "import os\nif 'RANK' not in os.environ:\n  with open(os.environ['SAY'], 'w') as say: print(os.getpid(), file=say)\n"
	const stay = "import os, sys, time, types\ndef stay():\n  with open(os.environ['SAY'], 'w') as say: print(os.getpid(), file=say)\n  time.sleep(1000)\n"
	for name, c := range map[string]struct{ script, module string }{
		"imports": {"import lib", say + "  import time; time.sleep(1000)\n"},
		"waits":   {"import os, time\nwith open(os.environ['SAY'], 'w') as say: print(os.getpid(), file=say)\ntime.sleep(1000)", ""},
		// The first fork is tried by the template itself.
		"forks":       {"import lib", stay + "forks = []\nos.register_at_fork(before=lambda: forks.append(0), after_in_child=lambda: len(forks) == 2 and stay())\n"},
		"forks again": {"import lib", stay + "forks = []\nos.register_at_fork(before=lambda: forks.append(0), after_in_child=lambda: len(forks) == 3 and stay())\n"},
		"renews":      {"import lib", stay + "sys.modules['numpy.random'] = types.SimpleNamespace(seed=stay)\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			writeAll(t, dir, map[string]string{"odd.py": c.script, "site-packages/lib.py": c.module})
			say := filepath.Join(dir, "say")
			if err := unix.Mkfifo(say, 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(context.Background(), testkit.Must(os.Executable())(t), "run", "--standalone", "--warm", "odd.py")
			cmd.Dir = dir
			cmd.Env = []string{testkit.EndAtOnce, asRun + "=1", "PATH=" + os.Getenv("PATH"), "TMPDIR=" + dir, "SAY=" + say, "PYTHONPATH=" + filepath.Join(dir, "site-packages"), "RALLYPOINT_PROGRESS_DIR=" + dir}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			pid := testkit.Must(strconv.Atoi(strings.TrimSpace(string(testkit.Must(os.ReadFile(say))(t)))))(t)
			var children []int
			testkit.Eventually(t, "all are there", func() bool { // the kernel may leave out some while others fork
				children = descendants(cmd.Process.Pid)
				return slices.Contains(children, pid) && (name != "waits" || len(children) >= 2)
			})
			var fds []int
			children = slices.DeleteFunc(children, func(child int) bool {
				fd, err := unix.PidfdOpen(child, 0)
				if errors.Is(err, unix.ESRCH) { // it was one for a moment
					return true
				}
				fds = append(fds, testkit.Must(fd, err)(t))
				return false
			})
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			for i, fd := range fds {
				poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
				n, err := unix.Poll(poll, int((20 * time.Second).Milliseconds()))
				for err == unix.EINTR { // by the runtime's own signals
					n, err = unix.Poll(poll, int((20 * time.Second).Milliseconds()))
				}
				if err != nil || n != 1 {
					t.Errorf("process %d is still there: %v", children[i], err)
				}
				_ = unix.Close(fd)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, "rallypoint-*")); len(left) != 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// descendants are the children of all threads of a process, and theirs.
func descendants(pid int) (pids []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, task := range tasks {
		text, _ := os.ReadFile(task)
		for _, field := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(field); err == nil {
				pids = append(append(pids, child), descendants(child)...)
			}
		}
	}
	return pids
}

// TestFewDescriptors: where a process may have 64 of them, workers are forked all the same.
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	few := []string{"sh", "-c", `ulimit -n 64; exec "$0" "$@"`}
	for _, text := range []string{odd["descriptors"], odd["limits"]} {
		dir := t.TempDir()
		cold, _ := runOddBy(t, few, dir, text, "--nproc-per-node=4")
		warm, log := runOddBy(t, few, dir, text, "--nproc-per-node=4", "--warm")
		if cold != warm || strings.Count(warm, "/stdout.log:") != 4 {
			t.Errorf("cold:\n%s\nwarm:\n%s", cold, warm)
		}
		if !strings.Contains(log, forked) || strings.Contains(log, "start cold") {
			t.Errorf("not warm:\n%s", log)
		}
	}
}

// withoutCalls runs a program under a filter of seccomp that refuses system calls of x86-64.
const withoutCalls = `import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
calls = [int(word) for word in sys.argv[1].split(",")]
program = struct.pack("=HBBI", 0x20, 0, 0, 0)
for at, call in enumerate(calls):
    program += struct.pack("=HBBI", 0x15, len(calls) - at, 0, call)
program += struct.pack("=HBBI", 6, 0, 0, 0x7fff0000) + struct.pack("=HBBI", 6, 0, 0, 0x00050001)
text = ctypes.create_string_buffer(program, len(program))
class Filter(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
given = Filter(len(program) // 8, ctypes.addressof(text))
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(given), 0, 0):
    sys.exit("no filter can be set: " + os.strerror(ctypes.get_errno()))
os.execv(sys.argv[2], sys.argv[2:])
`

// TestNoSignals: where no process may send a signal, or have one handled by another's code, a job
// runs as elsewhere.
func TestNoSignals(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the numbers of system calls are those of x86-64")
	}
	python := testkit.Must(exec.LookPath("python3"))(t)
	for name, calls := range map[string]string{"kill, tkill, tgkill, rt_sigqueueinfo, pidfd_send_signal": "62,200,234,129,424", "pidfd_open, pidfd_send_signal": "434,424"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			by := []string{python, "-c", withoutCalls, calls}
			dir := t.TempDir()
			for _, text := range []string{odd["exit code"], odd["signals"]} {
				cold, _ := runOddBy(t, by, dir, text)
				warm, log := runOddBy(t, by, dir, text, "--warm")
				if cold != warm || !strings.Contains(cold, "/stdout.log:") {
					t.Errorf("cold:\n%s\nwarm:\n%s", cold, warm)
				}
				if !strings.Contains(log, forked) || strings.Contains(log, "start cold") {
					t.Errorf("not warm:\n%s", log)
				}
			}
		})
	}
}
