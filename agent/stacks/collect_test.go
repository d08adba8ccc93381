package stacks

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"rallypoint/internal/ownfile"
	"rallypoint/internal/testkit"
)

// worker is a real interpreter that answers the signal by the package's own code.
type worker struct {
	Target
	t     *testing.T
	cmd   *exec.Cmd
	said  *bufio.Scanner
	stdin interface{ Close() error }
}

// startWorker starts one that runs a program, and waits until it prints a line. The program
// ends when stdin does.
func startWorker(t *testing.T, program string) *worker {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip(err)
	}
	if exec.Command(python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))").Run() != nil {
		t.Skip("python3 is older than 3.11: it is not asked")
	}
	register, err := filepath.Abs("../../python/rallypoint/_launch/stacks.py")
	testkit.Check(t, err)
	dir := t.TempDir()
	f, err := ownfile.Create(filepath.Join(dir, "stacks"), nil)
	testkit.Check(t, err)
	script := filepath.Join(dir, "train.py")
	testkit.WriteFile(t, script, []byte(program))
	w := &worker{t: t, cmd: exec.Command(python, "-c", fmt.Sprintf("import sys, runpy; exec(open(%q).read()); register(); runpy.run_path(%q)", register, script))}
	w.cmd.Env = append(os.Environ(), EnvFile+"="+f.Path(), "STACKS="+f.Path())
	w.cmd.Stderr = os.Stderr
	out, err := w.cmd.StdoutPipe()
	testkit.Check(t, err)
	w.stdin, err = w.cmd.StdinPipe()
	testkit.Check(t, err)
	testkit.Check(t, w.cmd.Start())
	t.Cleanup(func() {
		_ = w.cmd.Process.Kill()
		_ = w.cmd.Wait()
		f.Remove()
	})
	w.said = bufio.NewScanner(out)
	w.hear("up")
	w.Target = Target{Rank: 3, Pid: w.cmd.Process.Pid, File: f}
	testkit.Eventually(t, "the worker waits", func() bool { return readKernel(w.Pid).state == 'S' })
	return w
}

func (w *worker) hear(want string) {
	w.t.Helper()
	if !w.said.Scan() || w.said.Text() != want {
		w.t.Fatalf("the worker says %q, not %q", w.said.Text(), want)
	}
}

func (w *worker) collect(patience time.Duration) Group {
	return Collect(context.Background(), []Target{w.Target}, MainThread, patience)[0]
}

// unharmed checks that the worker continues and ends well.
func (w *worker) unharmed() {
	w.t.Helper()
	testkit.Check(w.t, w.stdin.Close())
	w.hear("end")
	if err := w.cmd.Wait(); err != nil {
		w.t.Error(err)
	}
}

const waits = `
def data_wait():
    print("up", flush=True)
    sys.stdin.read()
    print("end", flush=True)
`

// TestStackOfWorker: asked twice, a worker says twice where it is, and continues.
func TestStackOfWorker(t *testing.T) {
	w := startWorker(t, "import sys\n"+waits+"data_wait()\n")
	for range 2 {
		got := w.collect(testkit.Patience)
		if got.Source != SourceFaulthandler || got.Ranks[0] != 3 || len(got.Threads) != 1 {
			t.Fatalf("%+v", got)
		}
		if f := got.Threads[0].Frames[0]; f.Function != "data_wait" || f.Line != 5 || !f.user() || !strings.HasSuffix(f.File, "/train.py") {
			t.Errorf("%+v", f)
		}
	}
	w.unharmed()
}

// TestStackWithoutTheGIL: a call into C that keeps the interpreter's lock does not hide where
// the worker is, nor what its other threads do.
func TestStackWithoutTheGIL(t *testing.T) {
	w := startWorker(t, `import sys, ctypes, threading
def other():
    threading.Event().wait()
threading.Thread(target=other, daemon=True).start()
print("up", flush=True)
def holds():
    ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)
holds()
print("end", flush=True)
import os
os._exit(0)
`)
	testkit.Eventually(t, "the call that holds it is shown", func() bool {
		if got := Collect(context.Background(), []Target{w.Target}, MainThread, testkit.Patience)[0]; len(got.Threads) != 1 {
			t.Fatalf("%+v", got)
		}
		got := Collect(context.Background(), []Target{w.Target}, AllThreads, testkit.Patience)[0]
		return len(got.Threads) == 2 && got.Threads[0].Frames[0].Function == "holds"
	})
	w.unharmed()
}

