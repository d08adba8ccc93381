package cli

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"rallypoint/internal/testkit"
)

// printPlacement makes each worker say where it stands and wait for the end of its
// round, or of the job.
const printPlacement = `trap 'exit 0' TERM
	echo "$RALLYPOINT_ROUND $GROUP_WORLD_SIZE $WORLD_SIZE $RANK $MASTER_ADDR:$MASTER_PORT $TORCHELASTIC_RESTART_COUNT $ROLE_NAME:$ROLE_RANK/$ROLE_WORLD_SIZE" > $SAY
	until [ -e finish ]; do sleep 0.2; done; exit 0`

// place is what one said.
type placement struct {
	round, groups, world, rank int
	master                     string
	restarts                   int
	role                       string
}

// readRound reads what workers say until all of one round with that many nodes
// have spoken, and returns them in the order of their ranks. They must all name
// one master.
func (h *harness) readRound(nodes int) []placement {
	h.t.Helper()
	rounds := map[int][]placement{}
	for {
		var p placement
		if _, err := fmt.Sscan(h.readLine(), &p.round, &p.groups, &p.world, &p.rank, &p.master, &p.restarts, &p.role); err != nil {
			h.t.Fatal(err)
		}
		all := append(rounds[p.round], p)
		rounds[p.round] = all
		if all[0].master != p.master || all[0].world != p.world {
			h.t.Errorf("round %d has two masters: %+v", p.round, all)
		}
		if p.groups == nodes && len(all) == p.world {
			slices.SortFunc(all, func(a, b placement) int { return a.rank - b.rank })
			for i, p := range all {
				if p.rank != i {
					h.t.Errorf("ranks of round %d: %+v", p.round, all)
				}
			}
			return all
		}
	}
}

func (h *harness) finish() {
	h.t.Helper()
	if err := syscall.Mkfifo(h.dir+"/finish", 0o600); err != nil { // any existing file
		h.t.Fatal(err)
	}
}

func (n *nodeProcess) expect(t *testing.T, code int) {
	t.Helper()
	if got := n.end(); got != code {
		t.Errorf("exit code %d, expected %d:\n%s", got, code, n.stderr.String())
	}
}

// elastic are the options of a job of up to four nodes.
func elastic(t *testing.T, nnodes string, more ...string) []string {
	return append([]string{"--nnodes=" + nnodes, "--rdzv-endpoint=127.0.0.1:" + strconv.Itoa(testkit.FreePort(t)),
		"--rdzv-conf=last_call_timeout=0.1,admit_delay=0.1,lease_timeout=1.5,reconnect_grace=0.3"}, more...)
}

// TestJoins lets one node after another join a running job: each time the job
// regroups, with a new master that is the same for all, and no restart is counted.
func TestJoins(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	options := elastic(t, "1:4")
	var nodes []*nodeProcess
	masters := map[string]bool{}
	for n := 1; n <= 4; n++ {
		nodes = append(nodes, h.run(printPlacement, options...))
		all := h.readRound(n)
		if len(all) != n || masters[all[0].master] || all[0].restarts != 0 {
			t.Errorf("%d nodes: %+v, masters before %v", n, all, masters)
		}
		masters[all[0].master] = true
	}
	h.finish()
	for _, p := range nodes {
		p.expect(t, 0)
	}
}

// TestReplacedNode kills a node of two; the other continues alone, and with the one
// that comes in its place.
func TestReplacedNode(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	options := elastic(t, "1:2")
	host := h.run(printPlacement, options...)
	h.readRound(1)
	lost := h.run(printPlacement, options...)
	h.readRound(2)
	if err := lost.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	lost.expect(t, -int(syscall.SIGKILL))
	if all := h.readRound(1); all[0].restarts != 0 {
		t.Errorf("the loss was counted as a restart: %+v", all)
	}
	replacement := h.run(printPlacement, options...)
	h.readRound(2)
	h.finish()
	host.expect(t, 0)
	replacement.expect(t, 0)
}

