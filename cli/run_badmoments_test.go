package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"rallypoint/core/control"
	"rallypoint/internal/testkit"
)

// momentJob is a job whose nodes leave at their first failure. All meet at one control plane in a
// process of its own.
type momentJob struct {
	*harness
	t       *testing.T
	server  *serverProcess
	options []string
	nodes   map[string]*nodeProcess
}

func newMomentJob(t *testing.T, nnodes string, options ...string) *momentJob {
	h := newHarness(t)
	j := &momentJob{harness: h, t: t, nodes: map[string]*nodeProcess{}, server: &serverProcess{
		args: []string{"serve", "--listen", fmt.Sprintf("127.0.0.1:%d", quietPort(t)), "--data-dir", h.dir + "/data", "--log-level", "warn"},
	}}
	if err := j.server.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.server.kill() })
	j.options = append([]string{"--nnodes=" + nnodes, "--rdzv-endpoint=" + j.server.addr, "--rdzv-id=job", "--max-restarts=3", "--on-failure=leave:1",
		"--rdzv-conf=last_call_timeout=0.1,admit_delay=0.1,lease_timeout=30,reconnect_grace=1"}, options...)
	return j
}

// start starts nodes whose worker fails once there is a file for the node, or for its rank, in a
// round, and succeeds once there is another one. A node named ID@HOST is on a host of that name, any other on one of its own.
func (j *momentJob) start(names ...string) {
	j.t.Helper()
	for _, name := range names {
		id, host, shared := strings.Cut(name, "@")
		if !shared {
			host = "host-" + id
		}
		script := "echo $$ > pid.$RANK.$RALLYPOINT_ROUND; " + strings.Replace(printPlacement, "until [ -e finish ]; do",
			`until [ -e finish ]; do [ ! -e fail.`+id+`.$RALLYPOINT_ROUND -a ! -e fail.$RANK.$RALLYPOINT_ROUND ] || exit 13
				[ ! -e done.`+id+`.$RALLYPOINT_ROUND ] || exit 0;`, 1)
		options := slices.Clone(j.options)
		options[5] += ",any_command=1,node_id=" + id + ",host_name=" + host
		p := j.command(script, options...)
		log := testkit.Must(os.OpenFile(j.log(id), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600))(j.t)
		p.Stderr = log
		testkit.Check(j.t, p.Start())
		log.Close()
		j.nodes[id] = p
	}
}

// fail has the worker of a node, or of a rank, fail in a round.
func (j *momentJob) fail(round int, name string) { j.tell("fail", round, name) }

func (j *momentJob) tell(what string, round int, name string) {
	j.t.Helper()
	testkit.WriteFile(j.t, filepath.Join(j.dir, fmt.Sprintf("%s.%s.%d", what, name, round)), nil)
}

// grown reads rounds until one has so many nodes, and returns its number and restarts.
func (j *momentJob) grown(nodes, after int) (round, restarts int) {
	j.t.Helper()
	for {
		if p := j.readRound(nodes)[0]; p.round > after {
			return p.round, p.restarts
		}
	}
}

func (j *momentJob) status(wanted func(r *control.RunStatus) bool) {
	j.t.Helper()
	awaitRun(j.t, j.server.addr, wanted)
}

// waits reports whether a node has joined.
func waits(r *control.RunStatus, id string) bool {
	return slices.ContainsFunc(r.Waiting, func(w control.WaitingStatus) bool { return w.Node == id })
}

func (j *momentJob) expect(id string, code int) {
	j.t.Helper()
	if got := j.nodes[id].end(); got != code {
		j.t.Errorf("%s ended with %d, expected %d:\n%s", id, got, code, testkit.ReadFile(j.t, j.log(id)))
	}
}

// end has the workers that are left succeed, and expects how each node ends.
func (j *momentJob) end(codes map[string]int) {
	j.t.Helper()
	j.finish()
	for id, code := range codes {
		j.expect(id, code)
	}
}

func (j *momentJob) log(id string) string { return filepath.Join(j.dir, "log."+id) }

// await waits until a node logs a text.
func (j *momentJob) await(id, text string) {
	j.t.Helper()
	testkit.Eventually(j.t, id+" says: "+text, func() bool { return strings.Contains(string(testkit.ReadFile(j.t, j.log(id))), text) })
}

// TestFailingAtOnce: of nodes whose workers are killed in one go one leaves, though the job would let
// two go; the others follow it into the next round, at no cost.
func TestFailingAtOnce(t *testing.T) {
	t.Parallel()
	for name, failing := range map[string]int{"two of four": 2, "all": 4} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newMomentJob(t, "2:16")
			ids := []string{"n0", "n1", "n2", "n3"}
			j.start(ids...)
			round, _ := j.grown(4, 0)
			j.status(func(r *control.RunStatus) bool { return r.Counts.Running == 4 })
			var pids []int
			for rank := range failing {
				pids = append(pids, atoi(t, strings.TrimSpace(string(testkit.ReadFile(t, filepath.Join(j.dir, fmt.Sprintf("pid.%d.%d", rank, round)))))))
			}
			for _, pid := range pids {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != syscall.ESRCH { // its node may have stopped it already
					testkit.Check(t, err)
				}
			}
			if _, restarts := j.grown(3, round); restarts != 0 {
				t.Errorf("it has cost %d restarts", restarts)
			}
			j.finish()
			codes := map[int]int{}
			for _, id := range ids {
				codes[j.nodes[id].end()]++
			}
			if codes[94] != 1 || codes[0] != 3 {
				t.Errorf("exit codes: %v", codes)
			}
		})
	}
}

