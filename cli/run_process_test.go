package cli

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"rallypoint/internal/testkit"
)

// harness is a folder in which commands run whose workers are shell scripts that
// may write lines to the pipe $SAY.
type harness struct {
	t    *testing.T
	dir  string
	pipe *os.File
	said *bufio.Reader
	env  []string // of the commands, beside what each has
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	h := &harness{t: t, dir: t.TempDir()}
	if err := syscall.Mkfifo(h.dir+"/say", 0o600); err != nil {
		t.Fatal(err)
	}
	pipe, err := os.OpenFile(h.dir+"/say", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pipe.Close() })
	h.pipe, h.said = pipe, bufio.NewReader(pipe)
	return h
}

func (h *harness) readLine() string {
	h.t.Helper()
	testkit.Check(h.t, h.pipe.SetReadDeadline(time.Now().Add(4*testkit.Patience)))
	line, err := h.said.ReadString('\n')
	if err != nil {
		h.t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// nodeProcess is one running `rallypoint run`.
type nodeProcess struct {
	*exec.Cmd
	stdout, stderr strings.Builder
}

// run starts `rallypoint run` for a script.
func (h *harness) run(script string, options ...string) *nodeProcess {
	h.t.Helper()
	p := h.command(script, options...)
	if err := p.Start(); err != nil {
		h.t.Fatal(err)
	}
	return p
}

// command is what run starts.
func (h *harness) command(script string, options ...string) *nodeProcess {
	args := append([]string{"run"}, options...)
	p := &nodeProcess{Cmd: exec.Command(os.Args[0], append(args, "--no-python", "--no-macros", "sh", "-c", script)...)}
	p.Dir = h.dir
	p.Env = []string{testkit.EndAtOnce, asCommand + "=1", "PATH=" + os.Getenv("PATH"), "SAY=" + h.dir + "/say", "TMPDIR=" + h.dir, "OMP_NUM_THREADS=1"}
	p.Env = append(p.Env, h.env...)
	p.Stdout, p.Stderr = &p.stdout, &p.stderr
	return p
}

// end waits for the command and returns its exit code, or minus its signal.
func (n *nodeProcess) end() int {
	_ = n.Wait()
	if status, ok := n.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return -int(status.Signal())
	}
	return n.ProcessState.ExitCode()
}

func alive(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !strings.Contains(string(text), ") Z ")
}

// TestAgentKilled leaves nothing of the workers, whatever session it is in.
func TestAgentKilled(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} { // SIGTERM is not handled here
		h := newHarness(t)
		p := h.run(`trap '' TERM; sleep 100 & a=$!
			setsid sh -c 'setsid sleep 100 & echo $$ $! > $SAY; exec sleep 100' &
			echo $$ $a > $SAY; while :; do sleep 100; done`, "--nproc-per-node=2", "-r3", "--signals-to-handle=SIGINT")
		var pids []int
		for range 4 {
			for _, field := range strings.Fields(h.readLine()) {
				pid, _ := strconv.Atoi(field)
				pids = append(pids, pid)
			}
		}
		if len(pids) != 8 {
			t.Fatalf("pids %v", pids)
		}
		if err := p.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if got := p.end(); got != -int(sig) {
			t.Errorf("the agent ended with %d", got)
		}
		defer func() {
			for _, pid := range pids {
				if alive(pid) {
					command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
					stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
					env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
					t.Logf("signal %v, of %v: process %d is alive: %q, %s, %q", sig, pids, pid, command, stat, env)
				}
			}
		}()
		testkit.Eventually(t, "the workers are gone", func() bool { return !slices.ContainsFunc(pids, alive) })
	}
}

