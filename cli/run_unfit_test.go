package cli

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"rallypoint/core/control"
)

// TestUnfitNodeStaysOut: a node that has left by its own word, under the name of its host, is kept
// out by the next control plane too: of a server that was killed and started again, and of the
// standby that takes over from a host that was killed. It comes back under another id.
func TestUnfitNodeStaysOut(t *testing.T) {
	for _, durable := range []bool{true, false} {
		t.Run(map[bool]string{true: "server killed", false: "host killed"}[durable], func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			options := elastic(t, "2:4", "--rdzv-id=job", "--max-restarts=3", "--on-failure=leave:1")
			var server *serverProcess
			at := strings.TrimPrefix(options[1], "--rdzv-endpoint=")
			if durable {
				server = &serverProcess{args: []string{"serve", "--listen", fmt.Sprintf("127.0.0.1:%d", quietPort(t)), "--data-dir", h.dir + "/data", "--log-level", "warn"}}
				if err := server.start(); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { server.kill() })
				at, options[1] = server.addr, "--rdzv-endpoint="+server.addr
			}
			node := func(script, host, id string) *nodeProcess {
				with := append([]string{}, options...)
				with[2] += ",host_name=" + host + ",node_id=" + id
				return h.run(script, with...)
			}
			nodes := []*nodeProcess{node(printPlacement, "h0", "n0")}
			awaitRun(t, at, func(r *control.RunStatus) bool { return len(r.Waiting) == 1 })
			nodes = append(nodes, node(printPlacement, "h1", "n1"))
			h.readRound(2)
			nodes = append(nodes, node(printPlacement, "h2", "n2"))
			h.readRound(3)
			bad := node(strings.Replace(printPlacement, "until [ -e finish ]; do sleep 0.2; done; exit 0", "sleep 0.2; exit 13", 1), "bad-host", "n3")
			bad.expect(t, 94)
			h.readRound(3)
			left := nodes
			if durable {
				server.kill()
				if err := server.start(); err != nil {
					t.Fatal(err)
				}
			} else {
				nodes[0].kill(t, syscall.SIGKILL)
				nodes[0].expect(t, -int(syscall.SIGKILL))
				h.readRound(2)
				left = nodes[1:]
			}
			again := node(printPlacement, "bad-host", "another")
			again.expect(t, 94)
			if text := again.stderr.String(); !strings.Contains(text, "node n3 left it as unfit: worker of rank ") {
				t.Error(text)
			}
			h.finish()
			for _, n := range left {
				n.expect(t, 0)
			}
		})
	}
}
