package process

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/internal/testkit"
)

// templateRig is a template with what it needs, and its log.
type templateRig struct {
	t      *testing.T
	forker *Forker
	reaper *Reaper
	config TemplateConfig
	log    bytes.Buffer
}

// newTemplateRig prepares a template of a script, beside which there are modules.
func newTemplateRig(t *testing.T, script string, modules map[string]string) *templateRig {
	t.Helper()
	python, err := LookUp("python3", []string{"PATH=" + os.Getenv("PATH")})
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	r := &templateRig{t: t, forker: NewForker(nil)}
	r.reaper = NewReaper(r.forker, true, false, "", slog.New(slog.DiscardHandler))
	t.Cleanup(func() { r.reaper.Close(); r.forker.Close() })
	site := filepath.Join(dir, "site-packages")
	for name, text := range modules {
		writeFile(t, filepath.Join(site, name+".py"), text)
	}
	writeFile(t, filepath.Join(dir, "train.py"), script)
	r.config = TemplateConfig{
		Argv: []string{python, "-u", filepath.Join(dir, "train.py")}, Timeout: time.Minute,
		Environ: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "PYTHONPATH=" + site, "OUT=" + filepath.Join(dir, "out"), "PYTHONDONTWRITEBYTECODE=1"},
	}
	return r
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (tr *templateRig) start() *Template {
	t := NewTemplate(tr.forker, tr.reaper, nil, tr.config, slog.New(slog.NewTextHandler(&tr.log, nil)))
	tr.t.Cleanup(t.Close)
	t.Prepare(nil)
	return t
}

// run runs workers to their end, and returns them and what they wrote to $OUT.
func (tr *templateRig) run(t *Template, envs ...string) ([]*Process, string) {
	tr.t.Helper()
	return tr.launch(t, "", envs...)
}

// launch is run with a site.
func (tr *templateRig) launch(t *Template, site string, envs ...string) ([]*Process, string) {
	tr.t.Helper()
	var launches []Launch
	for local, env := range envs {
		launches = append(launches, Launch{local, tr.config.Argv, append(tr.config.Environ[:len(tr.config.Environ):len(tr.config.Environ)], env), []uintptr{0, 1, 2}, nil, site})
	}
	group, err := StartWorkers(tr.forker, tr.reaper, t, launches, slog.New(slog.DiscardHandler))
	if err != nil {
		tr.t.Fatal(err)
	}
	for _, p := range group.Procs {
		<-p.exited
	}
	group.Stop(StopOptions{Signal: unix.SIGKILL, quiet: true})
	out, _ := LookupEnv(tr.config.Environ, "OUT")
	text, _ := os.ReadFile(out)
	_ = os.Remove(out)
	return group.Procs, string(text)
}

func (tr *templateRig) expectLog(text string) {
	tr.t.Helper()
	if !strings.Contains(tr.log.String(), text) {
		tr.t.Errorf("the log has no %q:\n%s", text, tr.log.String())
	}
}

// countsImports says whether a worker was forked: the import was in another process.
const countsImports = `import lib, os
with open(os.environ["OUT"], "a") as out:
    print("forked" if lib.pid != os.getpid() else "cold", os.getppid(), os.getsid(0) == os.getpid(), os.environ["RANK"], sep=",", file=out)
os._exit(int(os.environ["RANK"]) + 3)
`

const libModule = "import os\npid = os.getpid()\n"

// TestTemplateForks gives this process children that are no other than those it starts.
func TestTemplateForks(t *testing.T) {
	r := newTemplateRig(t, countsImports, map[string]string{"lib": libModule})
	template := r.start()
	for range 2 { // the template outlives an attempt
		template.Prepare(nil)
		procs, text := r.run(template, "RANK=0", "RANK=1")
		for local, p := range procs {
			if p.Code != local+3 || p.Lost {
				t.Errorf("worker %d ended with %d, lost %v", local, p.Code, p.Lost)
			}
		}
		for _, rank := range []string{"0", "1"} {
			if want := "forked," + strconv.Itoa(os.Getpid()) + ",True," + rank + "\n"; !strings.Contains(text, want) {
				t.Errorf("no %q in %q", want, text)
			}
		}
	}
	r.expectLog("workers are forked from a template that has imported lib, os in")
	pid := template.process.pid
	template.Close()
	if unix.Kill(pid, 0) == nil || len(ownChildren()) != 0 {
		t.Errorf("children %v are left, template %d", ownChildren(), pid)
	}
}

