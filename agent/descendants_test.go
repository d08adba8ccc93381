package agent

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"rallypoint/agent/process"
	"rallypoint/internal/testkit"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// leavesDescendants is a worker with a child in its group and one in a session of
// its own, which has a child in yet another; all ignore SIGTERM.
const leavesDescendants = `trap '' TERM
	sleep 100 & a=$!
	setsid sh -c 'setsid sleep 100 & echo $$ $! > $SAY; exec sleep 100' &
	echo $$ $a > $SAY
	read go < $GO`

// TestDescendants ends all descendants of workers, whichever of them failed, before the run
// ends.
func TestDescendants(t *testing.T) {
	s := newHarness(t, 2, leavesDescendants+"; exit $RANK")
	s.spec.Subreaper = true
	s.spec.ShutdownTimeout = 0
	goFile := s.goFile()
	s.start()
	pids := s.hearPids(4)
	if len(pids) != 8 {
		t.Fatalf("pids %v", pids)
	}
	hold, err := os.OpenFile(goFile, os.O_RDWR, 0) // a line stays until its reader comes
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = hold.Close() }()
	if _, err := hold.WriteString("go\ngo\n"); err != nil {
		t.Fatal(err)
	}
	var failed *FailedError
	if err := s.wait(); !errors.As(err, &failed) {
		t.Errorf("the run ended with %v", err)
	}
	expectGone(t, pids)
}

// TestDescendantsInALibrary ends them also in a process that must not adopt them.
func TestDescendantsInALibrary(t *testing.T) {
	for _, ending := range []string{"exit 0", "exit 1"} {
		s := newHarness(t, 1, "setsid sh -c 'setsid sleep 100 & echo $$ $! > $SAY; exec sleep 100' & read go < $GO; "+ending)
		s.spec.ShutdownTimeout = 0
		goFile := s.goFile()
		s.start()
		pids := s.hearPids(1)
		if err := os.WriteFile(goFile, []byte("go\n"), 0); err != nil {
			t.Fatal(err)
		}
		_ = s.wait()
		for _, pid := range pids {
			// The process that adopted them reaps them at some time.
			if state, ok := processState(pid); ok && state != 'Z' {
				t.Errorf("after %q process %d is still there, in state %c", ending, pid, state)
			}
		}
	}
}

// TestDescendantsAfterSuccess gives what workers left behind the grace, and ends
// it.
func TestDescendantsAfterSuccess(t *testing.T) {
	s := newHarness(t, 1, "sleep 100 & a=$!; setsid sleep 100 & echo $$ $a $! > $SAY; exit 0")
	s.spec.Subreaper = true
	s.start()
	pids := s.hearPids(1)
	if err := s.wait(); err != nil {
		t.Error(err)
	}
	expectGone(t, pids)
}

// startShell starts a script that is talked to over its pipes.
func startShell(t *testing.T, script string) (*exec.Cmd, io.Writer, io.Reader) {
	t.Helper()
	c := exec.Command("sh", "-c", script)
	input := testkit.Must(c.StdinPipe())(t)
	output := testkit.Must(c.StdoutPipe())(t)
	testkit.Check(t, c.Start())
	return c, input, output
}

// TestBystanders: what this process had started before, and what becomes of that, is
// none of the workers' (a start script that runs something in the background and then
// executes the launcher in its place).
func TestBystanders(t *testing.T) {
	child, input, output := startShell(t, "read go; sleep 100 & echo $!; exec sleep 100")
	daemon, orphanInput, orphanOutput := startShell(t, "read go; sleep 100 & echo $!") // its child is an orphan
	defer func() { _ = child.Wait() }()
	defer func() { _ = child.Process.Kill() }()

	s := newHarness(t, 1, "echo up > $SAY; read go < $GO; setsid sleep 100 & echo $! > $SAY; exit 1")
	s.spec.Subreaper = true
	s.spec.ShutdownTimeout = 0
	goFile := s.goFile()
	s.start()
	s.hear()
	var bystanders []int
	for input, output := range map[io.Writer]io.Reader{input: output, orphanInput: orphanOutput} {
		var pid int
		_, _ = fmt.Fprintln(input, "go")
		if _, err := fmt.Fscan(output, &pid); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = unix.Kill(pid, unix.SIGKILL)
			_, _ = unix.Wait4(pid, nil, 0, nil) // if it is an orphan
		}()
		bystanders = append(bystanders, pid)
	}
	if err := daemon.Wait(); err != nil { // its child is this process's now
		t.Fatal(err)
	}
	bystanders = append(bystanders, child.Process.Pid)
	if err := os.WriteFile(goFile, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	left := s.hearPids(1)
	var failed *FailedError
	if err := s.wait(); !errors.As(err, &failed) {
		t.Errorf("the run ended with %v", err)
	}
	expectGone(t, left)
	for _, pid := range bystanders {
		if state, ok := processState(pid); !ok || state == 'Z' {
			t.Errorf("process %d was ended with the workers", pid)
		}
	}
}

