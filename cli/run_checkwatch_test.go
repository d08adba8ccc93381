package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"rallypoint/core/control"
	"rallypoint/internal/testkit"
)

// watched starts a node that is examined often, by a check that finds it unfit once there is a file
// bad.NAME.
func (h *harness) watched(name, endpoint, nnodes string, options ...string) *nodeProcess {
	p := h.run(printPlacement, append([]string{"--nnodes=" + nnodes, "--rdzv-endpoint=" + endpoint, "--rdzv-id=job", "--check-every=0.25", "--drain-timeout=1",
		"--check=[ ! -e bad." + name + ` ] || { echo '{"reason": "gpu_xid", "text": "Xid 79"}'; exit 1; }`,
		"--rdzv-conf=last_call_timeout=0.1,admit_delay=0.1,lease_timeout=5,reconnect_grace=1,host_name=host-" + name + ",node_id=" + name}, options...)...)
	h.t.Cleanup(func() {
		if h.t.Failed() {
			_ = p.Process.Kill()
			_ = p.Wait()
			h.t.Logf("%s:\n%s", name, p.stderr.String())
		}
	})
	return p
}

func (h *harness) bad(names ...string) {
	for _, name := range names {
		testkit.WriteFile(h.t, filepath.Join(h.dir, "bad."+name), nil)
	}
}

// awaitRun waits for a status of the only run at an endpoint.
func awaitRun(t *testing.T, endpoint string, wanted func(r *control.RunStatus) bool) {
	t.Helper()
	var data string
	defer func() {
		if t.Failed() {
			t.Log(data)
		}
	}()
	testkit.Eventually(t, "the status is as wanted", func() bool {
		var st control.Status
		var code int
		code, data, _ = execute(t, "status", "--json", endpoint)
		return code == 0 && json.Unmarshal([]byte(data), &st) == nil && len(st.Runs) == 1 && wanted(&st.Runs[0])
	})
}

// TestCheckBesideWorkers: a check that turns bad on a running node drains it, once its workers have
// had their time, and keeps its host out; a spare that turns bad leaves by itself.
func TestCheckBesideWorkers(t *testing.T) {
	t.Parallel()
	for name, endpoint := range map[string]func(t *testing.T) string{
		"served":    func(t *testing.T) string { return serve(t, command("serve", "--listen", "127.0.0.1:0")).addr },
		"directory": func(t *testing.T) string { return "file://" + t.TempDir() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, at := newHarness(t), endpoint(t)
			nodes := []*nodeProcess{h.watched("n0", at, "2:3"), h.watched("n1", at, "2:3"), h.watched("n2", at, "2:3")}
			h.readRound(3)
			spares := []*nodeProcess{h.watched("n3", at, "2:3"), h.watched("n4", at, "2:3")}
			awaitRun(t, at, func(r *control.RunStatus) bool { return len(r.Waiting) == 2 })
			h.bad("n4")
			spares[1].expect(t, 94)
			if text := spares[1].stderr.String(); !strings.Contains(text, "is not fit to run workers: gpu_xid: Xid 79; it stays out of the job until it is started again") {
				t.Error(text)
			}
			h.bad("n1")
			nodes[1].expect(t, 94)
			if text := nodes[1].stderr.String(); !strings.Contains(text, "is not fit to run workers: gpu_xid: Xid 79; it is kept out of the job for 1h0m0s") {
				t.Error(text)
			}
			h.readRound(3)
			awaitRun(t, at, func(r *control.RunStatus) bool {
				return len(r.Drained) == 1 && r.Drained[0].Node == "host-n1" && r.Drained[0].Cause == "check" && r.Drained[0].Reason == "gpu_xid: Xid 79"
			})
			testkit.Check(t, os.Remove(filepath.Join(h.dir, "bad.n1")))
			again := h.watched("n1", at, "2:3")
			again.expect(t, 94)
			if text := again.stderr.String(); !strings.Contains(text, "left it as unfit: gpu_xid: Xid 79") {
				t.Error(text)
			}
			h.finish()
			for _, n := range []*nodeProcess{nodes[0], nodes[2], spares[0]} {
				n.expect(t, 0)
			}
		})
	}
}

