package cli

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/core/trace"
	"rallypoint/internal/testkit"
)

// envChaos is how long TestChaos hurts its job; `make test-long` gives it minutes.
const envChaos = "RALLYPOINT_CHAOS"

const chaosWorkers = 2

// chaosWorker says that it runs, first in its log and then in a file of its
// own, leaves two descendants, and waits for the end of the test.
const chaosWorker = `
	trap 'exit 0' TERM
	sleep 1000 &
	setsid sleep 1000 &
	echo "token $$ $RALLYPOINT_ROUND"
	while read line; do case $line in 0::*) group=$line;; esac; done < /proc/self/cgroup
	echo "$$ $PPID $RALLYPOINT_ROUND $GROUP_RANK $WORLD_SIZE $TORCHELASTIC_ERROR_FILE ${group:-none} sh" > $LEDGER/tmp.$$
	mv $LEDGER/tmp.$$ $LEDGER/$RALLYPOINT_ROUND.$RANK.$$
	until [ -e $FINISH ]; do sleep 0.2; done
	exit 0`

// warmChaosWorker is the same in Python, which a template can fork.
const warmChaosWorker = `
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
env = os.environ
subprocess.Popen(["sleep", "1000"])
subprocess.Popen(["sleep", "1000"], start_new_session=True)
print("token", os.getpid(), env["RALLYPOINT_ROUND"], flush=True)
group = [line[:-1] for line in open("/proc/self/cgroup") if line.startswith("0::")] or ["none"]
forked = b"\0RALLYPOINT_TEMPLATE=hold\0" in open("/proc/self/environ", "rb").read()
new = "%s/tmp.%d" % (env["LEDGER"], os.getpid())
with open(new, "w") as file:
    print(os.getpid(), os.getppid(), env["RALLYPOINT_ROUND"], env["GROUP_RANK"], env["WORLD_SIZE"], env["TORCHELASTIC_ERROR_FILE"], group[0], "forked" if forked else "cold", file=file)
os.rename(new, "%s/%s.%s.%d" % (env["LEDGER"], env["RALLYPOINT_ROUND"], env["RANK"], os.getpid()))
while not os.path.exists(env["FINISH"]):
    time.sleep(0.05)
`

// chaos is a job of some nodes that is hurt at random.
type chaos struct {
	*harness
	endpoint string
	serve    *serverProcess // nil: one of the nodes leads, and each that does records it
	lease    time.Duration
	duration time.Duration // for so long it is hurt, unless envChaos says otherwise
	mark     string        // in the environment of everything that belongs to the job

	python  string // a program that runs warmChaosWorker; "": there is no Python
	nodes   []*nodeProcess
	keep    bool // as --on-failure has it
	segment int  // 2: each pair of ranks is in one rack
}

// TestChaos kills and stops agents, workers, their templates and the control plane of a job of
// some nodes at random moments; checks find nodes unfit, and others leave at their own request, and
// come again. The job continues each time; in the end what the control
// plane has recorded keeps the guarantees (conformance says how each is checked), each
// worker has stood where that has placed its agent, and nothing of the job is left but the
// log of each attempt. A control plane that is killed continues from its data directory, or
// from what the agents bring back.
func TestChaos(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]string{"durable": {"--data-dir", "data"}, "in memory": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newChaos(t)
			c.endpoint, c.lease, c.duration = fmt.Sprintf("127.0.0.1:%d", quietPort(t)), time.Second, 10*time.Second
			c.serve = &serverProcess{dir: c.dir, args: append([]string{"serve", "--listen", c.endpoint, "--record", "history"}, options...)}
			if err := c.serve.start(); err != nil {
				t.Fatal(err)
			}
			defer func() { c.serve.kill() }()
			goroutines, files := c.held()
			c.run()
			testkit.Eventually(t, "nothing more is held than before", func() bool { g, f := c.held(); return g <= goroutines && f <= files })
			c.audit()
		})
	}
}

// TestChaosInAnEtcd does the same to a job whose nodes meet in an etcd. The history is
// what the leaders record.
func TestChaosInAnEtcd(t *testing.T) {
	t.Parallel()
	c := newChaos(t)
	c.endpoint, c.lease, c.duration = "etcd://"+etcd.Endpoint(t)+"?key_prefix=/chaos", 2*time.Second, 8*time.Second
	c.run()
	c.audit()
}