// TestKeepDaemons leaves them alone.
func TestKeepDaemons(t *testing.T) {
	s := newHarness(t, 1, "setsid sleep 100 & echo $! > $SAY; exit 0")
	s.spec.Subreaper, s.spec.KeepDaemons = true, true
	s.start()
	pid := s.hearPids(1)[0]
	if err := s.wait(); err != nil {
		t.Error(err)
	}
	if state, ok := processState(pid); !ok || state == 'Z' {
		t.Error("the daemon is gone")
	}
	_ = unix.Kill(pid, unix.SIGKILL)
}

// TestRestartsLeakNothing restarts often and then looks for zombies, descriptors
// and goroutines (the last in TestMain).
func TestRestartsLeakNothing(t *testing.T) {
	s := newHarness(t, 2, "echo x; exit $RANK")
	s.spec.Logs.Tee = streamsOf(t, "3")
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	s.spec.Stdout, s.spec.Stderr = null, null
	s.spec.MaxRestarts = 60
	before := testkit.Descriptors(t)
	s.failed(s.run())
	if after := testkit.Descriptors(t); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
	if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); err != unix.ECHILD {
		t.Errorf("there are children: pid %d, %v", pid, err)
	}
}

// TestWorkersGetNoPrivateDescriptor: where a standard stream of the process was closed,
// its number soon stands for something that is none of the workers' business.
func TestWorkersGetNoPrivateDescriptor(t *testing.T) {
	stdin, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	private, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = private.Close() }()
	for name, replace := range map[string]func() error{
		"taken":  func() error { return unix.Dup3(int(private.Fd()), 0, unix.O_CLOEXEC) },
		"closed": func() error { return unix.Close(0) },
	} {
		s := newHarness(t, 1, "readlink /proc/$$/fd/0 > $SAY")
		if err := replace(); err != nil {
			t.Fatal(err)
		}
		err := s.run()
		if err := unix.Dup3(stdin, 0, 0); err != nil {
			t.Fatal(err)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := s.hear(); got != "/dev/null" {
			t.Errorf("%s: the worker's stdin is %s", name, got)
		}
	}
}

// TestCgroup ends detached descendants also in a process that is no subreaper.
func TestCgroup(t *testing.T) {
	g := process.NewCgroup()
	if g == nil {
		t.Skip("no control group can be made here")
	}
	path := g.Folder()
	g.Close()
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the group is still there: %v", err)
	}
	s := newHarness(t, 1, leavesDescendants+"; exit 1")
	s.spec.ShutdownTimeout = 0
	goFile := s.goFile()
	s.start()
	pids := s.hearPids(2)
	if len(pids) != 4 {
		t.Fatalf("pids %v", pids)
	}
	group := s.agent.cgroup.Folder()
	has := func(pid int) bool {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		return strings.Contains(string(text), "/"+filepath.Base(group)+"\n")
	}
	if !has(pids[0]) || !has(pids[3]) || has(os.Getpid()) {
		t.Errorf("the group %s does not have all of %v", group, pids)
	}
	if err := os.WriteFile(goFile, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	var failed *FailedError
	if err := s.wait(); !errors.As(err, &failed) {
		t.Errorf("the run ended with %v", err)
	}
	for _, pid := range pids { // the process that adopted them may not have reaped them yet
		if state, ok := processState(pid); ok && state != 'Z' {
			t.Errorf("process %d is still there, in state %c", pid, state)
		}
	}
	if _, err := os.Stat(group); !os.IsNotExist(err) {
		t.Errorf("the group is still there: %v", err)
	}
}

// TestWorkersAreBound starts each worker with its own affinity, and leaves that of
// the agent alone.
func TestWorkersAreBound(t *testing.T) {
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	var usable []int
	for cpu := range 1024 {
		if before.IsSet(cpu) {
			usable = append(usable, cpu)
		}
	}
	first, last := usable[0], usable[len(usable)-1]
	s := newHarness(t, 2, "echo $(grep Cpus_allowed_list /proc/self/status)")
	s.spec.Logs.Redirects = streamsOf(t, "1")
	s.spec.CPUs = [][]int{{last}, {first}}
	if err := s.run(); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf(`attempt_0/0/stdout.log="Cpus_allowed_list: %d\n" attempt_0/1/stdout.log="Cpus_allowed_list: %d\n"`, last, first)
	if got := s.logFiles(); got != want {
		t.Errorf("log files %s", got)
	}
	s = newHarness(t, 1, "exit 0")
	s.spec.CPUs = [][]int{{1 << 15}} // none that there is
	if err := s.run(); err == nil || !strings.Contains(err.Error(), "bind to CPUs") {
		t.Errorf("the run ended with %v", err)
	}
}
