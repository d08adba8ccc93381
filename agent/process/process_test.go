package process

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/internal/testkit"
)

// TestLostExitCode differs from an end by a signal.
func TestLostExitCode(t *testing.T) {
	for _, watched := range []bool{true, false} {
		p := &Process{Pid: os.Getppid(), exited: make(chan struct{})} // no child of ours
		if watched {
			p.pidfd = openPidfd(p.Pid)
		}
		p.watch(func(*Process) {})
		p.unwatch()
		if p.Code != -1 || !p.Lost || !p.HasExited() {
			t.Errorf("code %d, lost %v", p.Code, p.Lost)
		}
	}
}

// TestPartialStart stops the workers that were started before one that cannot be.
func TestPartialStart(t *testing.T) {
	f := NewForker(nil)
	defer f.Close()
	reaper := NewReaper(f, false, false, "", slog.New(slog.DiscardHandler))
	defer reaper.Close()
	env := []string{"PATH=" + os.Getenv("PATH"), "X=1"}
	files := []uintptr{0, 1, 2}
	_, err := StartWorkers(f, reaper, nil, []Launch{
		{0, []string{"sleep", "100"}, env, files, nil, ""},
		{1, []string{"sleep", "100"}, env, files, nil, ""},
		{2, []string{"/does/not/exist"}, env, files, nil, ""},
	}, slog.New(slog.DiscardHandler))
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	if len(f.known) != 0 || len(ownChildren()) != 0 {
		t.Errorf("left behind: %v, children %v", f.known, ownChildren())
	}
}

