package cli

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"rallypoint/internal/testkit"
)

// hangingJob is a job of Python that makes steps until there is a file; then rank 3 waits for its
// data, and all others for it.
const hangingJob = `
exec(open(%q).read())
register()
import os, struct, time
record = open(os.environ["RALLYPOINT_PROGRESS_FILE"], "r+b", buffering=0)
def data_wait():
    time.sleep(1e6)
def all_reduce():
    time.sleep(1e6)
step = 0
while not os.path.exists(%q):
    step += 1
    if os.environ["RANK"] == "0":  # the ranks do not keep step here
        record.seek(16)
        record.write(struct.pack("<q", step))
    time.sleep(0.005)
data_wait() if os.environ["RANK"] == "3" else all_reduce()
`

// victimsOfAHang is a job of Python that makes steps; then rank 3 waits for its data, and all others
// for it. Once all nodes have seen where their workers stand, which these know by the change of their
// stack files, some of those that wait give up.
const victimsOfAHang = `
exec(open(%q).read())
register()
import os, struct, threading, time
folder, rank = os.path.dirname(__file__), os.environ["RANK"]
record = open(os.environ["RALLYPOINT_PROGRESS_FILE"], "r+b", buffering=0)
def data_wait():
    time.sleep(1e6)
def all_reduce(given_up):
    given_up.wait()
    raise RuntimeError("timed out")
for step in range(100):
    record.seek(16)
    record.write(struct.pack("<q", step))
    time.sleep(0.005)
if rank == "3":
    data_wait()
def asked():
    at = os.stat(os.environ["RALLYPOINT_STACKS_FILE"])
    return at.st_mtime_ns, at.st_size
before = asked()
given_up = threading.Event()
def watch():
    while asked()[0] == before[0] or asked()[1] != before[1]:
        time.sleep(0.01)
    open(os.path.join(folder, rank + ".asked"), "w").close()
    while len([name for name in os.listdir(folder) if name.endswith(".asked")]) < 7:
        time.sleep(0.01)
    if rank in %q.split(","):
        given_up.set()
threading.Thread(target=watch, daemon=True).start()
all_reduce(given_up)
`

// TestVictimsBeforeTheAlarm: workers that give up before anybody has said that the job hangs are told
// with the rank for which they have waited, on all nodes, however many give up at one moment.
func TestVictimsBeforeTheAlarm(t *testing.T) {
	t.Parallel()
	for name, victims := range map[string]string{"all": "0,1,2,4,5,6,7", "one on the other node": "5"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const tries = 5
			for i := 1; ; i++ { // a failure waits 0.2 s for what other nodes know, and no longer
				missing := victimsAreTold(t, victims)
				if missing == "" {
					return
				}
				if i == tries {
					t.Fatal(missing)
				}
			}
		})
	}
}

// victimsAreTold runs the job once, and returns what its nodes should have said and did not; "": they
// have said all.
func victimsAreTold(t *testing.T, victims string) (missing string) {
	t.Helper()
	python, register := askedPython(t)
	script := filepath.Join(t.TempDir(), "train.py")
	testkit.WriteFile(t, script, []byte(fmt.Sprintf(victimsOfAHang, register, victims)))
	h := newHarness(t)
	options := elastic(t, "2", "--nproc-per-node=4")
	nodes := []*nodeProcess{h.run("exec "+python+" "+script, options...), h.run("exec "+python+" "+script, options...)}
	const named = ") is at train.py:8 data_wait; 7 others wait in wait"
	for i, p := range nodes {
		p.expect(t, 1)
		text := p.stderr.String()
		_, report, _ := strings.Cut(text, "Root Cause (first observed failure):")
		_, report, _ = strings.Cut(report, "standstill: the job stood still before this failure: no step for ")
		if line, _, _ := strings.Cut(report, "\n"); !strings.Contains(line, ": rank 3 (") || !strings.Contains(line, named) {
			missing = fmt.Sprintf("the report of node %d does not name the rank:\n%s", i, text)
		}
	}
	all := nodes[0].stderr.String() + nodes[1].stderr.String()
	if victims == "5" && !strings.Contains(all, "; before that the job stood still (no step for ") { // the other node stops its workers for it
		missing = "no node says why its workers are stopped:\n" + all
	}
	return missing
}

// hanging returns the command of a worker of hangingJob, and the file that makes it hang.
func hanging(t *testing.T) (run, gate string) {
	t.Helper()
	python, register := askedPython(t)
	folder := t.TempDir()
	script, gate := filepath.Join(folder, "train.py"), filepath.Join(folder, "hang")
	testkit.WriteFile(t, script, []byte(fmt.Sprintf(hangingJob, register, gate)))
	return "exec " + python + " " + script, gate
}

