package cli

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"rallypoint/core/control"
	"rallypoint/internal/testkit"
)

// servedJob is a job of two nodes on the last two of five machines, and three servers of one list on the others.
type servedJob struct {
	*harness
	net     *network
	list    string
	durable bool // each server has a data directory
	servers [3]*exec.Cmd
	nodes   []*nodeProcess
}

func newServedJob(t *testing.T, durable bool) *servedJob {
	j := &servedJob{harness: newHarness(t), net: newNetwork(t, 5), durable: durable}
	j.list = address(1) + ":29400," + address(2) + ":29400," + address(3) + ":29400"
	for m := 1; m <= 3; m++ {
		j.serve(m)
	}
	j.leads(0)
	for m := 4; m <= 5; m++ {
		p := j.command(`echo start > $SAY; while [ ! -e stop ]; do sleep 0.1; done`,
			"--nnodes=2", "--rdzv-id=job", "--rdzv-endpoint="+j.list, "--max-restarts=3", "--rdzv-conf=lease_timeout=4")
		p.Cmd = j.net.on(m, p.Cmd)
		testkit.Check(t, p.Start())
		t.Cleanup(func() { _ = p.Process.Kill(); _ = p.Wait() }) // if the test has failed
		j.nodes = append(j.nodes, p)
	}
	for range j.nodes {
		if line := j.readLine(); line != "start" {
			t.Fatal(line)
		}
	}
	return j
}

// serve starts the server of a machine.
func (j *servedJob) serve(m int) {
	log, err := os.OpenFile(j.dir+"/serve"+address(m), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	testkit.Check(j.t, err)
	args := []string{"serve", "--listen", "0.0.0.0:29400", "--peers", j.list, "--election-timeout", "1s"}
	if j.durable {
		args = append(args, "--data-dir", j.dir+"/data"+address(m))
	}
	serve := exec.Command(os.Args[0], args...)
	serve.Env, serve.Stderr = append(os.Environ(), asCommand+"=1"), log
	serve = j.net.on(m, serve)
	testkit.Check(j.t, serve.Start())
	j.servers[m-1] = serve
	j.t.Cleanup(func() {
		_ = serve.Process.Signal(syscall.SIGTERM)
		_ = serve.Wait()
		if log.Close(); j.t.Failed() && j.servers[m-1] == serve {
			j.t.Logf("%s:\n%s", log.Name(), testkit.ReadFile(j.t, log.Name()))
		}
	})
}

// ask asks a server, or the first of several that answers, on a machine.
func (j *servedJob) ask(machine int, servers string) (st control.Status) {
	status := exec.Command(os.Args[0], "status", "--json", "--timeout", "3s", servers) // a server that knows no leader holds a request for one
	status.Env = append(os.Environ(), asCommand+"=1")
	if out, err := j.net.on(machine, status).Output(); err != nil || json.Unmarshal(out, &st) != nil {
		return control.Status{}
	}
	return st
}

// leads waits until a server leads that has so many nodes, and returns its machine, and the round.
func (j *servedJob) leads(nodes int) (leader int, round uint64) {
	j.t.Helper()
	testkit.Eventually(j.t, fmt.Sprintf("a server leads that has %d nodes", nodes), func() bool {
		st := j.ask(5, j.list)
		if st.Server == nil || st.Server.Succession == nil || st.Server.Succession.Majority == nil || !*st.Server.Succession.Majority {
			return false
		}
		alive := 0
		for _, r := range st.Runs {
			round = r.Round
			for _, m := range r.Members {
				if m.Alive && !m.Reconnecting {
					alive++
				}
			}
		}
		for leader = 1; leader < 3 && !strings.HasPrefix(st.Server.Succession.HostNode, address(leader)+":"); leader++ {
		}
		return alive == nodes
	})
	return leader, round
}

// end ends the job, whose workers have to be those that were started first.
func (j *servedJob) end() {
	j.t.Helper()
	testkit.Check(j.t, os.WriteFile(j.dir+"/stop", nil, 0o600))
	for i, p := range j.nodes {
		if code := p.end(); code != 0 {
			j.t.Errorf("node %d: code %d, %s", i, code, p.stderr.String())
		}
	}
	if _, err := j.pipe.WriteString("end\n"); err != nil {
		j.t.Fatal(err)
	}
	if line := j.readLine(); line != "end" {
		j.t.Errorf("a worker was started again: %q", line)
	}
}

// TestNetworkPeersLeaderIsCutOff: the leader of three servers is cut off from all, in both directions or in one: the
// others elect the next one, and it says that it has no majority. When the network is whole it stands by. No
// worker starts again.
func TestNetworkPeersLeaderIsCutOff(t *testing.T) {
	onlyLong(t)
	t.Parallel()
	for name, way := range map[string]func(n *network, leader int){
		"both":            func(n *network, leader int) { n.cut(leader, 0) },
		"to the leader":   func(n *network, leader int) { n.drop(0, leader) },
		"from the leader": func(n *network, leader int) { n.drop(leader, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newServedJob(t, false)
			first, _ := j.leads(2)
			way(j.net, first)
			second := 0
			testkit.Eventually(t, "another server leads", func() bool { second, _ = j.leads(2); return second != first })
			testkit.Eventually(t, "the one that is cut off has no majority, or has heard who has", func() bool {
				st := j.ask(first, "127.0.0.1:29400")
				return st.Server != nil && (st.Server.Succession.Missing != "" || strings.HasPrefix(st.Server.Succession.HostNode, address(second)+":"))
			})
			j.net.mend()
			testkit.Eventually(t, "it sends on to the one that leads", func() bool {
				st := j.ask(first, "127.0.0.1:29400")
				return st.Server != nil && strings.HasPrefix(st.Server.Succession.HostNode, address(second)+":")
			})
			j.end()
		})
	}
}

// TestNetworkPeersPowerCycle: a majority of the servers, or all, lose power, and are back. With data directories the
// job goes on in the same round, and no worker starts again; without, so it does where one server has stayed.
func TestNetworkPeersPowerCycle(t *testing.T) {
	onlyLong(t)
	for name, durable := range map[string]bool{"with data directories": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			seeds(t, 0, func(t *testing.T, random *rand.Rand) {
				lost := random.Perm(3)[:2+random.IntN(2)]
				if !durable {
					lost = lost[:2]
				}
				gap, dark, boot := time.Duration(random.IntN(1000))*time.Millisecond, time.Duration(random.IntN(3000))*time.Millisecond, time.Duration(random.IntN(1000))*time.Millisecond
				t.Logf("servers %v; %v between them, %v without power, %v without a server", lost, gap, dark, boot)
				j := newServedJob(t, durable)
				_, before := j.leads(2)
				for _, i := range lost { // what is tested, as all times of this file
					j.net.cut(i+1, 0)
					time.Sleep(gap / time.Duration(len(lost)))
				}
				for _, i := range lost {
					testkit.Check(t, j.servers[i].Process.Kill())
					_ = j.servers[i].Wait()
				}
				time.Sleep(dark)
				j.net.mend()
				time.Sleep(boot)
				for _, i := range lost {
					j.serve(i + 1)
				}
				if _, round := j.leads(2); round != before {
					t.Errorf("round %d follows round %d", round, before)
				}
				j.end()
			})
		})
	}
}