// TestThreadThatEndsInAFork has an import start a thread under the name of jemalloc's, which has fork handlers.
func TestThreadThatEndsInAFork(t *testing.T) {
	r := newTemplateRig(t, countsImports, map[string]string{"lib": libModule + `import threading, time
def purge():
    with open("/proc/thread-self/comm", "w") as name:
        name.write("jemalloc_bg_thd")
    named.set()
    time.sleep(1000)
named = threading.Event()
threading.Thread(target=purge, daemon=True).start()
named.wait()
`})
	if _, text := r.run(r.start(), "RANK=0"); !strings.HasPrefix(text, "forked,") {
		t.Errorf("the worker wrote %q: %s", text, r.log.String())
	}
}

// fakeGPU is a module that opens what it takes for a GPU, in a namespace of its own.
const fakeGPU = `import ctypes
libc = ctypes.CDLL(None)
if libc.unshare(0x20000) and libc.unshare(0x10020000) or libc.mount(b"none", b"/", None, 0x44000, None) or libc.mount(b"none", b"/dev", b"tmpfs", 0, None):
  raise OSError("` + noNamespace + `")
gpu = open("/dev/nvidia0", "w")`

const noNamespace = "no namespace of mounts can be made"

// TestTemplateRefuses lists what cannot be forked: its workers start cold, and the log says why once.
func TestTemplateRefuses(t *testing.T) {
	for _, c := range []struct{ name, lib, why string }{
		{"prints", "print('hello')", "the imports printed: hello"},
		{"warns", "import sys; sys.stderr.write('beware\\n')", "the imports printed: beware"},
		{"raises", "1/0", "importing lib failed: ZeroDivisionError: division by zero"},
		{"is missing in part", "import no_such_module", "importing lib failed: No module named 'no_such_module'"},
		{"leaves", "import sys; sys.exit(3)", "importing lib failed: SystemExit: 3"},
		{"leaves hard", "import os; os._exit(0)", "the interpreter ended during the imports"},
		{"is killed", "import os; os.kill(os.getpid(), 9)", "the interpreter ended during the imports"},
		{"runs out of memory", "open(os.environ['GROUP'] + '/cgroup.procs', 'w').write(str(os.getpid()))\nb'x' * (256 << 20)", "the interpreter ended during the imports"},
		{"starts a thread", "import threading, time; threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()", "the imports have started a thread, which a fork would not have"},
		{"leaves a child", "import subprocess; p = subprocess.Popen(['sleep', '1000'])", "an import has left a child process"},
		{"takes all memory", "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, resource.RLIM_INFINITY)); b'x' * (10 << 30)", "importing lib failed: MemoryError"},
		{"may start no process", "import resource; resource.setrlimit(resource.RLIMIT_NPROC, (0, 0)); os.getuid() or os.setresuid(65534, 65534, 65534)", "it cannot fork: [Errno 11] Resource temporarily unavailable"},
		{"opens a GPU", fakeGPU, "the imports have opened /dev/nvidia0"},
		{"opens a GPU and starts a thread", fakeGPU + "\nimport threading, time; threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()", "the imports have opened /dev/nvidia0"},
		{"initialises CUDA", "import sys, types\nsys.modules['torch'] = types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: True))", "the imports have initialised CUDA"},
		{"breaks the interpreter", "os.listdir = None", "preparing the imports failed: TypeError: 'NoneType' object is not callable"},
		{"leaves a daemon", "import os\nif not os.fork():\n  os.setsid()\n  if os.fork(): os._exit(0)\n  os.closerange(2, 1001); import time; time.sleep(1000)\nos.wait()", "the imports left a process running"},
	} {
		t.Run(c.name, func(t *testing.T) {
			group := ""
			if c.name == "runs out of memory" {
				group = smallGroup(t)
			}
			guard := "import os\nif os.environ.get('RANK') is None:\n    "
			r := newTemplateRig(t, countsImports, map[string]string{"lib": libModule + guard + strings.ReplaceAll(c.lib, "\n", "\n    ") + "\n"})
			r.config.Environ = append(r.config.Environ, "GROUP="+group)
			if c.name == "leaves a daemon" {
				r.config.OutputPatience = 100 * time.Millisecond
			}
			template := r.start()
			template.Prepare(nil)
			if strings.Contains(r.log.String(), noNamespace) {
				t.Skip(r.log.String())
			}
			if _, text := r.run(template, "RANK=0"); !strings.HasPrefix(text, "cold,") {
				t.Errorf("the worker wrote %q", text)
			}
			r.expectLog("workers start cold: ")
			r.expectLog(c.why)
			if n := strings.Count(r.log.String(), "\n"); n != 1 {
				t.Errorf("%d lines:\n%s", n, r.log.String())
			}
		})
	}
}