// TestSpareAfterTheFailure: a spare that comes when the node has been refused, and before the next
// round is complete, is counted at the next failure.
func TestSpareAfterTheFailure(t *testing.T) {
	t.Parallel()
	j := newMomentJob(t, "3")
	j.start("n0", "n1", "n2")
	round, _ := j.grown(3, 0)
	testkit.Check(t, j.nodes["n2"].Process.Signal(syscall.SIGSTOP)) // the next round waits for it
	j.fail(round, "n1")
	j.status(func(r *control.RunStatus) bool {
		return strings.Contains(r.Stopping, "2 would be left, at least 3 are needed")
	})
	j.start("n3")
	j.status(func(r *control.RunStatus) bool { return waits(r, "n3") })
	testkit.Check(t, j.nodes["n2"].Process.Signal(syscall.SIGCONT))
	next, restarts := j.grown(3, round)
	if restarts != 1 {
		t.Errorf("the refused failure has cost %d restarts", restarts)
	}
	j.fail(next, "n1")
	if _, restarts := j.grown(3, next); restarts != 1 {
		t.Errorf("%d restarts are charged, want that of the refused failure", restarts)
	}
	j.end(map[string]int{"n0": 0, "n1": 94, "n2": 0, "n3": 0})
	j.await("n1", "this node stays in the run: ")
}

// TestFailureWithoutAControlPlane: a node whose worker fails while the control plane is killed, or
// hangs, stops its workers at once. It leaves when the control plane is back and answers.
func TestFailureWithoutAControlPlane(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ away, back func(j *momentJob) error }{
		"killed": {
			func(j *momentJob) error { j.server.kill(); return nil },
			func(j *momentJob) error { return j.server.start() },
		},
		"stopped": {
			func(j *momentJob) error { return j.server.cmd.Process.Signal(syscall.SIGSTOP) },
			func(j *momentJob) error { return j.server.cmd.Process.Signal(syscall.SIGCONT) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newMomentJob(t, "2:3")
			j.start("n0", "n1", "n2")
			round, _ := j.grown(3, 0)
			j.status(func(r *control.RunStatus) bool { return r.Counts.Running == 3 })
			testkit.Check(t, c.away(j))
			j.fail(round, "n1")
			j.await("n1", "could not be told yet")
			testkit.Check(t, c.back(j))
			if _, restarts := j.grown(2, round); restarts != 0 {
				t.Errorf("it has cost %d restarts", restarts)
			}
			j.status(func(r *control.RunStatus) bool {
				return len(r.Drained) == 1 && r.Drained[0].Node == "host-n1" && r.Drained[0].Cause == "failures"
			})
			j.end(map[string]int{"n0": 0, "n1": 94, "n2": 0})
			j.await("n1", "this node leaves the run and is kept out for ")
		})
	}
}

// TestLeavesByItsOwnName: where another node of the job is on the host, as its name says, the id of
// the node is kept out, and the other one stays.
func TestLeavesByItsOwnName(t *testing.T) {
	t.Parallel()
	for name, names := range map[string][]string{
		"two agents on a host":                {"n0", "n1@h", "n2@h"},
		"containers that are all named alike": {"n0@localhost", "n1@localhost", "n2@localhost"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newMomentJob(t, "2:3")
			j.start(names...)
			round, _ := j.grown(3, 0)
			j.fail(round, "n1")
			j.grown(2, round)
			j.expect("n1", 94)
			j.status(func(r *control.RunStatus) bool {
				return len(r.Drained) == 1 && r.Drained[0].Node == "n1" && r.Counts.Running == 2
			})
			left := j.nodes["n1"]
			j.start(names[1])
			j.expect("n1", 94)
			j.await("n1", "left it as unfit")
			j.nodes["n1"] = left
			j.end(map[string]int{"n0": 0, "n2": 0})
		})
	}
}

// TestRankZeroLeaves: the spare has rank 0, and with it the store of the next round.
func TestRankZeroLeaves(t *testing.T) {
	t.Parallel()
	j := newMomentJob(t, "3")
	j.start("n0", "n1", "n2")
	round, _ := j.grown(3, 0)
	j.start("n3")
	bad := ""
	j.status(func(r *control.RunStatus) bool {
		if len(r.Members) == 3 {
			bad = r.Members[0].Node
		}
		return bad != "" && waits(r, "n3")
	})
	j.fail(round, "0")
	j.grown(3, round)
	j.status(func(r *control.RunStatus) bool {
		return len(r.Members) == 3 && r.Members[0].Node == "n3" && r.Drained[0].Node == "host-"+bad
	})
	codes := map[string]int{"n0": 0, "n1": 0, "n2": 0, "n3": 0}
	codes[bad] = 94
	j.end(codes)
}