// TestHangOfTwoNodes: the logs of both nodes and the status say the same sentence, with the rank
// that hangs and its line; the rank is ended for it, on its node, and the report names it.
func TestHangOfTwoNodes(t *testing.T) {
	t.Parallel()
	run, gate := hanging(t)
	h := newHarness(t)
	options := elastic(t, "2", "--nproc-per-node=2", "--hang-timeout=2", "--on-hang=restart")
	var nodes []*nodeProcess
	var ports []int
	for range 2 {
		port := testkit.FreePort(t)
		p := h.command(run, options...)
		p.Env = append(p.Env, fmt.Sprintf("TORCHELASTIC_HEALTH_CHECK_PORT=%d", port))
		testkit.Check(t, p.Start())
		nodes, ports = append(nodes, p), append(ports, port)
	}
	testkit.Eventually(t, "the node of rank 0 has seen two steps", func() bool { return anyHas(ports, "\nrallypoint_agent_hang_limit_seconds 2\n") })
	testkit.WriteFile(t, gate, nil)
	const named = ") is at train.py:7 data_wait; 3 others are at train.py:9 all_reduce"
	for i, p := range nodes {
		p.expect(t, 1)
		text := p.stderr.String()
		if !strings.Contains(text, "no step for 2") || !strings.Contains(text, "rank 3 (") || !strings.Contains(text, named) {
			t.Errorf("node %d does not name the rank:\n%s", i, text)
		}
		if !strings.Contains(text, "hang      : the job hung before this failure: no step for 2") || !strings.Contains(text, "rank      : 3 (local_rank: 1)") || !strings.Contains(text, "last stack: (while the job hung)\n    > data_wait  ") {
			t.Errorf("the report of node %d does not name the rank:\n%s", i, text)
		}
	}
}

// TestHangWithoutAControlPlane: a control plane that is stopped is no hang, and hides none: the
// nodes name it, and it shows that once it runs again.
func TestHangWithoutAControlPlane(t *testing.T) {
	t.Parallel()
	run, gate := hanging(t)
	serve := &serverProcess{args: []string{"serve", "--listen=127.0.0.1:0"}}
	testkit.Check(t, serve.start())
	defer serve.kill()
	h := newHarness(t)
	var nodes []*nodeProcess
	var ports []int
	for range 2 {
		p := h.command(run, "--nnodes=2", "--nproc-per-node=2", "--hang-timeout=2", "--rdzv-conf=last_call_timeout=0.1", "--rdzv-endpoint="+serve.addr)
		ports = append(ports, testkit.FreePort(t))
		p.Env = append(p.Env, fmt.Sprintf("TORCHELASTIC_HEALTH_CHECK_PORT=%d", ports[len(ports)-1]))
		testkit.Check(t, p.Start())
		nodes = append(nodes, p)
	}
	defer func() {
		for _, p := range nodes {
			_ = p.Process.Signal(syscall.SIGTERM)
			p.end()
		}
	}()
	step := func() (most int) {
		for _, port := range ports {
			if found := stepShown.FindStringSubmatch(pageAt(fmt.Sprintf("127.0.0.1:%d/status", port))); found != nil {
				most = max(most, testkit.Must(strconv.Atoi(found[1]))(t))
			}
		}
		return most
	}
	testkit.Eventually(t, "the node of rank 0 has seen two steps", func() bool { return step() > 0 && anyHas(ports, "\nrallypoint_agent_hang_limit_seconds 2\n") })
	testkit.Check(t, serve.cmd.Process.Signal(syscall.SIGSTOP))
	before := step()
	testkit.Eventually(t, "the job has trained for longer than its timeout", func() bool { return step() > before+600 })
	if anyHas(ports, "\nrallypoint_agent_stalled 1\n") {
		t.Error("a job that trains is said to hang")
	}
	testkit.WriteFile(t, gate, nil)
	for _, port := range ports {
		testkit.Eventually(t, "each node says that the job hangs", func() bool { return strings.Contains(metricsOf(port), "\nrallypoint_agent_stalled 1\n") })
	}
	testkit.Check(t, serve.cmd.Process.Signal(syscall.SIGCONT))
	testkit.Eventually(t, "the control plane shows it", func() bool {
		text := pageAt(serve.addr + "/")
		return strings.Contains(text, "no step for 2") && strings.Contains(text, "data_wait; 3 others")
	})
}

// stepShown is the largest step in the status of an agent.
var stepShown = regexp.MustCompile(`"step": ?(\d+)`)

// anyHas tells whether the metrics of some agent have a line.
func anyHas(ports []int, line string) bool {
	return slices.ContainsFunc(ports, func(port int) bool { return strings.Contains(metricsOf(port), line) })
}

// metricsOf is what the health port of an agent says; "" while there is none.
func metricsOf(port int) string { return pageAt(fmt.Sprintf("127.0.0.1:%d/metrics", port)) }

// pageAt is a page; "" while there is none.
func pageAt(address string) string {
	answer, err := http.Get("http://" + address)
	if err != nil {
		return ""
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	return string(body)
}

// TestOneNodeHasEnded: where all workers of one node have ended with 0 and those of another wait for
// ever, without a step ever, the log, the status and the page say the same sentence.
func TestOneNodeHasEnded(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	options := elastic(t, "2", "--hang-timeout=2")
	endpoint := strings.TrimPrefix(options[1], "--rdzv-endpoint=")
	const script = `[ $RANK = 1 ] && sleep 1.5 && exit 0; exec sleep 1000`
	nodes := []*nodeProcess{h.run(script, options...), h.run(script, options...)}
	const want = "rank 1 has ended; rank 0 is still running; rank 0 ("
	var page string
	testkit.Eventually(t, "the page says it", func() bool {
		page = pageAt(endpoint + "/")
		return strings.Contains(page, "no sign of work for ") && strings.Contains(page, want)
	})
	_, stdout, _ := execute(t, "status", endpoint)
	if text := strings.Join(strings.Fields(stdout), " "); !strings.Contains(text, want) {
		t.Error(stdout)
	}
	said := 0
	for _, p := range nodes {
		_ = p.Process.Signal(syscall.SIGTERM)
		p.end()
		if text := p.stderr.String(); strings.Contains(text, want) && strings.Contains(text, " is sleeping in ") {
			said++
		}
	}
	if said != 1 {
		t.Errorf("%d nodes that run say it", said)
	}
}