// TestCompilerIsImported with torch, whose first optimizer would import it in each worker, unless
// something tells that the script or --preload wants it otherwise.
func TestCompilerIsImported(t *testing.T) {
	const idle = "import torch, os, sys\nwith open(os.environ['OUT'], 'a') as out: print('torch._dynamo' in sys.modules, file=out)\nos._exit(3)\n"
	const script = idle + "def train(): torch.optim.SGD([])\n"
	const torch = "import types\ncuda = types.SimpleNamespace(is_initialized=lambda: False)\ndefault_generator = types.SimpleNamespace(seed=lambda: None)\n"
	for _, c := range []struct {
		name, script, torch, compiler string
		preload                       []string
		want                          string
	}{
		{"a script that trains", script, torch + "from .optim import optimizer\n", "", nil, "True\n"},
		{"a script that does not", idle, torch + "from .optim import optimizer\n", "", nil, "False\n"},
		{"torch without optimizers", script, torch, "", nil, "False\n"},
		{"no compiler", script, torch + "from .optim import optimizer\n", "raise ImportError", nil, "False\n"},
		{"it sets a variable", "import torch\ndef f(): torch.environment('TORCHDYNAMO_DISABLE')\n" + script, torch + "from .optim import optimizer\n", "", nil, "False\n"},
		{"it changes its environment", "import torch, os\nos.environ['X'] = '1'\n" + script, torch + "from .optim import optimizer\n", "", nil, "False\n"},
		{"--preload", script, torch + "from .optim import optimizer\n", "", []string{"torch"}, "False\n"},
	} {
		t.Run(c.name, func(t *testing.T) { // a reaper at a time
			r := newTemplateRig(t, c.script, map[string]string{"torch/__init__": c.torch, "torch/optim/__init__": "", "torch/optim/optimizer": "", "torch/_dynamo": c.compiler})
			r.config.Preload = c.preload
			if procs, text := r.run(r.start(), "RANK=0"); text != c.want || procs[0].Code != 3 {
				t.Errorf("%q, exit code %d, expected %q:\n%s", text, procs[0].Code, c.want, r.log.String())
			}
			r.expectLog("workers are forked from a template")
		})
	}
}

// TestTemplateWithoutCtypes: an interpreter that was built without libffi starts its workers cold.
func TestTemplateWithoutCtypes(t *testing.T) {
	r := newTemplateRig(t, countsImports, map[string]string{"lib": libModule, "ctypes": "raise ImportError('no _ctypes')"})
	template := r.start()
	template.Prepare(nil)
	if _, text := r.run(template, "RANK=0"); !strings.HasPrefix(text, "cold,") {
		t.Errorf("the worker wrote %q", text)
	}
	r.expectLog("workers start cold: preparing the imports failed: ImportError: no _ctypes")
}