// TestWorkersThatDoNotAnswer: what the worker has done to the signal or to the file does
// nothing to it, and the reason is said with its kernel state.
func TestWorkersThatDoNotAnswer(t *testing.T) {
	for name, c := range map[string]struct{ before, why string }{
		"ignored":     {"import signal; signal.signal(61, signal.SIG_IGN)", "does not handle signal 61"},
		"default":     {"import signal; signal.signal(61, signal.SIG_DFL)", "does not handle signal 61"},
		"blocked":     {"import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [61])", "has blocked signal 61"},
		"closed":      {"import os; os.closerange(3, 4096)", "has closed its stack file"},
		"replaced":    {"import os; n = int(open(os.environ['STACKS']).read().split()[2]); os.dup2(os.open('/dev/null', os.O_WRONLY), n)", "has closed its stack file"},
		"overwritten": {"import os; open(os.environ['STACKS'], 'w').write('x' * 100)", "overwritten its stack file"},
		"emptied":     {"import os; os.truncate(os.environ['STACKS'], 0)", "has not loaded Rallypoint"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := startWorker(t, "import sys\n"+c.before+"\n"+waits+"data_wait()\n")
			got := w.collect(100 * time.Millisecond)
			if got.Source != SourceKernel || len(got.Threads) != 0 || !strings.Contains(got.Why, c.why) || !strings.HasPrefix(got.State, "sleeping") {
				t.Errorf("%+v", got)
			}
			w.unharmed()
		})
	}
}

// TestHugeStackFile: a file of 1 TB, with text of the worker's in it, costs nothing.
func TestHugeStackFile(t *testing.T) {
	w := startWorker(t, "import sys, os\nopen(os.environ['STACKS'], 'a').write('Thread 0x1 (most recent call first):\\n' * 100000)\nos.truncate(os.environ['STACKS'], 1 << 40)\n"+waits+"data_wait()\n")
	got := w.collect(testkit.Patience)
	if len(got.Threads) != 1 || got.Threads[0].Frames[0].Function != "data_wait" {
		t.Errorf("%+v", got)
	}
	if info := testkit.Must(os.Stat(w.File.Path()))(t); info.Size() > maxHeader {
		t.Errorf("%d bytes are left", info.Size())
	}
	w.unharmed()
}

// TestStoppedWorker: it is named as stopped at once, and no signal waits for it.
func TestStoppedWorker(t *testing.T) {
	w := startWorker(t, "import sys\n"+waits+"data_wait()\n")
	testkit.Check(t, unix.Kill(w.Pid, unix.SIGSTOP))
	testkit.Eventually(t, "it is stopped", func() bool { return readKernel(w.Pid).state == 'T' })
	if got := w.collect(testkit.Patience); !strings.HasPrefix(got.State, "stopped") || got.Why != "it is stopped" || has(readKernel(w.Pid).pending, MainThread) {
		t.Errorf("%+v", got)
	}
	testkit.Check(t, unix.Kill(w.Pid, unix.SIGCONT))
	w.unharmed()
}

// TestUninterruptibleWorker: one in uninterruptible sleep is named so, and has done what it was asked
// for once it is awake. It waits for a program that it starts, which is not executed before someone
// writes into a pipe; meanwhile it blocks all signals.
func TestUninterruptibleWorker(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	testkit.Check(t, unix.Mkfifo(pipe, 0o600))
	w := startWorker(t, fmt.Sprintf(`import os, sys
print("up", flush=True)
sys.stdin.read()
def starts():
    return os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, %q, os.O_RDONLY, 0)])
os.waitpid(starts(), 0)
print("end", flush=True)
`, pipe))
	testkit.Check(t, w.stdin.Close())
	testkit.Eventually(t, "it sleeps", func() bool { return readKernel(w.Pid).state == stateD })
	got := w.collect(100 * time.Millisecond)
	if !strings.HasPrefix(got.State, "in uninterruptible sleep (D)") || got.Why != whyLate || got.Source != SourceKernel {
		t.Errorf("%+v", got)
	}
	if !has(readKernel(w.Pid).pending, MainThread) {
		t.Error("no signal waits for it")
	}
	writer := testkit.Must(os.OpenFile(pipe, os.O_WRONLY, 0))(t)
	defer writer.Close()
	w.hear("end")
	testkit.Check(t, w.cmd.Wait())
	if text := testkit.Must(os.ReadFile(w.File.Path()))(t); !strings.Contains(string(text), " in starts\n") {
		t.Errorf("it has written %q", text)
	}
}

