package cli

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"rallypoint/internal/testkit"
)

// TestCheckNet is a job of two machines that know each other by a slow interface, though they have a fast
// one: both are named, with the interface to use. Without a job the command shows what this machine has.
func TestCheckNet(t *testing.T) {
	t.Parallel()
	h, n := newHarness(t), newNetwork(t, 2)
	for _, step := range []string{
		"ip link add eth1 type veth peer name eth1 netns " + n.namespace(2),
		"ip address add 10.78.0.1/24 dev eth1 && ip link set eth1 up",
		"tc qdisc add dev eth0 root tbf rate 20mbit burst 64k latency 50ms",
	} {
		testkit.Check(t, n.shell(1, step))
	}
	testkit.Check(t, n.shell(2, "ip address add 10.78.0.2/24 dev eth1 && ip link set eth1 up && tc qdisc add dev eth0 root tbf rate 20mbit burst 64k latency 50ms"))
	check := func(machine int) *nodeProcess {
		p := h.command(asCommand+"=1 exec "+os.Args[0]+" check net", "--nnodes=2", "--node-rank="+strconv.Itoa(machine-1), "--rdzv-endpoint=10.77.1.1:29400")
		p.Cmd = n.on(machine, p.Cmd)
		testkit.Check(t, p.Start())
		return p
	}
	nodes := []*nodeProcess{check(1), check(2)}
	for _, p := range nodes {
		p.end()
	}
	for i, p := range nodes {
		for machine := 1; machine <= 2; machine++ {
			finding := fmt.Sprintf("advertises 10.77.%d.1 on eth0, ", machine)
			cure := fmt.Sprintf("--local-addr=10.78.0.%d, and its workers with NCCL_SOCKET_IFNAME=eth1", machine)
			if text := p.stdout.String(); !strings.Contains(text, finding) || !strings.Contains(text, cure) {
				t.Errorf("node %d does not name machine %d:\n%s%s", i, machine, text, p.stderr.String())
			}
		}
		if code := p.ProcessState.ExitCode(); code != 1 {
			t.Errorf("node %d: exit code %d", i, code)
		}
	}

	alone := n.on(1, exec.Command(os.Args[0], "check", "net"))
	alone.Env = []string{testkit.EndAtOnce, asCommand + "=1"}
	out, err := alone.Output()
	for _, want := range []string{"interface eth0: MTU 1500, ", "10.78.0.1/24", "route default via 10.77.1.254 dev eth0", "net: fit"} {
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%v, it does not show %q:\n%s", err, want, out)
		}
	}
}
