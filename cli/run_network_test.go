package cli

import (
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"rallypoint/core/control"
	"rallypoint/internal/testkit"
)

// spreadJob is a job of one node a machine. The first one hosts, the others stand by in
// their order; each records what it hosts.
type spreadJob struct {
	*recordedJob
	net     *network
	address func(machine int) string // address or address6
	port    int
	conf    string // of --rdzv-conf, after the job's own, with $NODE for the node's number
	options []string
}

// newSpreadJob starts a job of so many nodes in a network that has more machines, perhaps.
func newSpreadJob(t *testing.T, nodes, machines int) *spreadJob {
	t.Helper()
	return newSpreadJobAt(t, address, "", nodes, machines)
}

func newSpreadJobAt(t *testing.T, address func(machine int) string, conf string, nodes, machines int) *spreadJob {
	t.Helper()
	j := &spreadJob{recordedJob: &recordedJob{harness: newHarness(t)}, net: newNetwork(t, machines), address: address, port: testkit.FreePort(t), conf: conf}
	j.grow(nodes, machines)
	return j
}

// grow starts the nodes of the job one after the other.
func (sj *spreadJob) grow(nodes, machines int) {
	j, t := sj, sj.t
	t.Helper()
	j.endpointIs(1)
	for m := 1; m <= nodes; m++ {
		j.nodes = append(j.nodes, j.start(m, "1:"+strconv.Itoa(machines), "0.1"))
		j.readRound(m)
	}
	for m := 2; m <= nodes; m++ {
		testkit.Eventually(t, "each standby is connected to all others", func() bool { return j.linked(m) == nodes-2 })
	}
}

// The endpoint is a name. All machines have one file for what it resolves to.
const endpointName = "host0.job"

// endpointIs makes the endpoint's name resolve to a machine.
func (sj *spreadJob) endpointIs(machine int) {
	testkit.WriteFile(sj.t, sj.dir+"/hosts", []byte("127.0.0.1 localhost\n"+sj.address(machine)+" "+endpointName+"\n"))
}

// start starts a machine's node.
func (sj *spreadJob) start(machine int, nnodes, lastCall string) *nodeProcess {
	sj.t.Helper()
	return sj.startBeside(machine, machine, nnodes, lastCall)
}

// startBeside is start, perhaps of one more node on the machine; its log, and $NODE of its workers, have a number
// of its own.
func (sj *spreadJob) startBeside(number, machine int, nnodes, lastCall string) *nodeProcess {
	t := sj.t
	t.Helper()
	p := sj.command(sj.script(), append(sj.options, "--nnodes="+nnodes, "--rdzv-endpoint="+endpointName+":"+strconv.Itoa(sj.port),
		"--rdzv-conf=last_call_timeout="+lastCall+",admit_delay=0.1,lease_timeout=1.5,reconnect_grace=0.3,record="+sj.dir+"/history"+strings.ReplaceAll(sj.conf, "$NODE", strconv.Itoa(number)))...)
	bootID := fmt.Sprintf("%s/boot_id-%d", sj.dir, machine)
	testkit.WriteFile(t, bootID, fmt.Appendf(nil, "00000000-0000-4000-8000-%012d\n", machine))
	p.Args = append([]string{"sh", "-c", `mount --bind "$0" /etc/hosts && mount --bind "$1" /proc/sys/kernel/random/boot_id && shift && exec "$@"`, sj.dir + "/hosts", bootID, p.Path}, p.Args[1:]...)
	p.Args = append([]string{"unshare", "--mount"}, p.Args...)
	p.Path = testkit.Must(exec.LookPath("unshare"))(t)
	p.Env = append(p.Env, "NODE="+strconv.Itoa(number))
	p.Cmd = sj.net.on(machine, p.Cmd)
	sj.launch(number, p)
	return p
}

// succession returns what the server of a machine's node says of the group, or nil if it does not answer.
func (sj *spreadJob) succession(machine int) *control.SuccessionStatus {
	return successionOf(sj.harness, sj.addr(machine), sj.from(machine))
}

func (sj *spreadJob) addr(machine int) string {
	return net.JoinHostPort(sj.address(machine), strconv.Itoa(sj.port))
}

// from has a command run on a machine.
func (sj *spreadJob) from(machine int) func(c *exec.Cmd) *exec.Cmd {
	return func(c *exec.Cmd) *exec.Cmd { return sj.net.on(machine, c) }
}

// waiting returns how many nodes wait, as the host on a machine says.
func (sj *spreadJob) waiting(machine int) (nodes int) {
	for _, run := range statusOf(sj.harness, sj.addr(machine), sj.from(machine)).Runs {
		nodes += len(run.Waiting)
	}
	return nodes
}

// linked returns to how many others a standby is connected.
func (sj *spreadJob) linked(machine int) (others int) {
	st := sj.succession(machine)
	if st == nil {
		return -1
	}
	for _, s := range st.Standbys {
		if s.Connected {
			others++
		}
	}
	return others
}

// awaitTwoRounds waits until two hosts have each a round of their own: of one node, and of
// two. Both may have one number.
func (sj *spreadJob) awaitTwoRounds() {
	sj.t.Helper()
	for one, two := 0, 0; one == 0 || two < 2; {
		switch fields := strings.Fields(sj.readLine()); fields[1] {
		case "1":
			one++
		case "2":
			two++
		}
	}
}