// TestWrongCheck: a check that turns bad on all running nodes takes out the share of one; the others
// continue, and the status shows the result of the check for each until the check passes again.
func TestWrongCheck(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	at := serve(t, command("serve", "--listen", "127.0.0.1:0")).addr
	nodes := map[string]*nodeProcess{}
	var names []string
	for i := range 4 {
		name := fmt.Sprintf("n%d", i)
		names = append(names, name)
		nodes[name] = h.watched(name, at, "2:4")
	}
	h.readRound(4)
	h.bad(names...)
	h.readRound(3)
	suspects := func(want int) {
		t.Helper()
		awaitRun(t, at, func(r *control.RunStatus) bool {
			n := 0
			for _, m := range r.Members {
				if m.Suspect != "" {
					n++
					if !strings.HasPrefix(m.Suspect, "gpu_xid: Xid 79 (it stays: ") || !strings.Contains(m.Suspect, "1 of at most 1 nodes are out at their own request already") {
						t.Errorf("%q", m.Suspect)
					}
				}
			}
			return n == want && len(r.Members) == 3 && len(r.Drained) == 1
		})
	}
	suspects(3)
	if _, text, _ := execute(t, "status", at); strings.Count(text, "\nSuspect: n") != 3 {
		t.Error(text)
	}
	for _, name := range names {
		testkit.Check(t, os.Remove(filepath.Join(h.dir, "bad."+name)))
	}
	suspects(0)
	h.finish()
	codes := map[int]int{}
	for _, n := range nodes {
		codes[n.end()]++
	}
	if codes[94] != 1 || codes[0] != 3 {
		t.Errorf("exit codes: %v", codes)
	}
}

// TestCheckWhileTheJobRegroups: a member that waits for another one to be replaced asks to leave, as
// one whose workers run, and stays when that is refused.
func TestCheckWhileTheJobRegroups(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	at := serve(t, command("serve", "--listen", "127.0.0.1:0")).addr
	nodes := []*nodeProcess{h.watched("n0", at, "2:2", "--check=echo >> checks"), h.watched("n1", at, "2:2")}
	h.readRound(2)
	testkit.Check(t, nodes[1].Process.Kill())
	nodes[1].expect(t, -int(syscall.SIGKILL))
	awaitRun(t, at, func(r *control.RunStatus) bool { return len(r.Waiting) == 1 })
	h.bad("n0")
	before := len(testkit.ReadFile(t, filepath.Join(h.dir, "checks")))
	testkit.Eventually(t, "several checks have found the node unfit", func() bool {
		return len(testkit.ReadFile(t, filepath.Join(h.dir, "checks"))) > before+4
	})
	again := h.watched("n2", at, "2:2")
	h.readRound(2)
	h.finish()
	nodes[0].expect(t, 0)
	again.expect(t, 0)
	if text := nodes[0].stderr.String(); !strings.Contains(text, "this node is not fit, but stays in the run: gpu_xid: Xid 79") || !strings.Contains(text, "1 would be left") && !strings.Contains(text, "0 would be left") {
		t.Error(text)
	}
}

// TestCheckBesideLeavesNothing: what a check beside the workers has started ends with it, and the
// worker does not.
func TestCheckBesideLeavesNothing(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	p := h.run("echo worker > $SAY; sleep 1000", elastic(t, "1", "--check-every=0.1", "--check-timeout=0.5",
		"--check=[ $RALLYPOINT_CHECK = join ] || { setsid sh -c 'echo $$ > $SAY; exec sleep 1000' & exec sleep 1000; }")...)
	var checks []string
	for worker := false; !worker || len(checks) < 2; { // either may come first
		if line := h.readLine(); line == "worker" {
			worker = true
		} else {
			checks = append(checks, line)
		}
	}
	testkit.Eventually(t, "what the first check started has ended", func() bool { return !alive(atoi(t, checks[0])) })
	p.kill(t, 15)
	p.expect(t, 1)
	if text := p.stderr.String(); !strings.Contains(text, "it had not ended after 500ms") || slices.ContainsFunc(checks, func(pid string) bool { return alive(atoi(t, pid)) }) {
		t.Error(text)
	}
}

func atoi(t *testing.T, text string) int {
	t.Helper()
	return testkit.Must(strconv.Atoi(text))(t)
}
