package prove

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"rallypoint/agent/process"
	"rallypoint/backend"
	"rallypoint/core/control"
	"rallypoint/internal/printable"
)

const (
	kill = syscall.SIGKILL
	stop = syscall.SIGSTOP
	term = syscall.SIGTERM
)

// envMark has a random text by which all that was started is found again, also what its parent has
// left behind. No process is signaled without it.
const envMark = "RALLYPOINT_PROVE"

type launcher struct {
	name       string
	hostIsTold bool                                       // node 0 hosts by its command; else the first one does that comes
	command    func(s *Scenario, node, port int) []string // of a node
}

type job struct {
	launcher *launcher
	scenario *Scenario
	env      []string
	folder   string // of the nodes' output
	work     string // where the script runs
	port     int
	network  *network // nil: all nodes are on this machine
	nodes    map[int]*node
	stepped  bool // its workers are known to have made a step
}

type node struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

func newJob(l *launcher, s *Scenario, n *network, env []string, folder string) (*job, error) {
	j := &job{launcher: l, scenario: s, network: n, env: env, folder: folder, work: filepath.Join(folder, "work"), nodes: map[int]*node{}}
	temporary := filepath.Join(folder, "tmp") // what a killed node leaves is removed with the folder
	if err := errors.Join(os.MkdirAll(j.work, 0o700), os.Mkdir(temporary, 0o700)); err != nil {
		return nil, err
	}
	j.env = append(j.env, "TMPDIR="+temporary)
	at, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	j.port = at.Addr().(*net.TCPAddr).Port
	return j, at.Close()
}

// start starts a node. The kernel ends it with the thread that calls this.
func (j *job) start(i int) error {
	out, err := os.OpenFile(j.log(i), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	argv := j.launcher.command(j.scenario, i, j.port)
	n := &node{cmd: exec.Command(argv[0], argv[1:]...), done: make(chan struct{})}
	n.cmd.Dir, n.cmd.Env, n.cmd.Stdout, n.cmd.Stderr = j.work, j.env, out, out
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL} // Ctrl-C is for prove alone
	starts := n.cmd.Start
	if j.network != nil {
		starts = func() error { return j.network.in(i, n.cmd.Start) }
	}
	if err := starts(); err != nil {
		return err
	}
	j.nodes[i] = n
	go func() {
		defer close(n.done)
		_ = n.cmd.Wait()
	}()
	return nil
}

func (j *job) log(i int) string { return filepath.Join(j.folder, fmt.Sprintf("node%d.log", i)) }

func (j *job) signal(i int, sig syscall.Signal) error { return j.nodes[i].cmd.Process.Signal(sig) }

func (j *job) signalWorkers(i int, sig syscall.Signal) error {
	workers := j.workers(i)
	if len(workers) == 0 {
		return fmt.Errorf("node %d has no worker", i)
	}
	for _, w := range workers {
		p, err := os.FindProcess(w.pid) // by a descriptor: a number that is given away again means nobody else
		if err != nil {
			return err
		}
		if now, ok := j.readWorker(w.pid); ok && now == w {
			err = p.Signal(sig)
		}
		if err := errors.Join(err, p.Release()); err != nil {
			return err
		}
	}
	return nil
}

// end kills the job and waits for its launchers. What they leave behind is EndMarked's.
func (j *job) end(mark string) {
	for _, n := range j.nodes {
		_ = n.cmd.Process.Kill()
	}
	process.EndMarked(envMark + "=" + mark)
	for _, n := range j.nodes {
		<-n.done
	}
	process.EndMarked(envMark + "=" + mark) // what a launcher has started meanwhile
}

func (j *job) look() seen {
	s := seen{workers: map[int][]worker{}, ended: map[int]int{}}
	for i, n := range j.nodes {
		select {
		case <-n.done:
			s.ended[i] = n.cmd.ProcessState.ExitCode()
		default:
			s.workers[i] = j.workers(i)
		}
	}
	return s
}

// workers returns the workers of a node in the order of their numbers.
func (j *job) workers(i int) (list []worker) {
	for _, pid := range process.Children(j.nodes[i].cmd.Process.Pid) {
		if w, ok := j.readWorker(pid); ok {
			list = append(list, w)
		}
	}
	return list
}

// readWorker reads what makes a process a worker of this job; false if it is none.
func (j *job) readWorker(pid int) (w worker, ok bool) {
	fields := process.StatFields(pid)
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil || len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return worker{}, false
	}
	env := strings.Split(string(environ), "\x00")
	get := process.Getenv(env)
	if get("RANK") == "" || get(envMark) != process.Getenv(j.env)(envMark) {
		return worker{}, false
	}
	w.pid = pid
	var err2 error
	w.start, err = strconv.ParseUint(fields[19], 10, 64)
	w.world, err2 = strconv.Atoi(get("WORLD_SIZE"))
	return w, err == nil && err2 == nil
}

// listens reports whether a process listens at the job's port. Nobody connects to it for that.
func (j *job) listens() bool {
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, _ := os.ReadFile(table)
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 3 && f[3] == "0A" && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", j.port)) {
				return true
			}
		}
	}
	return false
}

// steps asks the control plane whether workers have reported steps, or the optimizer's were counted.
func (j *job) steps(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, _, answer, err := backend.Get(ctx, fmt.Sprintf("127.0.0.1:%d", j.port), nil, "/status", "")
	var told control.Status
	return err == nil && json.Unmarshal(answer, &told) == nil && len(told.Runs) > 0 && told.Runs[0].Progress != nil
}

const every = 50 * time.Millisecond

// until looks at the job until decided has a verdict, by the time since began, or ctx ends.
func (j *job) until(ctx context.Context, began time.Time, decided func(now seen, after time.Duration) *verdict) (*verdict, error) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if v := decided(j.look(), time.Since(began)); v != nil {
			return v, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// tail is the end of a node's output, fit for a terminal.
func (j *job) tail(i int) []string {
	const most, lines = 4096, 8
	file, err := os.Open(j.log(i))
	if err != nil {
		return nil
	}
	defer file.Close()
	if size, err := file.Seek(0, io.SeekEnd); err == nil {
		_, _ = file.Seek(max(0, size-most), io.SeekStart)
	}
	text, _ := io.ReadAll(io.LimitReader(file, most))
	all := strings.Split(strings.TrimSpace(printable.Lines(string(text))), "\n")
	return all[max(0, len(all)-lines):]
}