// TestTemplateThatCannotStart: workers start cold, and nothing is left of it.
func TestTemplateThatCannotStart(t *testing.T) {
	r := newTemplateRig(t, "", nil)
	broken := filepath.Join(t.TempDir(), "python3")
	testkit.Check(t, os.WriteFile(broken, []byte("\x00"), 0o700))
	r.config.Argv[0], r.config.Folder = broken, t.TempDir()
	r.start()
	r.expectLog("workers start cold: start " + broken + ": exec format error")
	if left := testkit.Must(os.ReadDir(r.config.Folder))(t); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestTemplateThatHangs is given up after its time.
func TestTemplateThatHangs(t *testing.T) {
	r := newTemplateRig(t, "import lib", map[string]string{"lib": "import time; time.sleep(1000)"})
	r.config.Timeout = time.Second
	r.start()
	r.expectLog("workers start cold: the imports did not finish within 1s (--preload-timeout)")
}

// TestTemplateNeverRunsTheScript where the interpreter does not load what holds it.
func TestTemplateNeverRunsTheScript(t *testing.T) {
	for _, option := range []string{"-I", "-E", "-S", "-Xutf8", "-uI"} {
		r := newTemplateRig(t, countsImports, map[string]string{"lib": libModule})
		r.config.Argv = append([]string{r.config.Argv[0], option}, r.config.Argv[1:]...)
		template := r.start()
		if held := template.process != nil; held != (option == "-Xutf8") {
			t.Errorf("%s: held %v: %s", option, held, r.log.String())
		} else if !held {
			r.expectLog("does not load sitecustomize")
		}
		if _, err := os.Stat(filepath.Join(filepath.Dir(r.config.Argv[3]), "out")); err == nil {
			t.Errorf("%s: the script has run", option)
		}
		template.Close()
	}
}

// TestTemplateThatEnded is replaced before the next workers; those for whom it is too late
// start cold.
func TestTemplateThatEnded(t *testing.T) {
	r := newTemplateRig(t, countsImports, map[string]string{"lib": libModule})
	template := r.start()
	_ = unix.Kill(template.process.pid, unix.SIGKILL)
	template.Prepare(nil)
	if _, text := r.run(template, "RANK=0"); !strings.HasPrefix(text, "forked,") {
		t.Errorf("the worker wrote %q", text)
	}
	r.expectLog("the template of the workers is replaced")
	_ = unix.Kill(template.process.pid, unix.SIGKILL)
	if _, text := r.run(template, "RANK=0", "RANK=1"); strings.Count(text, "cold,") != 2 {
		t.Errorf("the workers wrote %q", text)
	}
	r.expectLog("workers start cold: the template failed to fork")
}

// TestStoppedTemplate costs the patience, once.
func TestStoppedTemplate(t *testing.T) {
	r := newTemplateRig(t, countsImports, map[string]string{"lib": libModule})
	template := r.start()
	template.config.ForkPatience = 100 * time.Millisecond
	_ = unix.Kill(template.process.pid, unix.SIGSTOP)
	if _, text := r.run(template, "RANK=0", "RANK=1"); strings.Count(text, "cold,") != 2 {
		t.Errorf("the workers wrote %q", text)
	}
}

// TestChangedPackage makes a new template.
func TestChangedPackage(t *testing.T) {
	r := newTemplateRig(t, countsImports, map[string]string{"lib": libModule})
	template := r.start()
	before := template.process.pid
	lib := filepath.Join(filepath.Dir(r.config.Argv[2]), "site-packages", "lib.py")
	writeFile(t, lib, libModule+"# changed\n")
	template.Prepare(nil)
	if template.process == nil || template.process.pid == before {
		t.Errorf("the template is that of before: %s", r.log.String())
	}
	r.expectLog("site-packages/lib.py has changed")
}

// TestWorkerThatDiffers in what libraries read at their import starts cold, the others do not.
func TestWorkerThatDiffers(t *testing.T) {
	r := newTemplateRig(t, countsImports, map[string]string{"lib": libModule})
	template := r.start()
	launch := func(env string) Launch {
		return Launch{0, r.config.Argv, append(r.config.Environ[:len(r.config.Environ):len(r.config.Environ)], "RANK=0", env), []uintptr{0, 1, 2}, nil, ""}
	}
	for env, forked := range map[string]bool{"OMP_NUM_THREADS=3": false, "TORCH_NCCL_BLOCKING_WAIT=1": true, "CUDA_VISIBLE_DEVICES=1": true} {
		w := launch(env)
		if differs := differing(r.config.Environ, w.Env) != ""; differs == forked {
			t.Errorf("%s: differs %v", env, differs)
		}
	}
	if pids := template.fork([]Launch{launch("OMP_NUM_THREADS=3")}); pids[0] != 0 {
		t.Error("it was forked")
	}
	r.expectLog("libraries read OMP_NUM_THREADS while they are imported")
}

// TestManyWorkers are all forked, and each once.
func TestManyWorkers(t *testing.T) {
	r := newTemplateRig(t, countsImports, map[string]string{"lib": libModule})
	var envs []string
	for rank := range 64 {
		envs = append(envs, "RANK="+strconv.Itoa(rank))
	}
	procs, text := r.run(r.start(), envs...)
	for local, p := range procs {
		if p.Code != local+3 || p.Lost || !strings.Contains(text, fmt.Sprintf(",True,%d\n", local)) {
			t.Errorf("worker %d ended with %d, lost %v", local, p.Code, p.Lost)
		}
	}
	if n := strings.Count(text, "forked,"); n != len(envs) || strings.Count(text, "\n") != n {
		t.Errorf("%d of %d were forked: %s", n, len(envs), text)
	}
}

// TestNoProcessMore: at the limit of processes those workers start cold that have no room, and the
// next ones are forked again.
func TestNoProcessMore(t *testing.T) {
	for limit, c := range map[string]struct {
		forked int
		why    string
	}{"1": {0, "[Errno 11] Resource temporarily unavailable"}, "2": {0, "a second fork failed"}, "3": {1, "a second fork failed"}} {
		group := controlGroup(t, "pids", map[string]string{"pids.max": limit})
		r := newTemplateRig(t, countsImports, map[string]string{"lib": libModule})
		template := r.start()
		testkit.WriteFile(t, filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(template.process.pid)))
		if _, text := r.run(template, "RANK=0", "RANK=1"); strings.Count(text, "forked,") != c.forked || strings.Count(text, "cold,") != 2-c.forked {
			t.Errorf("limit %s: the workers wrote %q", limit, text)
		}
		r.expectLog("workers start cold: the template failed to fork: " + c.why)
		template.Prepare(nil)
		if _, text := r.run(template, "RANK=0"); !strings.HasPrefix(text, "forked,") {
			t.Errorf("limit %s: the next worker wrote %q", limit, text)
		}
		template.Close()
	}
}