// TestWorkerInDebugger: the signal would stop it in its debugger.
func TestWorkerInDebugger(t *testing.T) {
	w := startWorker(t, "import sys\n"+waits+"data_wait()\n")
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.PtraceSeize(w.Pid); err != nil {
		t.Skip("ptrace: ", err)
	}
	if got := w.collect(testkit.Patience); !strings.HasPrefix(got.State, "in a debugger, sleeping") || got.Why != "a debugger holds it" {
		t.Errorf("%+v", got)
	}
	testkit.Check(t, unix.PtraceInterrupt(w.Pid))
	var status unix.WaitStatus
	testkit.Must(unix.Wait4(w.Pid, &status, 0, nil))(t)
	testkit.Check(t, unix.PtraceDetach(w.Pid))
	w.unharmed()
}

// TestForbiddenSignals: where a filter of seccomp lets the agent send none, or knows no pidfd, a
// worker is shown with its kernel state and the reason.
func TestForbiddenSignals(t *testing.T) {
	w := startWorker(t, "import sys\n"+waits+"data_wait()\n")
	for call, why := range map[uint32]string{
		unix.SYS_PIDFD_SEND_SIGNAL: "it cannot be sent a signal: operation not permitted",
		unix.SYS_PIDFD_OPEN:        "its process cannot be asked: operation not permitted",
	} {
		answer := make(chan Group)
		var err error
		go func() { // the thread ends with it, and the filter with the thread
			defer close(answer)
			runtime.LockOSThread()
			if err = forbid(call); err == nil {
				answer <- w.collect(testkit.Patience)
			}
		}()
		got := <-answer
		if err != nil {
			t.Skip("seccomp: ", err)
		}
		if got.Source != SourceKernel || got.Why != why || !strings.HasPrefix(got.State, "sleeping") {
			t.Errorf("%+v", got)
		}
	}
	w.unharmed()
}

// forbid refuses a system call to this thread.
func forbid(call uint32) error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the call's number
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: call},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
}

// TestWorkerWithoutOurCode: another program gets no signal, which would end it.
func TestWorkerWithoutOurCode(t *testing.T) {
	f := testkit.Must(ownfile.Create(filepath.Join(t.TempDir(), "stacks"), nil))(t)
	defer f.Remove()
	cmd := exec.Command("cat")
	in := testkit.Must(cmd.StdinPipe())(t)
	testkit.Check(t, cmd.Start())
	for _, file := range []*ownfile.File{f, nil} {
		got := Collect(context.Background(), []Target{{Rank: 1, Pid: cmd.Process.Pid, File: file}}, MainThread, testkit.Patience)[0]
		if got.Source != SourceKernel || got.Why == "" {
			t.Errorf("%+v", got)
		}
	}
	testkit.Check(t, in.Close())
	testkit.Check(t, cmd.Wait())
	if got := Collect(context.Background(), []Target{{Pid: cmd.Process.Pid, File: f}}, MainThread, testkit.Patience)[0]; got.State != "ended" {
		t.Errorf("%+v", got)
	}
}

// TestStackOfDescendant: a worker that is a shell has its stack from the interpreter in it.
func TestStackOfDescendant(t *testing.T) {
	w := startWorker(t, "import sys\n"+waits+"data_wait()\n")
	w.Pid = os.Getpid()
	if got := w.collect(testkit.Patience); got.Source != SourceFaulthandler {
		t.Errorf("%+v", got)
	}
	w.unharmed()
}

func TestParseStatus(t *testing.T) {
	k := parseStatus([]byte("Name:\tState: X\nState:\tt (tracing stop)\nTracerPid:\t12\nSigPnd:\t0000000000000000\nShdPnd:\t1000000000000000\nSigCgt:\t1000000000000002\n"))
	if k.state != 't' || k.tracer != 12 || !has(k.pending, MainThread) || !has(k.caught, MainThread) || has(k.caught, AllThreads) {
		t.Errorf("%+v", k)
	}
	if got := k.String(); got != "in a debugger, stopped" {
		t.Error(got)
	}
}
