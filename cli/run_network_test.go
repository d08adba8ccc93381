package cli

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"rallypoint/cli/run"
	"rallypoint/core/control"
	"rallypoint/internal/testkit"
)

// spreadJob is a job of one node a machine. The first one hosts, the others stand by in
// their order; each records what it hosts.
type spreadJob struct {
	*harness
	net   *network
	port  int
	nodes []*nodeProcess // of machine 1 and so on
}

func newSpreadJob(t *testing.T, nodes int, settings string) *spreadJob {
	t.Helper()
	j := &spreadJob{harness: newHarness(t), net: newNetwork(t, nodes), port: testkit.FreePort(t)}
	for m := 1; m <= nodes; m++ {
		p := j.command(printPlacement, "--nnodes=1:"+strconv.Itoa(nodes), "--rdzv-endpoint="+address(1)+":"+strconv.Itoa(j.port),
			"--rdzv-conf=last_call_timeout=0.1,admit_delay=0.1,lease_timeout=1.5,reconnect_grace=0.3,record="+j.dir+"/history"+settings)
		p.Cmd = j.net.on(m, p.Cmd)
		log, err := os.Create(j.logOf(m))
		if err != nil {
			t.Fatal(err)
		}
		p.Stderr = log
		t.Cleanup(func() {
			if err := log.Close(); err != nil || t.Failed() {
				t.Logf("machine %d (%v):\n%s", m, err, testkit.ReadFile(t, log.Name()))
			}
		})
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Process.Kill(); _ = p.Wait() }) // if the test has failed
		j.nodes = append(j.nodes, p)
		j.readRound(m)
	}
	for m := 2; m <= nodes; m++ {
		testkit.Eventually(t, "each standby is connected to all others", func() bool { return j.linked(m) == nodes-2 })
	}
	return j
}

// linked returns to how many others a standby is connected.
func (j *spreadJob) linked(machine int) (others int) {
	c := exec.Command(os.Args[0], "status", "--json", address(machine)+":"+strconv.Itoa(j.port))
	c.Env = []string{asCommand + "=1"}
	out, err := j.net.on(machine, c).Output()
	var st control.Status
	if err != nil || json.Unmarshal(out, &st) != nil || st.Server == nil || st.Server.Succession == nil {
		return -1 // it does not listen yet
	}
	for _, s := range st.Server.Succession.Standbys {
		if s.Connected {
			others++
		}
	}
	return others
}

func (j *spreadJob) logOf(machine int) string {
	return filepath.Join(j.dir, "log-"+strconv.Itoa(machine))
}

func (j *spreadJob) told(machine int, text string) bool {
	return strings.Contains(string(testkit.ReadFile(j.t, j.logOf(machine))), text)
}

// await waits until a node has logged a text.
func (j *spreadJob) await(machine int, text string) {
	j.t.Helper()
	testkit.Eventually(j.t, "machine "+strconv.Itoa(machine)+" has said "+strconv.Quote(text), func() bool { return j.told(machine, text) })
}

// awaitTwoRounds waits until two hosts have each a round of their own: of one node, and of
// two. Both may have one number.
func (j *spreadJob) awaitTwoRounds() {
	j.t.Helper()
	for one, two := 0, 0; one == 0 || two < 2; {
		switch fields := strings.Fields(j.readLine()); fields[1] {
		case "1":
			one++
		case "2":
			two++
		}
	}
}

// end finishes the job and checks what its hosts have recorded.
func (j *spreadJob) end(hosts int) {
	j.t.Helper()
	j.finish()
	for m, p := range j.nodes {
		if code := p.end(); code != 0 {
			j.t.Errorf("machine %d: exit code %d", m+1, code)
		}
	}
	histories, err := filepath.Glob(j.dir + "/history*")
	if err != nil {
		j.t.Fatal(err)
	}
	histories = slices.DeleteFunc(histories, func(path string) bool { // of one that has only stood by
		return len(testkit.ReadFile(j.t, path)) == 0
	})
	if len(histories) != hosts {
		j.t.Errorf("%d nodes have hosted, want %d", len(histories), hosts)
	}
	code, stdout, stderr := execute(j.t, append([]string{"audit"}, histories...)...)
	if j.t.Log(stdout); code != run.ExitOK {
		j.t.Errorf("the histories: code %d, %s", code, stderr)
	}
}

// TestNetworkHostIsCutOff: the host's link is dead for longer than two leases, so that all
// give their connections up. The host goes on alone, no standby takes over, and all are in
// one round when the link is back.
func TestNetworkHostIsCutOff(t *testing.T) {
	t.Parallel()
	j := newSpreadJob(t, 3, "")
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

// TestNetworkFirstStandbyIsCutOff: packets between the host and the first standby are
// dropped, or refused in the host's name, so that the standby has all evidence that it
// could gather by itself. The second standby's word holds it up, for longer than a lease.
func TestNetworkFirstStandbyIsCutOff(t *testing.T) {
	for _, how := range []string{"dropped", "refused"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			j := newSpreadJob(t, 3, "")
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
	t.Parallel()
	j := newSpreadJob(t, 3, "")
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
// standbys, while the host lives. That is taken for its death. There are two hosts until the
// firewall is gone: then the old one closes and joins the other's job.
func TestNetworkLies(t *testing.T) {
	t.Parallel()
	j := newSpreadJob(t, 3, "")
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
