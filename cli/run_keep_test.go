package cli

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"rallypoint/core/control"
	"rallypoint/internal/testkit"
)

// keeping is printPlacement of a worker that fails once there is a file for its rank in a round.
var keeping = strings.Replace(printPlacement, "until [ -e finish ]; do", "until [ -e finish ]; do [ ! -e fail$RANK.$RALLYPOINT_ROUND ] || exit 9;", 1)

// keptJob is a job by --on-failure keep.
type keptJob struct {
	*harness
	t       *testing.T
	options []string
	nodes   []*nodeProcess
}

func newKeptJob(t *testing.T, nodes, workers int, options ...string) *keptJob {
	k := &keptJob{harness: newHarness(t), t: t}
	k.options = elastic(t, fmt.Sprint(nodes), append([]string{"--rdzv-id=job", "--on-failure=keep", fmt.Sprintf("--nproc-per-node=%d", workers)}, options...)...)
	for range nodes {
		k.start()
	}
	k.readRound(nodes)
	return k
}

// start starts the next node, n0 first. The first one hosts.
func (k *keptJob) start() {
	i := len(k.nodes)
	options := append([]string{}, k.options...)
	options[2] += fmt.Sprintf(",node_id=n%d", i)
	k.nodes = append(k.nodes, k.run(keeping, options...))
	if i == 0 {
		k.status(func(r *control.RunStatus, _ string) bool { return len(r.Waiting) == 1 })
	}
}

// rank is a node's.
func (k *keptJob) rank(node string) (rank int) {
	k.status(func(r *control.RunStatus, _ string) bool {
		for _, m := range r.Members {
			if m.Node == node {
				rank = m.Rank
				return true
			}
		}
		return false
	})
	return rank
}

// status waits for a status.
func (k *keptJob) status(wanted func(r *control.RunStatus, text string) bool) {
	k.t.Helper()
	endpoint := strings.TrimPrefix(k.options[1], "--rdzv-endpoint=")
	testkit.Eventually(k.t, "the status is as wanted", func() bool {
		var st control.Status
		code, data, _ := execute(k.t, "status", "--json", endpoint)
		if code != 0 || json.Unmarshal([]byte(data), &st) != nil || len(st.Runs) != 1 {
			return false
		}
		_, text, _ := execute(k.t, "status", endpoint)
		return wanted(&st.Runs[0], text)
	})
}

func (k *keptJob) fail(round int, ranks ...int) {
	for _, rank := range ranks {
		testkit.WriteFile(k.t, filepath.Join(k.dir, fmt.Sprintf("fail%d.%d", rank, round)), nil)
	}
}

// end has the workers that are left succeed, and expects how the first nodes end.
func (k *keptJob) end(codes ...int) {
	k.t.Helper()
	k.finish()
	for i, code := range codes {
		k.nodes[i].expect(k.t, code)
	}
}

// TestKeep: a worker that fails ends nothing while another worker of its node runs; the status and
// the node's last words name it.
func TestKeep(t *testing.T) {
	t.Parallel()
	for bad := range 2 {
		k := newKeptJob(t, 2, 2)
		rank := 2*k.rank(fmt.Sprintf("n%d", bad)) + 1
		k.fail(1, rank)
		k.status(func(r *control.RunStatus, text string) bool {
			return strings.Contains(text, "running, 1 of 2 workers") && r.Round == 1
		})
		k.end(0, 0)
		text := k.nodes[bad].stderr.String()
		for _, want := range []string{fmt.Sprintf("worker of rank %d ", rank), "exited with code 9; 1 of 2 workers of this node continue without it (--on-failure keep)",
			"1 worker of this node failed; the node succeeded because the others did:\n", "exitcode  : 9"} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
	}
}

// TestKeepWithoutANode: the nodes that are left continue without one that is lost, and without one
// whose workers have all failed and cannot be started again; that one exits with 1. A spare gets no
// place.
func TestKeepWithoutANode(t *testing.T) {
	t.Parallel()
	k := newKeptJob(t, 3, 1, "--max-restarts=0")
	k.start()
	k.status(func(r *control.RunStatus, _ string) bool { return len(r.Waiting) == 1 })
	k.nodes[1].kill(t, syscall.SIGKILL)
	lost := func(n int) func(*control.RunStatus, string) bool {
		return func(r *control.RunStatus, _ string) bool {
			for _, m := range r.Members {
				if m.State == "lost" {
					n--
				}
			}
			return n == 0 && r.Round == 1 && len(r.Waiting) == 1
		}
	}
	k.status(func(r *control.RunStatus, text string) bool { return lost(1)(r, text) })
	k.fail(1, k.rank("n2"))
	k.nodes[2].expect(t, 1)
	if text := k.nodes[2].stderr.String(); !strings.Contains(text, "all workers of this node have failed, and it leaves the run to the others (--on-failure keep)") {
		t.Error(text)
	}
	k.status(func(r *control.RunStatus, text string) bool { return lost(2)(r, text) })
	k.end(0)
	k.nodes[3].expect(t, 0) // it was not needed
}

// TestKeepRestarts: if all workers of a node have failed, those of the job are started again while
// the budget lasts; not once a node is lost, in whose place none would come.
func TestKeepRestarts(t *testing.T) {
	t.Parallel()
	k := newKeptJob(t, 3, 2, "--max-restarts=3")
	k.fail(1, 2, 3)
	if all := k.readRound(3); all[0].round != 2 || all[0].restarts != 1 {
		t.Errorf("%+v", all)
	}
	k.nodes[1].kill(t, syscall.SIGKILL)
	k.status(func(r *control.RunStatus, _ string) bool {
		return slices.ContainsFunc(r.Members, func(m control.MemberStatus) bool { return m.State == "lost" })
	})
	rank := 2 * k.rank("n2")
	k.fail(2, rank, rank+1)
	k.nodes[2].expect(t, 1)
	k.end(0)
}

// TestKeepWithoutAnyNode: when the last node leaves because its workers have failed the run stays
// open, as after the loss of all nodes: a spare waits, and meets a node that is started again.
func TestKeepWithoutAnyNode(t *testing.T) {
	t.Parallel()
	j := newMomentJob(t, "2", "--on-failure=keep")
	j.start("n0", "n1")
	round, _ := j.grown(2, 0)
	j.start("n2")
	j.status(func(r *control.RunStatus) bool { return waits(r, "n2") })
	j.nodes["n1"].kill(t, syscall.SIGKILL)
	j.status(func(r *control.RunStatus) bool { return r.Counts.Lost == 1 })
	j.fail(round, "n0")
	j.expect("n0", 1)
	j.await("n0", "all workers of this node have failed, and it leaves the run to the others")
	j.status(func(r *control.RunStatus) bool { return r.Closed == nil && waits(r, "n2") && r.Missing.Min == 1 })
	j.start("n3")
	j.grown(2, round)
	j.end(map[string]int{"n2": 0, "n3": 0})
}