// TestSignalsOfCommand ends with 1, or 128+N if asked to, and one line.
func TestSignalsOfCommand(t *testing.T) {
	for code, options := range map[int][]string{1: nil, 128 + int(syscall.SIGTERM): {"--signal-exit-code"}} {
		h := newHarness(t)
		p := h.run("echo up > $SAY; exec sleep 100", options...)
		h.readLine()
		if err := p.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if got := p.end(); got != code {
			t.Errorf("exit code %d, expected %d", got, code)
		}
		want := fmt.Sprintf("rallypoint run: Process %d got signal: 15\n", p.Process.Pid)
		if !strings.HasSuffix(p.stderr.String(), want) {
			t.Errorf("stderr %q", p.stderr.String())
		}
		if left, _ := filepath.Glob(h.dir + "/torchelastic_*"); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

// TestSignalTwice: timeout(1), an init and schedulers signal the command and its group;
// workers have their grace all the same.
func TestSignalTwice(t *testing.T) {
	h := newHarness(t)
	p := h.run("trap 'sleep 0.2; : > saved; exit 0' TERM; echo up > $SAY; while :; do sleep 0.1; done", "--signal-exit-code")
	h.readLine()
	for range 2 {
		if err := p.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	if got := p.end(); got != 128+int(syscall.SIGTERM) || !strings.Contains(p.stderr.String(), "another signal in 5s or later kills them at once") {
		t.Errorf("exit code %d, stderr %q", got, p.stderr.String())
	}
	if _, err := os.Stat(h.dir + "/saved"); err != nil {
		t.Error(err)
	}
}

// TestNohup continues after a SIGHUP that its parent ignores. Its workers ignore it, too, and no other signal
// that a shell's background has ignored.
func TestNohup(t *testing.T) {
	h := newHarness(t)
	p := &nodeProcess{Cmd: exec.Command("sh", "-c", "trap '' HUP INT QUIT; exec \"$0\" \"$@\"", os.Args[0], "run", "--no-python", "sh", "-c", "grep SigIgn /proc/self/status > $SAY; exec sleep 100")}
	p.Env = []string{testkit.EndAtOnce, asCommand + "=1", "PATH=" + os.Getenv("PATH"), "SAY=" + h.dir + "/say", "TMPDIR=" + h.dir}
	p.Stderr = &p.stderr
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	line := h.readLine()
	var ignored uint64
	_, err := fmt.Sscanf(line, "SigIgn:\t%x", &ignored)
	if shell := uint64(1)<<(syscall.SIGHUP-1) | 1<<(syscall.SIGINT-1) | 1<<(syscall.SIGQUIT-1); err != nil || ignored&shell != 1<<(syscall.SIGHUP-1) {
		t.Errorf("a worker begins with %q: %v", line, err)
	}
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGTERM} {
		if err := p.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	if got := p.end(); got != 1 || !strings.HasSuffix(p.stderr.String(), "got signal: 15\n") {
		t.Errorf("exit code %d, stderr %q", got, p.stderr.String())
	}
}

// TestReaderIsGone: run continues after the reader of its stderr is gone.
func TestReaderIsGone(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	read.Close()
	p := exec.Command(os.Args[0], "run", "--nproc-per-node=2", "--no-python", "sh", "-c", "echo x >&2; exit 0")
	p.Env = []string{testkit.EndAtOnce, asCommand + "=1", "PATH=" + os.Getenv("PATH"), "TMPDIR=" + t.TempDir()}
	p.Stderr = write
	err = p.Run()
	write.Close()
	if err != nil {
		t.Error(err)
	}
}

// twoNodes runs a script on two nodes and returns how they ended.
func twoNodes(t *testing.T, script string, options func(node int) []string) (codes [2]int, nodes [2]*nodeProcess) {
	t.Helper()
	h := newHarness(t)
	for i := range nodes {
		nodes[i] = h.run(script, options(i)...)
	}
	for i := range nodes {
		codes[i] = nodes[i].end()
	}
	return codes, nodes
}

// hostedNodes are the options of a job whose first node hosts the control plane.
func hostedNodes(t *testing.T, options ...string) func(node int) []string {
	t.Helper()
	endpoint := "127.0.0.1:" + strconv.Itoa(testkit.FreePort(t))
	return func(node int) []string {
		return append([]string{"--nnodes=2", "--nproc-per-node=2", "--rdzv-endpoint=" + endpoint, "--node-rank", strconv.Itoa(node)}, options...)
	}
}

const printRanks = "echo rank $RANK/$WORLD_SIZE group $GROUP_RANK/$GROUP_WORLD_SIZE restart $TORCHELASTIC_RESTART_COUNT"

func TestTwoNodes(t *testing.T) {
	codes, nodes := twoNodes(t, printRanks, hostedNodes(t))
	for i, p := range nodes {
		want := fmt.Sprintf("rank %d/4 group %d/2 restart 0\nrank %d/4 group %d/2 restart 0\n", 2*i, i, 2*i+1, i)
		if codes[i] != 0 || strings.Join(lines(p.stdout.String()), "\n")+"\n" != want {
			t.Errorf("node %d: exit code %d, stdout %q, stderr:\n%s", i, codes[i], p.stdout.String(), p.stderr.String())
		}
	}
}

// TestTwoNodesRestart restarts both nodes after the failure of one, with one
// count.
func TestTwoNodesRestart(t *testing.T) {
	codes, nodes := twoNodes(t, printRanks+`; [ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; [ $RANK = 3 ] && exit 1; exec sleep 100`,
		hostedNodes(t, "--max-restarts=1"))
	for i, p := range nodes {
		if codes[i] != 0 || strings.Count(p.stdout.String(), "restart 1\n") != 2 {
			t.Errorf("node %d: exit code %d, stdout %q, stderr:\n%s", i, codes[i], p.stdout.String(), p.stderr.String())
		}
	}
}

// TestTwoNodesFail names the culprit on both nodes, and both end at once.
func TestTwoNodesFail(t *testing.T) {
	// Rank 0 fails because of rank 3, as a collective that is broken off would.
	codes, nodes := twoNodes(t, `case $RANK in
		0) until [ -e failed ]; do sleep 0.01; done; sleep 0.1; exit 8;;
		3) echo "the reason" >&2; touch failed; exit 7;;
	esac
	exec sleep 100`, hostedNodes(t))
	for i, p := range nodes {
		_, root, _ := strings.Cut(p.stderr.String(), "Root Cause (first observed failure):")
		if codes[i] != 1 || !strings.Contains(root, "rank      : 3 (local_rank: 1)") || !strings.Contains(root, "exitcode  : 7 ") ||
			!strings.Contains(root, "\n  stderr    :\n    the reason\n") {
			t.Errorf("node %d: exit code %d, stderr:\n%s", i, codes[i], p.stderr.String())
		}
	}
}

func TestTwoStaticNodes(t *testing.T) {
	port := strconv.Itoa(testkit.FreePort(t))
	codes, nodes := twoNodes(t, printRanks+" at $MASTER_ADDR:$MASTER_PORT", func(node int) []string {
		return []string{"--nnodes=2", "--rdzv-backend=static", "--master-addr=127.0.0.1", "--master-port=" + port, "--node-rank", strconv.Itoa(node)}
	})
	for i, p := range nodes {
		want := fmt.Sprintf("rank %d/2 group %d/2 restart 0 at 127.0.0.1:%s\n", i, i, port)
		if codes[i] != 0 || p.stdout.String() != want {
			t.Errorf("node %d: exit code %d, stdout %q, stderr:\n%s", i, codes[i], p.stdout.String(), p.stderr.String())
		}
	}
}

// TestMasterPort: the line of a static torchrun without a backend gives workers the port that it names
// while node 0 hosts there, also after a restart; the store that node 1 offers has another port.
func TestMasterPort(t *testing.T) {
	h, port := newHarness(t), strconv.Itoa(testkit.FreePort(t))
	node := func(rank int) *nodeProcess {
		return h.run(printRanks+` at $MASTER_PORT >$SAY
			touch said.$RANK; until [ -e said.0 ] && [ -e said.1 ]; do sleep 0.01; done; exit $((1-TORCHELASTIC_RESTART_COUNT))`,
			"--nnodes=2", "--max-restarts=1", "--master_addr=127.0.0.1", "--master_port="+port, "--node_rank", strconv.Itoa(rank))
	}
	first := node(0)
	testkit.Eventually(t, "node 0 hosts", func() bool {
		conn, err := net.Dial("tcp", "127.0.0.1:"+port)
		return err == nil && conn.Close() == nil
	})
	nodes := []*nodeProcess{first, node(1)}
	got := map[string]bool{}
	for range 4 {
		got[h.readLine()] = true
	}
	for i, p := range nodes {
		if code := p.end(); code != 0 {
			t.Errorf("node %d: exit code %d, stderr:\n%s", i, code, p.stderr.String())
		}
		for restart := range 2 {
			if want := fmt.Sprintf("rank %d/2 group %d/2 restart %d at %s", i, i, restart, port); !got[want] {
				t.Errorf("no worker says %q: %v", want, got)
			}
		}
	}
}

// TestOrderOfStreams: where a worker's stdout and stderr are one file, a terminal or a
// pipe, its output arrives in order, as under torchrun.
func TestOrderOfStreams(t *testing.T) {
	const lines = 500
	var want strings.Builder
	for i := range lines {
		fmt.Fprintf(&want, "out %d\nerr %d\n", i, i)
	}
	script := fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo out $i; echo err $i >&2; i=$((i+1)); done; exit 3", lines)
	for _, kind := range []string{"file", "pipe"} {
		t.Run(kind, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			p := exec.Command(os.Args[0], "run", "--no-python", "sh", "-c", script)
			p.Env = []string{testkit.EndAtOnce, asCommand + "=1", "PATH=" + os.Getenv("PATH"), "TMPDIR=" + t.TempDir(), "LOGLEVEL=ERROR"}
			var got strings.Builder
			if kind == "pipe" {
				p.Stdout, p.Stderr = &got, &got // os/exec makes one pipe of them
				_ = p.Run()
			} else {
				log, err := os.Create(path)
				if err != nil {
					t.Fatal(err)
				}
				p.Stdout, p.Stderr = log, log
				_ = p.Run()
				log.Close()
				text, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				got.Write(text)
			}
			if code := p.ProcessState.ExitCode(); code != 1 {
				t.Errorf("exit code %d", code)
			}
			if !strings.HasPrefix(got.String(), want.String()) {
				t.Errorf("the order is another: %.200q", got.String())
			}
			report := strings.TrimPrefix(got.String(), want.String())
			shown := strings.Contains(report, "  output    : (the last 50 lines) (of all workers of its node: stdout and stderr go to one file)\n    out 475\n    err 475\n") &&
				strings.Contains(report, "\n    err 499\n  next ")
			if shown != (kind == "file") {
				t.Errorf("report: %s", report)
			}
		})
	}
}

// TestProcessName is torchrun's.
func TestProcessName(t *testing.T) {
	h := newHarness(t)
	p := h.run("cat /proc/$PPID/comm > $SAY")
	if name := h.readLine(); name != "pt_elastic" {
		t.Errorf("the process is %q", name)
	}
	p.end()
}