// TestKilledAgentNeedsNoRestart kills an agent of a job without --max-restarts: the worker of
// the other node fails because its peer is gone, which is not counted; that node regroups
// and finishes.
func TestKilledAgentNeedsNoRestart(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	options := withoutQuorum(elastic(t, "1:2")) // the worker fails before the loss is known: a host that votes proves it at once
	for i := range options {
		options[i] = strings.Replace(options[i], "reconnect_grace=0.3", "reconnect_grace=1.4", 1)
	}
	script := "pid=pid$RALLYPOINT_ROUND.; echo $$ > $pid$GROUP_RANK; " + strings.Replace(printPlacement, "until [", `if [ $GROUP_WORLD_SIZE = 2 ]; then
		peer=$pid$((1 - GROUP_RANK))
		until [ -s $peer ]; do sleep 0.02; done
		while grep -qs . /proc/$(cat $peer)/cmdline; do sleep 0.02; done # which a zombie has not
		exit 3
	fi
	until [`, 1)
	host := h.run(script, options...)
	h.readRound(1)
	lost := h.run(script, options...)
	h.readRound(2)
	lost.kill(t, syscall.SIGKILL)
	lost.expect(t, -int(syscall.SIGKILL))
	if all := h.readRound(1); all[0].restarts != 0 {
		t.Errorf("the loss was counted as a restart: %+v", all)
	}
	h.finish()
	host.expect(t, 0)
	if text := host.stderr.String(); !strings.Contains(text, "it followed from the loss of a node and is not counted") {
		t.Errorf("the worker did not fail, or not with its peer: %s", text)
	}
}

// TestLeavingNode tells the others at once that it leaves.
func TestLeavingNode(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	options := elastic(t, "1:2")
	host := h.run(printPlacement, options...)
	h.readRound(1)
	leaving := h.run(printPlacement, options...)
	h.readRound(2)
	if err := leaving.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	leaving.expect(t, 1)
	h.readRound(1)
	h.finish()
	host.expect(t, 0)
}

// TestSpareNode is not needed and ends well.
func TestSpareNode(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	options := elastic(t, "1:1", "--rdzv-backend=rallypoint")
	needed := h.run(printPlacement, options...)
	h.readRound(1)
	spare := h.run(printPlacement, options...)
	testkit.Eventually(t, "there is a spare node", func() bool {
		return strings.Contains(metrics(options), `rallypoint_nodes{state="spare"} 1`)
	})
	h.finish()
	needed.expect(t, 0)
	spare.expect(t, 0)
}

// TestWarmSpare: a spare imports while it waits, and forks its worker from that template once it
// gets the place of a lost node.
func TestWarmSpare(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	testkit.Check(t, os.MkdirAll(h.dir+"/site-packages", 0o700))
	imports := "import os\nimporter = os.getpid()\nwith open(os.environ['SAY'], 'w') as say: print('imports', os.environ.get('RANK'), importer, file=say)\n"
	testkit.WriteFile(t, h.dir+"/site-packages/lib.py", []byte(imports))
	testkit.WriteFile(t, h.dir+"/train.py", []byte("import lib, os\nwith open(os.environ['SAY'], 'w') as say: print('runs', os.environ['RANK'], lib.importer, lib.importer != os.getpid(), file=say)\n"))
	options := elastic(t, "1:1", "--rdzv-backend=rallypoint")
	server := serve(t, command("serve", "--listen", "127.0.0.1:0")) // it outlives the node that is lost
	options[1] = "--rdzv-endpoint=" + server.addr
	needed := h.run(printPlacement, options...)
	h.readRound(1)
	spare := h.command("", options...)
	spare.Args = append(append(spare.Args[:2:2], options...), "--rdzv-conf=any_command=1", "--warm", "train.py")
	spare.Env = append(spare.Env, "PYTHONPATH="+h.dir+"/site-packages")
	testkit.Check(t, spare.Start())
	template, ok := strings.CutPrefix(h.readLine(), "imports None ")
	if !ok {
		t.Fatalf("the spare's template did not import: %q", template)
	}
	testkit.Eventually(t, "there is a spare node", func() bool {
		return strings.Contains(metrics(options), `rallypoint_nodes{state="spare"} 1`)
	})
	testkit.Check(t, needed.Process.Kill())
	_ = needed.Wait()
	testkit.Equal(t, h.readLine(), "runs 0 "+template+" True")
	spare.expect(t, 0)
	server.end(t)
}