// TestFailureBesideADirective: a node leaves while the others are asked to save, and are asked again
// in the next round.
func TestFailureBesideADirective(t *testing.T) {
	t.Parallel()
	j := newMomentJob(t, "2:3")
	j.start("n0", "n1", "n2")
	round, _ := j.grown(3, 0)
	if code, text, stderr := execute(t, "admin", "save", j.server.addr, "--rdzv-id", "job", "--within", "1h", "--reason", "why"); code != 0 {
		t.Fatalf("%d, %q, %q", code, text, stderr)
	}
	j.status(func(r *control.RunStatus) bool {
		return len(r.Directives) == 1 && r.Directives[0].Round == uint64(round)
	})
	j.fail(round, "n1")
	next, _ := j.grown(2, round)
	j.status(func(r *control.RunStatus) bool {
		return len(r.Drained) == 1 && r.Drained[0].Cause == "failures" && len(r.Directives) == 1 && r.Directives[0].Round == uint64(next)
	})
	j.end(map[string]int{"n0": 0, "n1": 94, "n2": 0})
}

// TestFailureOfAFinishingJob: once a node has finished none leaves as unfit, and the job fails as
// without the policy.
func TestFailureOfAFinishingJob(t *testing.T) {
	t.Parallel()
	j := newMomentJob(t, "2:3")
	j.start("n0", "n1", "n2")
	round, _ := j.grown(3, 0)
	j.tell("done", round, "n0")
	j.status(func(r *control.RunStatus) bool { return r.Counts.Finished == 1 })
	j.fail(round, "n1")
	j.expect("n1", 1)
	j.await("n1", "the job is finishing")
	j.expect("n2", 1)
}

// TestCordonOfAllNodes: a cordon of the only nodes of a job is done. They stay until their round
// ends; then they are refused, and the status says how many nodes are missing, and who is kept out.
func TestCordonOfAllNodes(t *testing.T) {
	t.Parallel()
	j := newMomentJob(t, "2:3", "--on-failure=restart")
	j.start("n0", "n1")
	round, _ := j.grown(2, 0)
	for _, node := range []string{"host-n0", "n1"} {
		code, text, stderr := execute(t, "admin", "cordon", j.server.addr, "--rdzv-id", "job", "--node", node, "--for", "2h", "--reason", "its fans")
		if code != 0 || !strings.Contains(text, "1 node of it runs workers and stays until") {
			t.Errorf("%d, %q, %q", code, text, stderr)
		}
	}
	j.status(func(r *control.RunStatus) bool {
		return len(r.Drained) == 2 && r.Counts.Running == 2 && int(r.Round) == round
	})
	j.start("n2") // it has the others regroup
	j.expect("n0", 0)
	j.expect("n1", 0)
	j.await("n0", "its fans")
	j.status(func(r *control.RunStatus) bool { return waits(r, "n2") && len(r.Waiting) == 1 && r.Missing.Min == 1 })
	if _, text, _ := execute(t, "status", j.server.addr); !strings.Contains(text, "1 of at least 2 nodes are here, 1 more needed") || strings.Count(text, "\nDrained: ") != 2 {
		t.Error(text)
	}
	j.start("n3")
	j.grown(2, round)
	j.end(map[string]int{"n2": 0, "n3": 0})
}

// TestNodeWithAnotherLabel: a node that comes back with the label of another rack leaves a hole in
// its own, which the status names. It is that rack's spare when the hole is filled.
func TestNodeWithAnotherLabel(t *testing.T) {
	t.Parallel()
	j := newMomentJob(t, "4", "--segment=2")
	in := func(rack string, names ...string) {
		options := j.options
		j.options = append(slices.Clone(options), "--topology="+rack)
		j.start(names...)
		j.options = options
	}
	in("rack0", "n0", "n1")
	in("rack1", "n2", "n3")
	round, _ := j.grown(4, 0)
	j.nodes["n3"].kill(t, syscall.SIGKILL)
	j.expect("n3", -int(syscall.SIGKILL))
	in("rack0", "n3")
	j.status(func(r *control.RunStatus) bool {
		return waits(r, "n3") && strings.Contains(r.NotStarted, "rack1 has 1 of 2")
	})
	in("rack1", "n4")
	j.grown(4, round)
	j.status(func(r *control.RunStatus) bool {
		return waits(r, "n3") && len(r.Members) == 4 && slices.ContainsFunc(r.Members, func(m control.MemberStatus) bool { return m.Node == "n4" && m.Topology == "rack1" })
	})
	j.end(map[string]int{"n0": 0, "n1": 0, "n2": 0, "n3": 0, "n4": 0})
}