// TestNetworkHostIsCutOffWithoutQuorum: the host's link is dead for longer than two leases, so that all
// give their connections up. The host continues alone, no standby takes over, and all are in
// one round when the link is back.
func TestNetworkHostIsCutOffWithoutQuorum(t *testing.T) {
	t.Parallel()
	j := newSpreadJobAt(t, address, ",quorum=0", 3, 3)
	j.net.cut(1, 0)
	j.readRound(1)
	for m := 2; m <= 3; m++ {
		j.await(m, "lost the control plane")
	}
	if long {
		time.Sleep(30 * time.Second) // what is tested, and nothing that is waited for
	}
	j.net.mend()
	j.readRound(3)
	j.end(1)
}

// TestNetworkOneWay: packets between the host and one node get through in one direction alone.
// The others continue without that node, and it is back when the link is whole.
func TestNetworkOneWay(t *testing.T) {
	for name, way := range map[string][2]int{"to the host": {1, 3}, "from the host": {3, 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newSpreadJob(t, 3, 3)
			j.net.drop(way[1], way[0])
			j.readRound(2)
			j.net.mend()
			j.readRound(3)
			j.end(1)
		})
	}
}

// TestNetworkIPv6: the machines have IPv6 addresses for each other alone. The host is killed,
// another node hosts, and the killed one joins that when it is started again.
func TestNetworkIPv6(t *testing.T) {
	t.Parallel()
	j := newSpreadJobAt(t, address6, "", 3, 3)
	j.nodes[0].kill(t, syscall.SIGKILL)
	j.nodes[0].end()
	for m := 2; m <= 3; m++ {
		j.await(m, "hosts now")
	}
	j.readRound(2)
	j.nodes = append(j.nodes[1:], j.start(1, "1:3", "0.1"))
	j.readRound(3)
	j.end(anyHosts)
}

// TestNetworkFirstStandbyIsCutOff: packets between the host and the first standby are
// dropped, or refused in the host's name, so that the standby has all evidence that it
// could gather by itself. The second standby's word holds it up, for longer than a lease.
func TestNetworkFirstStandbyIsCutOff(t *testing.T) {
	onlyLong(t)
	for _, how := range []string{"dropped", "refused"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			j := newSpreadJob(t, 3, 3)
			if how == "dropped" {
				j.net.cut(1, 2)
			} else {
				j.net.refuse(2, 1, j.port, allPorts)
			}
			j.readRound(2)
			j.await(2, "lost the control plane")
			time.Sleep(4 * time.Second) // more than two leases: what is tested
			j.net.mend()
			j.readRound(3)
			j.end(1)
		})
	}
}

// TestNetworkNewConnectionsAreRefused: a firewall refuses new connections to the host and
// lets those that stand pass. Standbys that give theirs up, since the host's process is
// stopped, are refused ever after: that proves nothing.
func TestNetworkNewConnectionsAreRefused(t *testing.T) {
	onlyLong(t)
	t.Parallel()
	j := newSpreadJobAt(t, address, ",quorum=0", 3, 3)
	for m := 2; m <= 3; m++ {
		if err := j.net.connectFrom(m, latePorts); err != nil {
			t.Fatal(err)
		}
	}
	j.net.refuse(0, 1, j.port, latePorts)
	j.nodes[0].kill(t, syscall.SIGSTOP)
	for m := 2; m <= 3; m++ {
		j.await(m, "lost the control plane")
	}
	j.nodes[0].kill(t, syscall.SIGCONT)
	j.readRound(1)              // without the others, who cannot come back
	time.Sleep(4 * time.Second) // more than two leases: what is tested
	j.net.mend()
	j.readRound(3)
	j.end(1)
}

// TestNetworkLies: a firewall ends all connections to the host and refuses new ones, at all
// standbys, while the host lives. That is taken for its death. Where nobody votes there are two hosts until the
// firewall is gone: then the old one closes and joins the other's job.
func TestNetworkLies(t *testing.T) {
	t.Parallel()
	j := newSpreadJobAt(t, address, ",quorum=0", 3, 3)
	j.net.refuse(0, 1, j.port, allPorts)
	j.await(2, "this node hosts now")
	j.awaitTwoRounds()
	mended := time.Now()
	j.net.mend()
	j.await(1, "this process does not host the control plane any more: node ")
	t.Logf("the old host closed %v after the firewall was gone", time.Since(mended).Round(time.Millisecond))
	j.readRound(3)
	j.end(2)
}

// TestNetworkRestartedUnderTheName: the host is killed, and the endpoint's name leads to
// another machine from then on, where a node is started in its place. It joins the job that
// continues elsewhere, and newcomers find that by the name again.
func TestNetworkRestartedUnderTheName(t *testing.T) {
	onlyLong(t)
	t.Parallel()
	j := newSpreadJob(t, 3, 4)
	j.nodes[0].kill(t, syscall.SIGKILL)
	j.nodes[0].end()
	j.readRound(2)
	if long {
		time.Sleep(20 * time.Second) // what is tested, and nothing that is waited for
	}
	j.endpointIs(4)
	again := j.start(4, "1:4", "30") // Go's resolver looks at the file each 5 s
	j.readRound(3)
	if j.told(4, "round 1 is complete") {
		t.Error("the node at the endpoint began a job of its own")
	}
	newcomer := j.start(1, "1:4", "0.1")
	j.readRound(4)
	j.nodes = append(j.nodes[1:], again, newcomer)
	j.end(anyHosts)
}
