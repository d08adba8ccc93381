package cli

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
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

// TestHangOfTwoNodes: the logs of both nodes and the status say the same sentence, with the rank
// that hangs and its line; the rank is ended for it, on its node, and the report names it.
func TestHangOfTwoNodes(t *testing.T) {
	t.Parallel()
	python, register := askedPython(t)
	folder := t.TempDir()
	script, gate := filepath.Join(folder, "train.py"), filepath.Join(folder, "hang")
	testkit.WriteFile(t, script, []byte(fmt.Sprintf(hangingJob, register, gate)))
	h := newHarness(t)
	options := elastic(t, "2", "--nproc-per-node=4", "--hang-timeout=2", "--on-hang=restart")
	run := "exec " + python + " " + script
	var nodes []*nodeProcess
	var ports []int
	for range 2 {
		port := testkit.FreePort(t)
		p := h.command(run, options...)
		p.Env = append(p.Env, fmt.Sprintf("TORCHELASTIC_HEALTH_CHECK_PORT=%d", port))
		testkit.Check(t, p.Start())
		nodes, ports = append(nodes, p), append(ports, port)
	}
	testkit.Eventually(t, "the node of rank 0 has seen two steps", func() bool {
		return slices.ContainsFunc(ports, func(port int) bool {
			return strings.Contains(metricsOf(port), "\nrallypoint_agent_hang_limit_seconds 2\n")
		})
	})
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

// metricsOf is what the health port of an agent says; "" while there is none.
func metricsOf(port int) string {
	answer, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", port))
	if err != nil {
		return ""
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	return string(body)
}
