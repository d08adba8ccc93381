package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"rallypoint/core/control"
	"rallypoint/internal/testkit"
)

// phaseJob is a job whose nodes can be silenced at any moment: their processes are stopped, or
// they are cut off in networks of their own.
type phaseJob struct {
	*recordedJob
	lease   time.Duration
	silence func(machines ...int)
	back    func() // all that are silent continue
	add     func() // starts one node more
	run     func(args ...string) (code int, stdout, stderr string)
	addrs   []string // where nodes' control planes listen; the one that hosted last comes first
}

// phaseWorkers end when all may, or their rank may. They copy the directive that they are given.
const phaseWorkers = `trap 'exit 0' TERM
	echo "$RALLYPOINT_ROUND $GROUP_WORLD_SIZE $WORLD_SIZE $RANK $MASTER_ADDR:$MASTER_PORT $TORCHELASTIC_RESTART_COUNT $ROLE_NAME:$ROLE_RANK/$ROLE_WORLD_SIZE" > $SAY
	until [ -e finish -o -e finish.$RANK ]; do
		[ ! -e "$RALLYPOINT_DIRECTIVE_FILE" ] || cp "$RALLYPOINT_DIRECTIVE_FILE" "told.$RALLYPOINT_ROUND.$RANK"
		sleep 0.1
	done`

// newPhaseJob starts a job of so many nodes, with room for one more, and waits until as many voters
// as there can be elect a host.
func newPhaseJob(t *testing.T, way string, nodes int) *phaseJob {
	t.Helper()
	j := &phaseJob{recordedJob: &recordedJob{harness: newHarness(t), workers: phaseWorkers}}
	if way == "stopped" {
		local := &localJob{recordedJob: j.recordedJob, endpoint: "127.0.0.1:" + strconv.Itoa(testkit.FreePort(t)), room: 1}
		local.grow(nodes)
		var stopped []int
		j.lease, j.addrs = silenceLease, []string{local.endpoint}
		j.silence = func(machines ...int) { stopped = append(stopped, machines...); j.signal(syscall.SIGSTOP, machines...) }
		j.back = func() { j.signal(syscall.SIGCONT, stopped...) }
		j.add = func() { local.add("1:" + strconv.Itoa(nodes+1)) }
		j.run = func(args ...string) (int, string, string) { return execute(t, args...) }
	} else {
		spread := &spreadJob{recordedJob: j.recordedJob, net: newNetwork(t, nodes+1), address: address, port: testkit.FreePort(t), conf: ",lease_timeout=3"}
		spread.grow(nodes, nodes+1)
		spread.awaitVoters()
		j.lease = networkLease
		for m := 1; m <= nodes+1; m++ {
			j.addrs = append(j.addrs, address(m)+":"+strconv.Itoa(spread.port))
		}
		j.silence = func(machines ...int) {
			for _, m := range machines {
				spread.net.cut(m, 0)
			}
		}
		j.back = spread.net.mend
		j.add = func() { j.nodes = append(j.nodes, spread.start(nodes+1, "1:"+strconv.Itoa(nodes+1), "0.1")) }
		j.run = func(args ...string) (int, string, string) {
			c := exec.Command(os.Args[0], args...)
			c.Env = append(os.Environ(), asCommand+"=1")
			c = spread.net.on(0, c)
			var stdout, stderr strings.Builder
			c.Stdout, c.Stderr = &stdout, &stderr
			if err := c.Run(); err != nil && c.ProcessState == nil {
				t.Error(err)
			}
			return c.ProcessState.ExitCode(), stdout.String(), stderr.String()
		}
	}
	j.status() // from now on all addresses are known
	return j
}

// status returns the status of the server that hosts with a majority; nil if none is found.
func (j *phaseJob) status() *control.Status {
	for i, addr := range slices.Clone(j.addrs) {
		_, out, _ := j.run("status", "--json", "--timeout", "1s", addr)
		st := &control.Status{}
		if json.Unmarshal([]byte(out), st) != nil || st.Server == nil || st.Server.Succession == nil {
			continue
		}
		s := st.Server.Succession
		for _, n := range s.Standbys {
			if !slices.Contains(j.addrs, n.Address) {
				j.addrs = append(j.addrs, n.Address)
			}
		}
		if s.Role == control.RoleHosting && (s.Majority == nil || *s.Majority) && len(st.Runs) == 1 {
			j.addrs[0], j.addrs[i] = j.addrs[i], j.addrs[0]
			return st
		}
	}
	return nil
}