// TestRoles mixes nodes of two roles with 1, 2 and 3 workers.
func TestRoles(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	var nodes []*nodeProcess
	options := elastic(t, "3")
	for i, role := range []string{"ps", "trainer", "trainer"} {
		nodes = append(nodes, h.run(printPlacement, append(options, "--role="+role, "--nproc-per-node="+strconv.Itoa(i+1), "--node-rank="+strconv.Itoa(i))...))
	}
	var roles []string
	for _, p := range h.readRound(3) {
		roles = append(roles, p.role)
	}
	if got, want := strings.Join(roles, " "), "ps:0/1 trainer:0/5 trainer:1/5 trainer:2/5 trainer:3/5 trainer:4/5"; got != want {
		t.Errorf("roles %s", got)
	}
	h.finish()
	for _, p := range nodes {
		p.expect(t, 0)
	}
}

// TestSevenNodes of three roles with different numbers of workers, and of one with
// the same: ranks are complete, in the world, in each role and on each node.
func TestSevenNodes(t *testing.T) {
	t.Parallel()
	for _, nodes := range [][]struct {
		role    string
		workers int
	}{
		{{"master", 1}, {"trainer", 4}, {"trainer", 1}, {"ps", 3}, {"trainer", 2}, {"ps", 1}, {"ps", 2}},
		{{"master", 1}, {"trainer", 2}, {"trainer", 2}, {"ps", 1}, {"trainer", 2}, {"ps", 1}, {"ps", 1}},
	} {
		h := newHarness(t)
		options := elastic(t, "7")
		var processes []*nodeProcess
		var world int
		roleWorld := map[string]int{}
		for i, n := range nodes {
			world += n.workers
			roleWorld[n.role] += n.workers
			processes = append(processes, h.run(printPlacement, append(options, "--role="+n.role, "--nproc-per-node="+strconv.Itoa(n.workers), "--node-rank="+strconv.Itoa(i))...))
		}
		all := h.readRound(7)
		if len(all) != world {
			t.Errorf("%d workers, expected %d", len(all), world)
		}
		next := map[string]int{}
		for _, p := range all {
			role, _, _ := strings.Cut(p.role, ":")
			if want := fmt.Sprintf("%s:%d/%d", role, next[role], roleWorld[role]); p.role != want {
				t.Errorf("rank %d is %s, expected %s", p.rank, p.role, want)
			}
			next[role]++
		}
		h.finish()
		for _, p := range processes {
			p.expect(t, 0)
		}
	}
}

// TestDrift: workers that end at different times succeed, whatever the exit
// barrier's limit.
func TestDrift(t *testing.T) {
	t.Parallel()
	for _, limit := range []string{"0", "0.1", "60"} {
		codes, nodes := twoNodes(t, "[ $RANK = 0 ] && sleep 0.5; exit 0", hostedNodes(t, "--exit-barrier-timeout="+limit))
		for i, p := range nodes {
			if codes[i] != 0 {
				t.Errorf("limit %s, node %d: exit code %d:\n%s", limit, i, codes[i], p.stderr.String())
			}
		}
	}
}

// TestNodesFailTogether: neither waits for the other's exit barrier.
func TestNodesFailTogether(t *testing.T) {
	t.Parallel()
	codes, nodes := twoNodes(t, "exit 3", hostedNodes(t))
	for i, p := range nodes {
		if codes[i] != 1 || !strings.Contains(p.stderr.String(), "FAILED") {
			t.Errorf("node %d: exit code %d:\n%s", i, codes[i], p.stderr.String())
		}
	}
}
