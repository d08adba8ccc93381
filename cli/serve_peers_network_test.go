package cli

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"rallypoint/core/control"
	"rallypoint/internal/testkit"
)

// TestNetworkPeersLeaderIsCutOff: three servers and two nodes, each on a machine of its own. The leader
// is cut off from all, in both directions or in one: the others elect the next one, and it says
// that it has no majority. When the network is whole it stands by. No worker starts again.
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
			h, n := newHarness(t), newNetwork(t, 5)
			list := address(1) + ":29400," + address(2) + ":29400," + address(3) + ":29400"
			for m := 1; m <= 3; m++ {
				log := testkit.Must(os.Create(h.dir + "/serve" + address(m)))(t)
				serve := exec.Command(os.Args[0], "serve", "--listen", "0.0.0.0:29400", "--peers", list, "--election-timeout", "1s")
				serve.Env, serve.Stderr = append(os.Environ(), asCommand+"=1"), log
				serve = n.on(m, serve)
				testkit.Check(t, serve.Start())
				t.Cleanup(func() {
					_ = serve.Process.Signal(syscall.SIGTERM)
					_ = serve.Wait()
					if log.Close(); t.Failed() {
						t.Logf("%s:\n%s", log.Name(), testkit.ReadFile(t, log.Name()))
					}
				})
			}
			// ask asks a server, or the first of several that answers, on a machine.
			ask := func(machine int, servers string) (st control.Status) {
				status := exec.Command(os.Args[0], "status", "--json", "--timeout", "1s", servers)
				status.Env = append(os.Environ(), asCommand+"=1")
				if out, err := n.on(machine, status).Output(); err != nil || json.Unmarshal(out, &st) != nil {
					return control.Status{}
				}
				return st
			}
			// leads waits until a server leads that has all nodes, and returns its machine.
			leads := func(nodes int) (leader int) {
				t.Helper()
				testkit.Eventually(t, "a server leads", func() bool {
					st := ask(5, list)
					if st.Server == nil || st.Server.Succession == nil || st.Server.Succession.Majority == nil || !*st.Server.Succession.Majority {
						return false
					}
					alive := 0
					for _, r := range st.Runs {
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
				return leader
			}
			leads(0)
			var nodes []*nodeProcess
			for m := 4; m <= 5; m++ {
				p := h.command(`echo start > $SAY; while [ ! -e stop ]; do sleep 0.1; done`,
					"--nnodes=2", "--rdzv-id=job", "--rdzv-endpoint="+list, "--max-restarts=3", "--rdzv-conf=lease_timeout=4")
				p.Cmd = n.on(m, p.Cmd)
				testkit.Check(t, p.Start())
				t.Cleanup(func() { _ = p.Process.Kill(); _ = p.Wait() }) // if the test has failed
				nodes = append(nodes, p)
			}
			for range nodes {
				if line := h.readLine(); line != "start" {
					t.Fatal(line)
				}
			}
			first := leads(2)
			way(n, first)
			second := 0
			testkit.Eventually(t, "another server leads", func() bool { second = leads(2); return second != first })
			testkit.Eventually(t, "the one that is cut off has no majority", func() bool {
				st := ask(first, "127.0.0.1:29400")
				return st.Server != nil && st.Server.Succession.Missing != ""
			})
			n.mend()
			testkit.Eventually(t, "it sends on to the one that leads", func() bool {
				st := ask(first, "127.0.0.1:29400")
				return st.Server != nil && strings.HasPrefix(st.Server.Succession.HostNode, address(second)+":")
			})
			testkit.Check(t, os.WriteFile(h.dir+"/stop", nil, 0o600))
			for i, p := range nodes {
				if code := p.end(); code != 0 {
					t.Errorf("node %d: code %d, %s", i, code, p.stderr.String())
				}
			}
			if _, err := h.pipe.WriteString("end\n"); err != nil {
				t.Fatal(err)
			}
			if line := h.readLine(); line != "end" {
				t.Errorf("a worker was started again: %q", line)
			}
		})
	}
}