// controlGroup makes a control group of a controller below this process's, with limits, and
// returns its folder; the test is skipped where that cannot be.
func controlGroup(t *testing.T, controller string, limits map[string]string) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Skip(err)
	}
	parent := ""
	for line := range strings.Lines(string(text)) {
		switch fields := strings.SplitN(strings.TrimSpace(line), ":", 3); {
		case slices.Contains(strings.Split(fields[1], ","), controller):
			parent = "/sys/fs/cgroup/" + fields[1] + fields[2]
		case fields[0] == "0" && parent == "":
			parent = "/sys/fs/cgroup" + fields[2]
		}
	}
	group, err := os.MkdirTemp(parent, "rallypoint-test-")
	if err != nil {
		t.Skip("no control group of ", controller, ": ", err)
	}
	t.Cleanup(func() {
		testkit.Eventually(t, "the control group is empty", func() bool { return unix.Rmdir(group) == nil })
	})
	for name, value := range limits {
		if err := os.WriteFile(filepath.Join(group, name), []byte(value), 0); err != nil {
			t.Skip("no control group of ", controller, ": ", err)
		}
	}
	return group
}

// smallGroup makes a control group of little memory.
func smallGroup(t *testing.T) string {
	t.Helper()
	name := "memory.max"
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err == nil {
		name = "memory.limit_in_bytes"
	}
	return controlGroup(t, "memory", map[string]string{name: "16777216"})
}

