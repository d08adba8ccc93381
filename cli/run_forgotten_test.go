package cli

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"rallypoint/internal/testkit"
)

// TestNetworkForgetsConnections has the router forget all connections from a node to the control plane, as a
// firewall that has lost its table does; new ones work. The node is not lost, and no worker starts
// again, whether a server, three servers or a node hosts.
func TestNetworkForgetsConnections(t *testing.T) {
	onlyLong(t)
	t.Parallel()
	const node = 3 // its machine
	for _, c := range []struct {
		name     string
		servers  int
		up, down bool // what vanishes: what the node sends, what it is sent
	}{
		{"a server", 1, true, true},
		{"a server, what the node sends", 1, true, false},
		{"a server, what it is sent", 1, false, true},
		{"three servers", 3, true, true},
		{"a node", 0, true, true},
	} {
		servers := c.servers
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h, n := newHarness(t), newNetwork(t, 3)
			var list []string
			for m := 1; m <= max(servers, 1); m++ {
				list = append(list, address(m)+":29400")
			}
			for m := 1; m <= servers; m++ {
				serve := exec.Command(os.Args[0], "serve", "--listen", "0.0.0.0:29400")
				if servers > 1 {
					serve.Args = append(serve.Args, "--peers", strings.Join(list, ","), "--election-timeout", "1s")
				}
				serve.Env = append(os.Environ(), asCommand+"=1")
				serve = n.on(m, serve)
				testkit.Check(t, serve.Start())
				t.Cleanup(func() {
					_ = serve.Process.Signal(syscall.SIGTERM)
					_ = serve.Wait()
				})
			}
			var nodes []*nodeProcess
			for m := 1; m <= 3; m++ {
				p := h.command(`echo start > $SAY; while [ ! -e stop ]; do sleep 0.1; done`,
					"--nnodes=3", "--rdzv-id=job", "--rdzv-endpoint="+strings.Join(list, ","), "--max-restarts=3", "--rdzv-conf=lease_timeout=5")
				p.Cmd = n.on(m, p.Cmd)
				log := testkit.Must(os.Create(fmt.Sprintf("%s/log%d", h.dir, m)))(t)
				p.Cmd.Stderr = log
				testkit.Check(t, p.Start())
				t.Cleanup(func() { _ = p.Process.Kill(); _ = p.Wait(); _ = log.Close() }) // if the test has failed
				nodes = append(nodes, p)
			}
			for range nodes {
				if line := h.readLine(); line != "start" {
					t.Fatal(line)
				}
			}
			connections, err := n.on(node, exec.Command("ss", "-tnH", "state", "established")).Output()
			if err != nil {
				missing(t, "no list of connections: %v", err)
			}
			forgotten := 0
			for line := range strings.Lines(string(connections)) {
				fields := strings.Fields(line) // queues, own address, the peer's
				if len(fields) < 4 || !strings.HasSuffix(fields[3], ":29400") {
					continue
				}
				port := fields[2][strings.LastIndexByte(fields[2], ':')+1:]
				if c.up {
					n.rule("pref 100 ipproto tcp sport " + port + " dport 29400 blackhole")
				}
				if c.down {
					n.rule("pref 100 ipproto tcp sport 29400 dport " + port + " blackhole")
				}
				forgotten++
			}
			if forgotten == 0 {
				t.Fatalf("no connection in %s", connections)
			}
			testkit.Eventually(t, "the node has a second connection", func() bool {
				return strings.Contains(string(testkit.ReadFile(t, fmt.Sprintf("%s/log%d", h.dir, node))), "a second one was answered")
			})
			testkit.Check(t, os.WriteFile(h.dir+"/stop", nil, 0o600))
			for i, p := range nodes {
				if code := p.end(); code != 0 {
					t.Errorf("node %d: code %d, %s", i+1, code, testkit.ReadFile(t, fmt.Sprintf("%s/log%d", h.dir, i+1)))
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
