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
	options := elastic(t, "2", "--nproc-per-node=4", "--hang-timeout=2", "--on-hang=restart")
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
	const named = ") is at train.py:7 data_wait; 7 others are at train.py:9 all_reduce"
	for i, p := range nodes {
		p.expect(t, 1)
		text := p.stderr.String()
		if !strings.Contains(text, "no step for 2") || !strings.Contains(text, "rank 3 (") || !strings.Contains(text, named) {
			t.Errorf("node %d does not name the rank:\n%s", i, text)
		}
		if !strings.Contains(text, "hang      : the job hung before this failure: no step for 2") || !strings.Contains(text, "rank      : 3 (local_rank: 3)") || !strings.Contains(text, "last stack: (while the job hung)\n    > data_wait  ") {
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
		p := h.command(run, "--nnodes=2", "--nproc-per-node=4", "--hang-timeout=2", "--rdzv-conf=last_call_timeout=0.1", "--rdzv-endpoint="+serve.addr)
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
		return strings.Contains(text, "no step for 2") && strings.Contains(text, "data_wait; 7 others")
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