// TestWaitWithoutPidfd waits for a process as on a kernel without pidfds.
func TestWaitWithoutPidfd(t *testing.T) {
	f := NewForker(nil)
	defer f.Close()
	pid, err := f.start([]string{"sh", "-c", "kill -SEGV $$"}, []string{"PATH=" + os.Getenv("PATH")}, []uintptr{0, 1, 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{Pid: pid, exited: make(chan struct{})}
	ended := newExits()
	p.watch(ended.add)
	if got := ended.take(); len(got) != 1 || got[0].Code != -int(unix.SIGSEGV) || !p.HasExited() {
		t.Errorf("ended %v, code %d", got, p.Code)
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
	if path, err := LookUp("tool", env); err != nil || path != dir+"/tool" {
		t.Errorf("tool: %q, %v", path, err)
	}
	if path, err := LookUp("./tool", env); err != nil || path != "./tool" {
		t.Errorf("./tool: %q, %v", path, err)
	}
	if _, err := LookUp("text", env); !errors.Is(err, unix.EACCES) {
		t.Errorf("text: %v", err)
	}
	for _, name := range []string{"other", ""} {
		if _, err := LookUp(name, env); !errors.Is(err, unix.ENOENT) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestParseStat(t *testing.T) {
	stat, ok := parseStat(statFields("12 (a) b (c)) S 3 4 5 0"))
	if want := (procStat{'S', 3, 4, 5}); !ok || stat != want {
		t.Errorf("%+v, %v", stat, ok)
	}
	for _, text := range []string{"", "12 (a", "12 (a) S", "12 (a) S x y"} {
		if _, ok := parseStat(statFields(text)); ok {
			t.Errorf("%q is taken", text)
		}
	}
}

// TestReplace: a worker takes the place of one that has ended, whose helpers are gone then; the
// others run on.
func TestReplace(t *testing.T) {
	f := NewForker(nil)
	defer f.Close()
	log := slog.New(slog.DiscardHandler)
	reaper := NewReaper(f, false, false, "", log)
	defer reaper.Close()
	up := filepath.Join(t.TempDir(), "up")
	if err := unix.Mkfifo(up, 0o600); err != nil {
		t.Fatal(err)
	}
	pipe := testkit.Must(os.OpenFile(up, os.O_RDWR, 0))(t)
	defer pipe.Close()
	lines := bufio.NewReader(pipe)
	env := []string{"PATH=" + os.Getenv("PATH"), "UP=" + up}
	launch := func(local int, script string) Launch {
		return Launch{local, []string{"sh", "-c", script}, env, []uintptr{0, 1, 2}, nil, ""}
	}
	pid := func() (pid int) {
		line := testkit.Must(lines.ReadString('\n'))(t)
		return testkit.Must(strconv.Atoi(strings.TrimSpace(line)))(t)
	}
	w := testkit.Must(StartWorkers(f, reaper, nil, []Launch{launch(0, "exec sleep 1000"), launch(1, "sleep 1000 & echo $! > $UP; exit 3")}, log))(t)
	helper := pid()
	<-w.Ended()
	if ended := w.TakeEnded(); len(ended) != 1 || ended[0].Local != 1 || ended[0].Code != 3 {
		t.Fatalf("ended %+v", ended)
	}
	other, before := w.Procs[0], w.Procs[1]
	if err := w.Replace(nil, []Launch{launch(1, "exec sleep 1000")}); err != nil {
		t.Fatal(err)
	}
	if w.Procs[0] != other || other.HasExited() || w.Procs[1] == before || w.Procs[1].Local != 1 || w.Procs[1].HasExited() {
		t.Errorf("the workers are %+v and %+v", w.Procs[0], w.Procs[1])
	}
	testkit.Eventually(t, "the helper is gone", func() bool {
		stat, ok := readStat(helper)
		return !ok || stat.state == 'Z'
	})
	w.Procs[1].SignalGroup(unix.SIGKILL)
	<-w.Procs[1].exited
	if err := w.Replace(nil, []Launch{{1, []string{"/no/such/program"}, env, []uintptr{0, 1, 2}, nil, ""}}); err == nil || len(w.Procs) != 1 {
		t.Errorf("started what is not there: %v, %d workers", err, len(w.Procs))
	}
	if ended := w.Stop(StopOptions{Signal: unix.SIGKILL}); len(ended) == 0 {
		t.Error("nothing was stopped")
	}
}

// TestLeftBehind: a worker that SIGKILL does not end is left behind, and so the stop ends, and so is
// the child of a shell. It is in a frozen group of version 1, if this machine has these.
func TestLeftBehind(t *testing.T) {
	t.Run("worker", func(t *testing.T) { testLeftBehind(t, "echo $$ > $UP; exec sleep 100") })
	t.Run("child of a shell", func(t *testing.T) { testLeftBehind(t, "sleep 100 & echo $! > $UP; wait") })
}

func testLeftBehind(t *testing.T, script string) {
	cgroup, err := os.MkdirTemp("/sys/fs/cgroup/freezer", "rallypoint-test-")
	if err != nil {
		t.Skip("no group of version 1 can be frozen here: ", err)
	}
	defer func(d time.Duration) { leastDeathWait = d }(leastDeathWait)
	leastDeathWait = 50 * time.Millisecond
	f := NewForker(nil)
	defer f.Close()
	path := t.TempDir() + "/up"
	testkit.Check(t, unix.Mkfifo(path, 0o600))
	up := testkit.Must(os.OpenFile(path, os.O_RDWR, 0))(t)
	defer up.Close()
	marker := "UP=" + path
	reaper := NewReaper(f, false, false, marker, slog.New(slog.DiscardHandler))
	defer reaper.Close()
	group, err := StartWorkers(f, reaper, nil, []Launch{{Argv: []string{"sh", "-c", script}, Env: []string{"PATH=" + os.Getenv("PATH"), marker}, Files: []uintptr{0, 1, 2}}}, slog.New(slog.DiscardHandler))
	testkit.Check(t, err)
	p, pid := group.Procs[0], 0
	testkit.Must(fmt.Fscan(up, &pid))(t)
	testkit.Check(t, os.WriteFile(cgroup+"/cgroup.procs", []byte(strconv.Itoa(pid)), 0))
	testkit.Check(t, os.WriteFile(cgroup+"/freezer.state", []byte("FROZEN"), 0))
	defer func() {
		testkit.Check(t, os.WriteFile(cgroup+"/freezer.state", []byte("THAWED"), 0))
		for pid == p.Pid && !f.reap(pid) { // before a later test finds it as a child
			runtime.Gosched()
		}
		for os.Remove(cgroup) != nil {
			runtime.Gosched()
		}
	}()
	group.Stop(StopOptions{Signal: unix.SIGTERM})
	if !group.AnyStuck() || p.Fault == "" || p.HasExited() != (pid != p.Pid) || len(group.Abandon()) > 0 == p.HasExited() {
		t.Errorf("it is not left behind: %+v", p)
	}
}

// manyStuck is how many processes that SIGKILL does not end are more than the patience of a test, if each is
// waited for alone.
const manyStuck = 40

// whileStuck has start start a shell that starts many processes in a group of version 1, and calls end while
// that is frozen; it fails if end waits for each of them. reap comes last. It skips where there are no such groups.
func whileStuck(t *testing.T, start func(script string, env []string), end, reap func()) {
	cgroup, err := os.MkdirTemp("/sys/fs/cgroup/freezer", "rallypoint-test-")
	if err != nil {
		t.Skip("no group of version 1 can be frozen here: ", err)
	}
	defer func(d time.Duration) { leastDeathWait = d }(leastDeathWait)
	leastDeathWait = time.Second
	path := t.TempDir() + "/up"
	testkit.Check(t, unix.Mkfifo(path, 0o600))
	up := testkit.Must(os.OpenFile(path, os.O_RDWR, 0))(t)
	defer up.Close()
	start(fmt.Sprintf("echo $$ > %s/cgroup.procs; i=0; while [ $i -lt %d ]; do sleep 100 & i=$((i+1)); done; echo up > $UP; wait", cgroup, manyStuck),
		[]string{"PATH=" + os.Getenv("PATH"), "UP=" + path})
	testkit.Must(up.Read(make([]byte, 3)))(t)
	testkit.Check(t, os.WriteFile(cgroup+"/freezer.state", []byte("FROZEN"), 0))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		end()
	}()
	select {
	case <-ended:
	case <-time.After(testkit.Patience):
		t.Error("they are waited for one after the other")
	}
	testkit.Check(t, os.WriteFile(cgroup+"/freezer.state", []byte("THAWED"), 0))
	<-ended
	reap()
	for os.Remove(cgroup) != nil {
		runtime.Gosched()
	}
}

// TestManyStuck: of processes that SIGKILL does not end all are waited for at once, and once.
func TestManyStuck(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	t.Run("of a group", func(t *testing.T) {
		f := NewForker(nil)
		defer f.Close()
		var reaper *Reaper
		var group *WorkerGroup
		whileStuck(t, func(script string, env []string) {
			reaper = NewReaper(f, false, false, env[1], log)
			var err error
			group, err = StartWorkers(f, reaper, nil, []Launch{{Argv: []string{"sh", "-c", script}, Env: env, Files: []uintptr{0, 1, 2}}}, log)
			testkit.Check(t, err)
		}, func() {
			group.Stop(StopOptions{Signal: unix.SIGTERM})
			if !group.AnyStuck() {
				t.Error("none is stuck")
			}
		}, func() {
			for !f.reap(group.Procs[0].Pid) {
				runtime.Gosched()
			}
			reaper.Close()
		})
	})
	t.Run("with a marker", func(t *testing.T) {
		var cmd *exec.Cmd
		whileStuck(t, func(script string, env []string) {
			cmd = exec.Command("sh", "-c", script)
			cmd.Env = env
			testkit.Check(t, cmd.Start())
		}, func() { EndMarked(cmd.Env[1]) }, func() { _ = cmd.Wait() })
	})
}

// TestStopBesideAside: the stop of workers neither ends nor awaits what runs alongside them, although that
// has their marker in its environment.
func TestStopBesideAside(t *testing.T) {
	f, log := NewForker(nil), slog.New(slog.DiscardHandler)
	defer f.Close()
	path := t.TempDir() + "/up"
	testkit.Check(t, unix.Mkfifo(path, 0o600))
	up := testkit.Must(os.OpenFile(path, os.O_RDWR, 0))(t)
	defer up.Close()
	marker, mark := "UP="+path, "ASIDE="+path
	reaper := NewReaper(f, false, false, marker, log)
	defer reaper.Close()
	launch := func(script string) []Launch {
		return []Launch{{Argv: []string{"sh", "-c", script}, Env: []string{"PATH=" + os.Getenv("PATH"), marker, mark}, Files: []uintptr{0, 1, 2}}}
	}
	aside := testkit.Must(StartAside(f, launch("sleep 100 & echo up > $UP; wait; sleep 100; :"), mark, log))(t)
	testkit.Must(up.Read(make([]byte, 3)))(t)
	workers := launch("exec sleep 100")
	workers[0].Env = workers[0].Env[:2]
	group := testkit.Must(StartWorkers(f, reaper, nil, workers, log))(t)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		group.Stop(StopOptions{Signal: unix.SIGTERM, Grace: time.Hour, quiet: true})
	}()
	select {
	case <-ended:
	case <-time.After(testkit.Patience):
		t.Error("the stop waits for what runs alongside")
	}
	if aside.Procs[0].HasExited() {
		t.Error("the stop has ended what runs alongside")
	}
	aside.EndAside(mark)
	<-ended
	if left := markedProcesses(marker); len(left) != 0 {
		t.Errorf("processes %v are left", left)
	}
}
