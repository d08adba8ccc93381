package agent

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// leavesDescendants is a worker with a child in its group and one in a session of
// its own, which has a child in yet another; all ignore SIGTERM.
const leavesDescendants = `trap '' TERM
	sleep 100 & a=$!
	setsid sh -c 'setsid sleep 100 & echo $$ $! > $SAY; exec sleep 100' &
	echo $$ $a > $SAY
	read go < $GO`

// TestDescendants ends all descendants of workers, whoever failed, before the run
// ends (W3).
func TestDescendants(t *testing.T) {
	s := newStage(t, 2, leavesDescendants+"; exit $RANK")
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

// TestLostExitCode is told from the end by a signal.
func TestLostExitCode(t *testing.T) {
	for _, watched := range []bool{true, false} {
		p := &process{pid: os.Getppid(), exited: make(chan struct{})} // no child of ours
		if watched {
			p.pidfd = openPidfd(p.pid)
		}
		p.watch(func(*process) {})
		p.abandon()
		if p.code != -1 || !p.lost || !p.hasExited() {
			t.Errorf("code %d, lost %v", p.code, p.lost)
		}
	}
}

// TestDescendantsInALibrary ends them also in a process that must not adopt them.
func TestDescendantsInALibrary(t *testing.T) {
	for _, ending := range []string{"exit 0", "exit 1"} {
		s := newStage(t, 1, "setsid sh -c 'setsid sleep 100 & echo $$ $! > $SAY; exec sleep 100' & read go < $GO; "+ending)
		s.spec.ShutdownTimeout = 0
		goFile := s.goFile()
		s.start()
		pids := s.hearPids(1)
		if err := os.WriteFile(goFile, []byte("go\n"), 0); err != nil {
			t.Fatal(err)
		}
		_ = s.wait()
		for _, pid := range pids {
			// Whoever adopted them reaps them at some time.
			if stat, ok := readStat(pid); ok && stat.state != 'Z' {
				t.Errorf("after %q process %d is still there, in state %c", ending, pid, stat.state)
			}
		}
	}
}

// TestDescendantsAfterSuccess gives what workers left behind the grace, and ends
// it.
func TestDescendantsAfterSuccess(t *testing.T) {
	s := newStage(t, 1, "sleep 100 & a=$!; setsid sleep 100 & echo $$ $a $! > $SAY; exit 0")
	s.spec.Subreaper = true
	s.start()
	pids := s.hearPids(1)
	if err := s.wait(); err != nil {
		t.Error(err)
	}
	expectGone(t, pids)
}

// TestBystanders: what this process had started before, and what becomes of that, is
// none of the workers' (a start script that runs something in the background and then
// executes the launcher in its place).
func TestBystanders(t *testing.T) {
	child := exec.Command("sh", "-c", "read go; sleep 100 & echo $!; exec sleep 100")
	input, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	daemon := exec.Command("sh", "-c", "read go; sleep 100 & echo $!") // its child is an orphan
	daemon.Stdin, daemon.Stdout = nil, nil
	orphanInput, err := daemon.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	orphanOutput, err := daemon.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*exec.Cmd{child, daemon} {
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
	}
	defer func() { _ = child.Wait() }()
	defer func() { _ = child.Process.Kill() }()

	s := newStage(t, 1, "echo up > $SAY; read go < $GO; setsid sleep 100 & echo $! > $SAY; exit 1")
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
		if stat, ok := readStat(pid); !ok || stat.state == 'Z' {
			t.Errorf("process %d was ended with the workers", pid)
		}
	}
}

// TestKeepDaemons leaves them alone.
func TestKeepDaemons(t *testing.T) {
	s := newStage(t, 1, "setsid sleep 100 & echo $! > $SAY; exit 0")
	s.spec.Subreaper, s.spec.KeepDaemons = true, true
	s.start()
	pid := s.hearPids(1)[0]
	if err := s.wait(); err != nil {
		t.Error(err)
	}
	if stat, ok := readStat(pid); !ok || stat.state == 'Z' {
		t.Error("the daemon is gone")
	}
	_ = unix.Kill(pid, unix.SIGKILL)
}

// TestPartialStart stops the workers that were started before one that cannot be
// (W5).
func TestPartialStart(t *testing.T) {
	f := newForker()
	defer f.close()
	sweep := newSweeper(f, false, false, discard())
	defer sweep.close()
	s := newStage(t, 1, "")
	env := append(s.spec.Environ, "X=1")
	files := []uintptr{0, 1, 2}
	_, err := startCrew(f, sweep, []launch{
		{0, []string{"sleep", "100"}, env, files, nil},
		{1, []string{"sleep", "100"}, env, files, nil},
		{2, []string{"/does/not/exist"}, env, files, nil},
	}, discard())
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	if len(f.known) != 0 || len(ownChildren()) != 0 {
		t.Errorf("left behind: %v, children %v", f.known, ownChildren())
	}
}

// TestRestartsLeakNothing restarts often and then looks for zombies, descriptors
// and goroutines (the last in TestMain).
func TestRestartsLeakNothing(t *testing.T) {
	s := newStage(t, 2, "echo x; exit $RANK")
	s.spec.Logs.Tee = AllRanks(StdAll)
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	s.spec.Stdout, s.spec.Stderr = null, null
	s.spec.MaxRestarts = 200
	before := descriptors(t)
	s.failed(s.run())
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
	if children := ownChildren(); len(children) > 0 {
		t.Errorf("children %v", children)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestWaitWithoutPidfd waits for a process as on a kernel without pidfds.
func TestWaitWithoutPidfd(t *testing.T) {
	f := newForker()
	defer f.close()
	pid, err := f.start([]string{"sh", "-c", "kill -SEGV $$"}, []string{"PATH=" + os.Getenv("PATH")}, []uintptr{0, 1, 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{pid: pid, exited: make(chan struct{})}
	ended := newExits()
	p.watch(ended.add)
	if got := ended.take(); len(got) != 1 || got[0].code != -int(unix.SIGSEGV) || !p.hasExited() {
		t.Errorf("ended %v, code %d", got, p.code)
	}
	if !f.reap(pid) {
		t.Error("it still runs")
	}
}

func TestLookUp(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"tool": 0o755, "text": 0o644} {
		if err := os.WriteFile(dir+"/"+name, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	env := []string{"PATH=/nowhere:" + dir}
	if path, err := lookUp("tool", env); err != nil || path != dir+"/tool" {
		t.Errorf("tool: %q, %v", path, err)
	}
	if path, err := lookUp("./tool", env); err != nil || path != "./tool" {
		t.Errorf("./tool: %q, %v", path, err)
	}
	if _, err := lookUp("text", env); !errors.Is(err, unix.EACCES) {
		t.Errorf("text: %v", err)
	}
	for _, name := range []string{"other", ""} {
		if _, err := lookUp(name, env); !errors.Is(err, unix.ENOENT) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestParseStat(t *testing.T) {
	stat, ok := parseStat([]byte("12 (a) b (c)) S 3 4 5 0"))
	if want := (procStat{'S', 3, 4, 5}); !ok || stat != want {
		t.Errorf("%+v, %v", stat, ok)
	}
	for _, text := range []string{"", "12 (a", "12 (a) S", "12 (a) S x y"} {
		if _, ok := parseStat([]byte(text)); ok {
			t.Errorf("%q is taken", text)
		}
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
		s := newStage(t, 1, "readlink /proc/$$/fd/0 > $SAY")
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