// failsInFork is a module that has a fault happen, once, at a moment of a worker's fork: to the
// template or to the process that forks.
const failsInFork = libModule + `import signal, sys, types
template = os.getpid()
def fault(moment):
    def run():
        depth = 0 if os.getpid() == template else 1 if os.getppid() == template else 2
        if "%s %d" % (moment, depth) != os.environ["MOMENT"]:
            return
        try:
            os.remove(os.environ["OUT"] + ".armed")
        except OSError:
            return
        whom = template if os.environ["WHOM"] == "template" else os.getpid()
        if os.environ["FAULT"] == "MemoryError":
            raise MemoryError
        if os.environ["FAULT"] == "OOM":
            with open(os.environ["GROUP"] + "/cgroup.procs", "w") as procs:
                procs.write(str(whom))
            b"x" * (256 << 20)
        else:
            os.kill(whom, getattr(signal, os.environ["FAULT"]))
    return run
sys.modules["numpy.random"] = types.SimpleNamespace(seed=fault("become"))
os.register_at_fork(before=fault("before"), after_in_parent=fault("parent"), after_in_child=fault("child"))
`

// TestFaultsInAFork: whatever happens to a template or to what it forks at any moment of a fork,
// each worker runs once, and nothing is left.
func TestFaultsInAFork(t *testing.T) {
	for _, moment := range []string{"before 0", "parent 0", "child 1", "before 1", "become 2"} {
		for _, fault := range []string{"SIGKILL", "SIGSTOP", "OOM", "MemoryError"} {
			for _, whom := range []string{"template", "itself"} {
				memory := fault == "OOM" || fault == "MemoryError"
				if whom == "itself" && !memory && strings.HasSuffix(moment, "0") {
					continue // that is the template
				}
				if memory && whom == "template" || fault == "MemoryError" && moment != "become 2" {
					continue // nobody runs out of another's; what is raised in a fork is ignored
				}
				t.Run(moment+" "+fault+" "+whom, func(t *testing.T) {
					patience := time.Minute
					if fault == "SIGSTOP" { // which costs it
						patience = 200 * time.Millisecond
					}
					for happened := false; !happened; patience *= 2 {
						if patience > time.Minute {
							t.Fatal("the fault did not happen")
						}
						// Each try is a test, whose reaper ends with it: it would reap the next one's workers as orphans.
						t.Run(patience.String(), func(t *testing.T) {
							happened = true // also if it is skipped
							happened = faultInAFork(t, moment, fault, whom, patience)
						})
					}
				})
			}
		}
	}
}

// faultInAFork is one of TestFaultsInAFork, with so long for a fork. It returns false if that was
// over before the fault happened.
func faultInAFork(t *testing.T, moment, fault, whom string, patience time.Duration) bool {
	r := newTemplateRig(t, countsImports, map[string]string{"lib": failsInFork})
	r.config.Environ = append(r.config.Environ, "MOMENT="+moment, "FAULT="+fault, "WHOM="+whom)
	if fault == "OOM" {
		r.config.Environ = append(r.config.Environ, "GROUP="+smallGroup(t))
	}
	r.config.ForkPatience = time.Minute
	template := r.start()
	out, _ := LookupEnv(r.config.Environ, "OUT")
	writeFile(t, out+".armed", "")
	template.config.ForkPatience = patience
	procs, text := r.run(template, "RANK=0", "RANK=1")
	_, err := os.Stat(out + ".armed")
	for _, rank := range []string{"0", "1"} {
		if n := strings.Count(text, ","+rank+"\n"); n != 1 {
			t.Errorf("worker %s ran %d times: %q", rank, n, text)
		}
	}
	for local, p := range procs {
		if p.Code != local+3 || p.Lost {
			t.Errorf("worker %d ended with %d, lost %v", local, p.Code, p.Lost)
		}
	}
	template.Close()
	testkit.Eventually(t, "nothing is left", func() bool { return len(ownChildren()) == 0 })
	return err != nil
}