// TestChaosInADirectory does the same to one whose nodes meet in a directory, of which
// nothing is left either.
func TestChaosInADirectory(t *testing.T) {
	t.Parallel()
	c := newChaos(t)
	meet := filepath.Join(c.dir, "meet")
	if err := os.Mkdir(meet, 0o700); err != nil {
		t.Fatal(err)
	}
	c.endpoint, c.lease, c.duration = "file://"+meet, 2*time.Second, 8*time.Second
	c.run()
	testkit.Eventually(t, "the directory is empty", func() bool { left, _ := os.ReadDir(meet); return len(left) == 0 })
	c.audit()
}

func newChaos(t *testing.T) *chaos {
	c := &chaos{harness: newHarness(t)}
	c.mark = "CHAOS=" + c.dir
	if _, err := exec.LookPath("python3"); err == nil {
		c.python = filepath.Join(c.dir, "worker.py")
		testkit.WriteFile(t, c.python, []byte(warmChaosWorker))
	}
	for _, dir := range []string{"ledger", "tmp"} {
		if err := os.Mkdir(filepath.Join(c.dir, dir), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// play starts the job, hurts it, and lets it end.
func (c *chaos) run() {
	t := c.t
	duration := c.duration
	if text := os.Getenv(envChaos); text != "" {
		var err error
		if duration, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	c.keep, c.segment, c.nodes = random.IntN(4) == 0, 1, make([]*nodeProcess, 3)
	if random.IntN(3) == 0 {
		c.segment, c.nodes = 2, make([]*nodeProcess, 4)
	}
	t.Logf("%d nodes, segments of %d, keep: %v", len(c.nodes), c.segment, c.keep)
	defer c.killAll()
	for i := range c.nodes {
		c.startNode(i)
	}
	c.awaitWhole()
	for end, late := time.Now().Add(duration), 0; time.Now().Before(end) || !c.restarted(); {
		if time.Now().After(end) {
			late++
		}
		if late > 50 {
			t.Fatal("no fault has restarted the workers")
		}
		c.injectFault(random)
		// Sometimes hurt what is just recovering, sometimes what runs.
		time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond)
		c.bringBack()
		if random.IntN(4) == 0 {
			c.awaitWhole()
		}
	}
	c.awaitWhole()
	if err := os.WriteFile(c.dir+"/finish", nil, 0o666); err != nil {
		t.Fatal(err)
	}
	for i, p := range c.nodes {
		if code := p.end(); code != 0 && code != 94 { // it was about to leave
			t.Errorf("node %d ended with %d:\n%s", i, code, p.stderr.String())
		}
	}
	testkit.Eventually(t, "no process is left", func() bool { return len(c.processes()) == 0 })
	testkit.Eventually(t, "no temporary file is left", func() bool { left, _ := filepath.Glob(c.dir + "/tmp/*"); return len(left) == 0 })
	testkit.Eventually(t, "no control group is left", func() bool { return len(c.controlGroups()) == 0 })
	c.checkLogs()
}

// audit holds the history against the guarantees, and against where the workers have stood.
func (c *chaos) audit() {
	auditHistory(c.t, c.histories()...)
	if text := c.misplaced(); text != "" {
		c.t.Error(text)
	}
}

// history returns what is recorded so far. A line that a kill has torn is the audit's business.
func (c *chaos) history() (records []trace.Record) {
	c.t.Helper()
	for _, path := range c.histories() {
		for line := range bytes.Lines(testkit.ReadFile(c.t, path)) {
			if rec, err := trace.Decode(line); err == nil {
				records = append(records, rec)
			}
		}
	}
	return records
}

// histories are the files of all that have recorded the job.
func (c *chaos) histories() []string {
	return testkit.Must(filepath.Glob(c.dir + "/history*"))(c.t)
}

// misplaced looks for each worker's agent in the history, where it has that rank, and says
// which one has not.
func (c *chaos) misplaced() string {
	type place struct{ round, rank int }
	agents, places := map[rendezvous.SessionID]string{}, map[place][]string{}
	for _, rec := range c.history() {
		if hello, ok := rec.Event.(rendezvous.Hello); ok {
			agents[hello.Session] = hello.Label[strings.LastIndexByte(hello.Label, ' ')+1:]
		}
		for _, e := range rec.Effects {
			if reply, ok := e.(rendezvous.Reply); ok {
				if o, ok := reply.Result.(rendezvous.Outcome); ok {
					at := place{int(o.Round), o.Rank}
					places[at] = append(places[at], agents[reply.Session])
				}
			}
		}
	}
	for _, e := range c.ledger() {
		if at := (place{e.round, e.groupRank}); !slices.Contains(places[at], strconv.Itoa(e.agent)) {
			return fmt.Sprintf("agent %d started a worker as rank %d of round %d, which was given to %q", e.agent, e.groupRank, e.round, places[at])
		}
	}
	return ""
}

// held are the goroutines and descriptors of the control plane.
func (c *chaos) held() (goroutines, files int) {
	c.t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get("http://" + c.endpoint + "/metrics")
	if err != nil {
		c.t.Fatal(err)
	}
	body, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	_, value, _ := strings.Cut(string(body), "\ngo_goroutines ")
	if _, scan := fmt.Sscan(value, &goroutines); err != nil || scan != nil {
		c.t.Fatalf("%v, %v: %.200s", err, scan, body)
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", c.serve.cmd.Process.Pid))
	if err != nil {
		c.t.Fatal(err)
	}
	return goroutines, len(open)
}

// startNode starts the agent of a node, which is on a host of its own, as its name says. The
// last node has no log folder but its temporary one.
func (c *chaos) startNode(i int) {
	lease, grace := c.lease, 0.3
	if c.keep { // a node that is lost stays out
		lease, grace = 10*lease, 10
	}
	conf := fmt.Sprintf("--rdzv-conf=lease_timeout=%g,reconnect_grace=%g,last_call_timeout=2,admit_delay=0.2,closed_for=0,any_command=1,host_name=host%d,record=%s/history", lease.Seconds(), grace, i, c.dir)
	if c.serve != nil { // a node that starts while it is down must not take its place
		conf += ",is_host=0"
	}
	least, policy := 2, []string{"restart", "leave:1/1s", "leave:2/3s"}[rand.IntN(3)]
	if c.keep {
		least, policy = len(c.nodes), "keep"
	}
	args := []string{"run", fmt.Sprintf("--nnodes=%d:%d", least, len(c.nodes)), "--nproc-per-node=" + strconv.Itoa(chaosWorkers), "--rdzv-endpoint=" + c.endpoint, "--rdzv-id=chaos",
		"--max-restarts=1000000", conf, "--shutdown-timeout=1", "--on-failure=" + policy}
	if c.segment > 1 {
		args = append(args, fmt.Sprint("--segment=", c.segment))
	}
	if c.segment > 1 || rand.IntN(2) == 0 {
		args = append(args, fmt.Sprint("--topology=rack", i%2))
	}
	if rand.IntN(2) == 0 {
		args = append(args, fmt.Sprintf("--check=[ ! -e bad.%d ] || exit $(cat bad.%d)", i, i))
		if rand.IntN(3) > 0 {
			args = append(args, "--check-every=0.1", "--drain-timeout=0.3", "--check-away=1s")
		}
	}
	if i < len(c.nodes)-1 {
		args = append(args, "-r1", "--log-dir="+c.dir+"/logs")
	}
	worker := []string{"--no-python", "--no-macros", "sh", "-c", chaosWorker}
	if c.python != "" && rand.IntN(2) == 0 {
		worker = []string{"--warm", c.python}
	}
	p := &nodeProcess{Cmd: exec.Command(os.Args[0], append(args, worker...)...)}
	p.Dir = c.dir
	p.Env = []string{testkit.EndAtOnce, asCommand + "=1", "PATH=" + os.Getenv("PATH"), "TMPDIR=" + c.dir + "/tmp", "LEDGER=" + c.dir + "/ledger",
		"FINISH=" + c.dir + "/finish", "TORCHELASTIC_ENABLE_FILE_TIMER=1", "OMP_NUM_THREADS=1", c.mark}
	p.Stderr = &p.stderr
	if err := p.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.nodes[i] = p
}

// controlGroups are those that agents have made and not removed, where the system lets
// them. Workers have said which these are: a process id may be another job's by now.
func (c *chaos) controlGroups() (left []string) {
	for _, e := range c.ledger() {
		name := filepath.Base(e.group)
		if !strings.HasPrefix(name, "rallypoint-") {
			continue
		}
		for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
			if path := filepath.Join(mount, name); !slices.Contains(left, path) {
				if _, err := os.Stat(path); err == nil {
					left = append(left, path)
				}
			}
		}
	}
	return left
}

// hurt does one thing to one process.
func (c *chaos) injectFault(random *rand.Rand) {
	node := random.IntN(len(c.nodes))
	agent := c.nodes[node].Process.Pid
	fault := random.IntN(8)
	if c.keep && (fault == 0 || fault == 4 && c.serve == nil) { // nothing would come in its place
		fault = 2
	}
	switch fault {
	case 0: // kill an agent; another takes its place
		c.kill(agent, syscall.SIGKILL)
		c.restartNode(node)
	case 1: // stop an agent, for less or for more than its lease
		c.freeze(agent, random)
	case 2:
		c.kill(c.worker(random), syscall.SIGKILL)
	case 3:
		c.freeze(c.worker(random), random)
	case 4:
		if c.serve == nil { // another agent comes when the others continue already
			c.kill(agent, syscall.SIGKILL)
			time.Sleep(time.Duration(random.IntN(3000)) * time.Millisecond)
			c.restartNode(node)
			return
		}
		// The control plane comes back with what it has stored.
		c.serve.kill()
		time.Sleep(time.Duration(random.IntN(500)) * time.Millisecond)
		if err := c.serve.start(); err != nil {
			c.t.Fatal(err)
		}
	case 5:
		if c.serve == nil { // two of three
			another := c.nodes[(node+1)%len(c.nodes)].Process.Pid
			c.kill(another, syscall.SIGSTOP)
			c.freeze(agent, random)
			c.kill(another, syscall.SIGCONT)
			return
		}
		c.freeze(c.serve.cmd.Process.Pid, random)
	case 6: // a check finds a node unfit, or cannot tell
		bad := filepath.Join(c.dir, fmt.Sprint("bad.", node))
		testkit.WriteFile(c.t, bad+".new", []byte([]string{"1", "1", "75"}[random.IntN(3)]))
		testkit.Check(c.t, os.Rename(bad+".new", bad))
		time.Sleep(time.Duration(random.IntN(1000)) * time.Millisecond)
		testkit.Check(c.t, os.Remove(bad))
	case 7: // what forks the workers, or one that was just forked
		if template := c.template(random); random.IntN(2) == 0 {
			c.kill(template, syscall.SIGKILL)
		} else {
			c.freeze(template, random)
		}
	}
}

// template is a node's template, or a worker of one that has not yet said that it runs; 0 if
// there is none just now.
func (c *chaos) template(random *rand.Rand) int {
	var said, held []int
	for _, e := range c.ledger() {
		said = append(said, e.pid)
	}
	for _, pid := range c.processes() {
		env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if strings.Contains(string(env), "\x00RALLYPOINT_TEMPLATE=hold\x00") && !slices.Contains(said, pid) {
			held = append(held, pid)
		}
	}
	if len(held) == 0 {
		return 0
	}
	return held[random.IntN(len(held))]
}

// restartNode starts a node again that was killed, or has left as unfit.
func (c *chaos) restartNode(i int) {
	c.t.Helper()
	if code := c.nodes[i].end(); code != -int(syscall.SIGKILL) && code != 94 {
		c.t.Fatalf("node %d had ended with %d:\n%s", i, code, c.nodes[i].stderr.String())
	}
	c.startNode(i)
}

// bringBack starts the nodes again that have left. They may be refused for a time.
func (c *chaos) bringBack() {
	c.t.Helper()
	for i, p := range c.nodes {
		if !alive(p.Process.Pid) {
			c.restartNode(i)
		}
	}
}

func (c *chaos) kill(pid int, sig syscall.Signal) {
	if pid > 0 {
		_ = syscall.Kill(pid, sig)
	}
}

func (c *chaos) freeze(pid int, random *rand.Rand) {
	c.kill(pid, syscall.SIGSTOP)
	time.Sleep(time.Duration(random.Int64N(int64(2 * c.lease))))
	c.kill(pid, syscall.SIGCONT)
}

// attendance is one worker in the ledger.
type chaosEntry struct {
	pid, agent, round, groupRank, world int
	errorFile                           string
	group                               string // the control group of its agent's workers, as /proc has it
	start                               string // "sh"; of Python "forked" or "cold"
}

func (c *chaos) ledger() (entries []chaosEntry) {
	files, _ := filepath.Glob(c.dir + "/ledger/[0-9]*")
	for _, file := range files {
		text, err := os.ReadFile(file)
		var e chaosEntry
		if err == nil {
			_, err = fmt.Sscan(string(text), &e.pid, &e.agent, &e.round, &e.groupRank, &e.world, &e.errorFile, &e.group, &e.start)
		}
		if err != nil {
			c.t.Fatalf("%s: %v", file, err)
		}
		entries = append(entries, e)
	}
	return entries
}

// worker is a worker that runs; 0 if there is none just now.
func (c *chaos) worker(random *rand.Rand) int {
	var running []int
	for _, e := range c.ledger() {
		if c.belongs(e.pid) {
			running = append(running, e.pid)
		}
	}
	if len(running) == 0 {
		return 0
	}
	return running[random.IntN(len(running))]
}

// awaitWhole waits until all workers of one round of all nodes run, or under --on-failure keep one
// of each node.
func (c *chaos) awaitWhole() {
	c.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		last, there := 0, 0
		entries := c.ledger()
		for _, e := range entries {
			last = max(last, e.round)
		}
		nodes := map[int]bool{}
		for _, e := range entries {
			if e.round == last && e.world == len(c.nodes)*chaosWorkers && c.belongs(e.pid) {
				nodes[e.groupRank] = true
				there++
			}
		}
		if there == len(c.nodes)*chaosWorkers || c.keep && len(nodes) == len(c.nodes) {
			return
		}
		c.bringBack()
		if time.Now().After(deadline) {
			for i, p := range c.nodes {
				_ = p.Process.Kill()
				c.t.Errorf("node %d, %d workers of round %d, code %d:\n%s", i, there, last, p.end(), p.stderr.String())
			}
			c.t.FailNow()
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// belongs tells whether a process is one of the job's: a pid may have been given
// away.
func (c *chaos) belongs(pid int) bool {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	return err == nil && strings.Contains("\x00"+string(env), "\x00"+c.mark+"\x00") && alive(pid)
}

// processes are all of the job.
func (c *chaos) processes() (pids []int) {
	folders, _ := filepath.Glob("/proc/[0-9]*")
	for _, folder := range folders {
		if pid, err := strconv.Atoi(filepath.Base(folder)); err == nil && c.belongs(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (c *chaos) killAll() {
	for _, pid := range c.processes() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// restarted reports whether as many workers were started again as the first round has: some faults
// do no harm. Under --on-failure keep those of the first round may be all.
func (c *chaos) restarted() bool {
	return c.keep || len(c.ledger()) >= 2*len(c.nodes)*chaosWorkers
}

// checkLogs looks for what each worker wrote first in the log of its attempt.
func (c *chaos) checkLogs() {
	entries := c.ledger()
	checked, starts := 0, map[string]int{}
	for _, e := range entries {
		starts[e.start]++
		if !strings.HasPrefix(e.errorFile, c.dir+"/logs/") {
			continue
		}
		text, err := os.ReadFile(filepath.Dir(e.errorFile) + "/stdout.log")
		if want := fmt.Sprintf("token %d %d\n", e.pid, e.round); err != nil || string(text) != want {
			c.t.Errorf("the log of %+v: %q, %v", e, text, err)
		}
		checked++
	}
	c.t.Logf("%d workers in %d logs, started: %v", len(entries), checked, starts)
	if starts["cold"] > 0 && starts["forked"] == 0 { // those of the first round had no fault
		c.t.Error("no worker was forked")
	}
}