func (j *phaseJob) awaitRun(what string, wanted func(r *control.RunStatus) bool) (r control.RunStatus) {
	j.t.Helper()
	testkit.Eventually(j.t, what, func() bool {
		if st := j.status(); st != nil {
			if r = st.Runs[0]; wanted(&r) {
				return true
			}
		}
		time.Sleep(j.lease / 20) // a look costs a process
		return false
	})
	return r
}

// settle waits until one server hosts, and all workers run in one round of so many nodes.
func (j *phaseJob) settle(nodes int) control.RunStatus {
	j.t.Helper()
	return j.awaitRun(strconv.Itoa(nodes)+" nodes run", func(r *control.RunStatus) bool {
		return r.Counts.Running == nodes && len(r.Members) == nodes && len(r.Waiting) == 0 &&
			!slices.ContainsFunc(r.Members, func(m control.MemberStatus) bool { return !m.Alive || m.Reconnecting })
	})
}

// awaitMembers waits until all members of the last round are connected to one server that hosts.
func (j *phaseJob) awaitMembers() {
	j.t.Helper()
	j.awaitRun("all members are connected", func(r *control.RunStatus) bool {
		return !slices.ContainsFunc(r.Members, func(m control.MemberStatus) bool { return !m.Alive || m.Reconnecting })
	})
}

// admin asks the server that hosts for something.
func (j *phaseJob) admin(args ...string) {
	j.t.Helper()
	if code, _, stderr := j.run(append([]string{"admin", args[0], j.addrs[0], "--reason=test"}, args[1:]...)...); code != 0 {
		j.t.Fatalf("admin %v: code %d, %s", args, code, stderr)
	}
}

// awaitNext waits until a node other than the first one hosts, and returns its machine.
func (j *phaseJob) awaitNext() (next int) {
	j.t.Helper()
	testkit.Eventually(j.t, "another node hosts", func() bool {
		next = 1 + slices.IndexFunc(j.nodes, func(p *nodeProcess) bool {
			m := 1 + slices.Index(j.nodes, p)
			return m > 1 && j.told(m, "this node hosts now") || j.told(m, wasElected)
		})
		return next > 0
	})
	return next
}

// finished has workers end by their ranks, and waits until the control plane knows it.
func (j *phaseJob) finished(ranks ...int) {
	j.t.Helper()
	for _, rank := range ranks {
		testkit.WriteFile(j.t, filepath.Join(j.dir, "finish."+strconv.Itoa(rank)), nil)
	}
	j.awaitRun(fmt.Sprint(len(ranks), " nodes have finished"), func(r *control.RunStatus) bool { return r.Counts.Finished == len(ranks) })
}

// silentPhases name who falls silent when. Each leaves nodes silent; after runs when these are
// back.
var silentPhases = []struct {
	name   string
	nodes  int
	during func(j *phaseJob)
	after  func(j *phaseJob, silence float64)
}{
	{"the host as a voter is replaced", 5, func(j *phaseJob) {
		j.signal(syscall.SIGKILL, 3)
		j.silence(1)
	}, func(j *phaseJob, _ float64) { j.settle(4); j.end(anyHosts, 3) }},
	{"the host as voters are added", 4, func(j *phaseJob) {
		j.add()
		j.readRound(5)
		j.silence(1)
	}, func(j *phaseJob, _ float64) { j.settle(5); j.end(anyHosts) }},
	{"the first standby as the host dies", 5, func(j *phaseJob) {
		j.signal(syscall.SIGKILL, 1)
		j.silence(2)
	}, func(j *phaseJob, _ float64) { j.settle(4); j.end(anyHosts, 1) }},
	{"the next host as it takes over", 5, func(j *phaseJob) {
		j.signal(syscall.SIGKILL, 1)
		j.silence(j.awaitNext())
	}, func(j *phaseJob, _ float64) { j.settle(4); j.end(anyHosts, 1) }},
	{"who was elected in the place of a silent host", 5, func(j *phaseJob) {
		j.silence(1)
		j.silence(j.awaitNext())
	}, func(j *phaseJob, _ float64) { j.settle(5); j.end(anyHosts) }},
	{"the first standby before a transfer", 5, func(j *phaseJob) {
		j.silence(2)
		j.signal(syscall.SIGTERM, 1)
	}, func(j *phaseJob, _ float64) { j.settle(4); j.end(anyHosts, 1) }},
	{"the next host at a transfer", 5, func(j *phaseJob) {
		j.signal(syscall.SIGTERM, 1)
		j.silence(j.awaitNext())
	}, func(j *phaseJob, _ float64) { j.settle(4); j.end(anyHosts, 1) }},
	{"the host and one that has not answered as nodes agree on a step", 4, func(j *phaseJob) {
		j.silence(4)
		j.admin("save", "--within=10m") // which is known, and not agreed on before node 4 is lost
		j.silence(1)
	}, func(j *phaseJob, _ float64) {
		testkit.Eventually(j.t, "all ranks of a round have the directive", func() bool {
			r, ids := j.settle(4), map[string]bool{} // it may be the round before node 4 is lost
			for _, m := range r.Members {
				text, err := os.ReadFile(filepath.Join(j.dir, fmt.Sprintf("told.%d.%d", r.Round, m.Rank)))
				var d struct{ ID, Kind string }
				if err != nil || json.Unmarshal(text, &d) != nil {
					return false
				}
				if ids[d.ID] = true; d.Kind != "save" || len(ids) > 1 {
					j.t.Errorf("rank %d has %s, others %v", m.Rank, text, ids)
				}
			}
			return true
		})
		j.end(anyHosts)
	}},
	{"the host as a node is drained", 4, func(j *phaseJob) {
		j.admin("drain", "--node="+j.settle(4).Members[3].Node, "--within="+(j.lease/2).String())
		j.silence(1)
	}, func(j *phaseJob, _ float64) { j.settle(3); j.end(anyHosts) }},
	{"the host in the exit barrier", 4, func(j *phaseJob) {
		j.finished(0, 2)
		j.silence(1)
	}, func(j *phaseJob, _ float64) { j.awaitMembers(); j.end(anyHosts) }},
	{"the host before the exit barrier", 4, func(j *phaseJob) {
		j.finished(1, 2)
		j.silence(1)
	}, func(j *phaseJob, silence float64) {
		if silence < 0.9 {
			j.awaitMembers()
			j.end(anyHosts)
			return
		}
		j.finish() // too late, after a lease and the grace of two seconds: the host was lost before it had finished, and the job has failed
		for m, p := range j.nodes[1:] {
			if code := p.end(); m == 2 && silence > 1.5 && code == 0 || m < 2 && code != 0 {
				j.t.Errorf("machine %d: exit code %d", m+2, code)
			}
		}
		j.signal(syscall.SIGKILL, 1) // nobody is left who could tell it that
		j.audit(anyHosts)
	}},
}

// TestNetworkSilenceInPhases: while the job does something of many steps the host, or the node that is
// about to host, is stopped or cut off, for parts of a lease or for some, and continues. All come
// back to one round under one host, and end well; no two hosts have completed rounds.
func TestNetworkSilenceInPhases(t *testing.T) {
	onlyLong(t)
	t.Parallel()
	for _, phase := range silentPhases {
		for _, way := range []string{"stopped", "cut off"} {
			for _, leases := range []float64{0.3, 0.6, 0.9, 1.2, 3} {
				t.Run(fmt.Sprintf("%s/%s/%.1f", phase.name, way, leases), func(t *testing.T) {
					t.Parallel()
					j := newPhaseJob(t, way, phase.nodes)
					phase.during(j)
					time.Sleep(time.Duration(leases * float64(j.lease))) // what is tested
					j.back()
					phase.after(j, leases)
				})
			}
		}
	}
}
