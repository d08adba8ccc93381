package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
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
	"rallypoint/core/control/client"
	"rallypoint/core/params"
	"rallypoint/core/secret"
	"rallypoint/core/succession"
	"rallypoint/internal/testkit"
)

// recordedJob is a job of one node a machine. The first one hosts, the others stand by in their
// order; each writes a log of its own and records what it hosts.
type recordedJob struct {
	*harness
	nodes   []*nodeProcess // of machine 1 and so on
	workers string         // their script; "": printPlacement
}

func (rj *recordedJob) script() string { return cmp.Or(rj.workers, printPlacement) }

// launch starts a machine's node, whose log has the machine's name.
func (rj *recordedJob) launch(machine int, p *nodeProcess) {
	t := rj.t
	t.Helper()
	log := testkit.Must(os.OpenFile(rj.logOf(machine), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600))(t)
	p.Stderr = log
	t.Cleanup(func() {
		if err := log.Close(); err != nil || t.Failed() {
			t.Logf("machine %d (%v):\n%s", machine, err, testkit.ReadFile(t, log.Name()))
		}
	})
	testkit.Check(t, p.Start())
	t.Cleanup(func() { _ = p.Process.Kill(); _ = p.Wait() }) // if the test has failed
}

func (rj *recordedJob) logOf(machine int) string {
	return filepath.Join(rj.dir, "log-"+strconv.Itoa(machine))
}

func (rj *recordedJob) told(machine int, text string) bool {
	return strings.Contains(string(testkit.ReadFile(rj.t, rj.logOf(machine))), text)
}

// await waits until a node has logged a text.
func (rj *recordedJob) await(machine int, text string) {
	rj.t.Helper()
	testkit.Eventually(rj.t, "machine "+strconv.Itoa(machine)+" has said "+strconv.Quote(text), func() bool { return rj.told(machine, text) })
}

// signal sends machines' nodes a signal.
func (rj *recordedJob) signal(sig syscall.Signal, machines ...int) {
	rj.t.Helper()
	for _, m := range machines {
		rj.nodes[m-1].kill(rj.t, sig)
	}
}

// end finishes the job and checks what its hosts have recorded, one that has founded a group and
// stepped down included. The nodes of these machines were killed, or end with an error.
func (rj *recordedJob) end(hosts int, failed ...int) {
	rj.t.Helper()
	rj.finish()
	rj.ended(hosts, failed...)
}

// anyHosts does not count them: a node that is started again founds a group and steps down, or
// learns first that another node hosts.
const anyHosts = -1

// ended is end where the workers end by themselves.
func (rj *recordedJob) ended(hosts int, failed ...int) {
	rj.t.Helper()
	for m, p := range rj.nodes {
		if code := p.end(); (code != 0) != slices.Contains(failed, m+1) {
			rj.t.Errorf("machine %d: exit code %d", m+1, code)
		}
	}
	rj.audit(hosts)
}

// audit checks what hosts have recorded.
func (rj *recordedJob) audit(hosts int) {
	rj.t.Helper()
	histories, err := filepath.Glob(rj.dir + "/history*")
	if err != nil {
		rj.t.Fatal(err)
	}
	histories = slices.DeleteFunc(histories, func(path string) bool { // of one that has only stood by
		return len(testkit.ReadFile(rj.t, path)) == 0
	})
	if len(histories) != hosts && hosts != anyHosts {
		rj.t.Errorf("%d nodes have hosted, want %d", len(histories), hosts)
	}
	auditHistory(rj.t, histories...)
}

// started returns how many workers have said where they stand since the last look. It is
// for the end, when all that was said is in the pipe.
func (rj *recordedJob) started() (workers int) {
	rj.t.Helper()
	if _, err := rj.pipe.WriteString("end\n"); err != nil {
		rj.t.Fatal(err)
	}
	for rj.readLine() != "end" {
		workers++
	}
	return workers
}

// localJob is a recordedJob on this machine. Its lease is long enough for a loaded machine to
// do within a part of it what a test waits for.
type localJob struct {
	*recordedJob
	endpoint string
	options  []string
	conf     string // more of --rdzv-conf
	room     int    // for so many nodes more than it begins with
}

const silenceLease = 4 * time.Second

// onlyLong skips a test of several leases but in make test-long.
func onlyLong(t *testing.T) {
	t.Helper()
	if !long {
		t.Skip("it waits for several leases: make test-long runs it")
	}
}

// newLocalJob starts a job of so many nodes, and waits until as many voters as there can be
// elect a host if it falls silent.
func newLocalJob(t *testing.T, nodes int, options ...string) *localJob {
	t.Helper()
	j := &localJob{recordedJob: &recordedJob{harness: newHarness(t)}, endpoint: "127.0.0.1:" + strconv.Itoa(testkit.FreePort(t)), options: options}
	j.grow(nodes)
	return j
}

// grow starts the nodes of the job one after the other.
func (lj *localJob) grow(nodes int) {
	lj.t.Helper()
	for m := 1; m <= nodes; m++ {
		lj.add("1:" + strconv.Itoa(nodes+lj.room))
		lj.readRound(m)
	}
	voters := 0
	switch {
	case strings.Contains(lj.conf, "quorum=0"):
	case nodes > 4:
		voters = 4
	case nodes > 2:
		voters = 2
	}
	lj.awaitVoters(voters)
}

// add starts one node more.
func (lj *localJob) add(nnodes string, options ...string) *nodeProcess {
	lj.t.Helper()
	args := append([]string{"--nnodes=" + nnodes, "--rdzv-endpoint=" + lj.endpoint,
		"--rdzv-conf=last_call_timeout=0.1,admit_delay=0.1,reconnect_grace=0.3,lease_timeout=" + strconv.FormatFloat(silenceLease.Seconds(), 'g', -1, 64) +
			",record=" + lj.dir + "/history" + lj.conf}, lj.options...)
	p := lj.command(lj.script(), append(args, options...)...)
	lj.nodes = append(lj.nodes, p)
	lj.launch(len(lj.nodes), p)
	return p
}

// awaitVoters waits until the host hears so many voters, and each standby is connected to those
// before it.
func (lj *localJob) awaitVoters(voters int) {
	t := lj.t
	t.Helper()
	var standbys []control.StandbyStatus
	testkit.Eventually(t, strconv.Itoa(voters)+" nodes vote", func() bool {
		s := lj.succession(lj.endpoint)
		if s == nil || len(s.Voters) != voters || len(s.Standbys) != min(len(lj.nodes)-1, succession.MaxStandbys) {
			return false
		}
		standbys = s.Standbys
		return !slices.ContainsFunc(s.Voters, func(v control.VoterStatus) bool { return !v.Reachable })
	})
	for _, s := range standbys {
		testkit.Eventually(t, "each standby is connected to all others", func() bool {
			own := lj.succession(s.Address)
			return own != nil && len(own.Voters) == voters && !slices.ContainsFunc(own.Standbys, func(o control.StandbyStatus) bool {
				return !o.Connected && o.Node != s.Node
			})
		})
	}
}

// succession returns what the server at an address says of the group, or nil if it does not answer.
func (lj *localJob) succession(addr string) *control.SuccessionStatus {
	return successionOf(lj.harness, addr, func(c *exec.Cmd) *exec.Cmd { return c })
}

// asGet makes this test binary print the page at a URL, in the network of the process and with its job's token.
const asGet = "RALLYPOINT_TEST_AS_GET"

func init() {
	url := os.Getenv(asGet)
	if url == "" {
		return
	}
	var token *secret.Token
	var err error
	if file := os.Getenv("RALLYPOINT_TOKEN_FILE"); file != "" {
		token, err = secret.OpenToken(file, nil)
	}
	dial := func(ctx context.Context, _, addr string) (net.Conn, error) { return client.DialHTTP(ctx, addr, token) }
	var resp *http.Response
	if err == nil {
		resp, err = (&http.Client{Timeout: testkit.Patience, Transport: &http.Transport{DialContext: dial}}).Get(url)
	}
	if err == nil {
		_, err = io.Copy(os.Stdout, resp.Body)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// successionOf returns what the server at an address knows itself of the group, or nil if it does not answer.
func successionOf(h *harness, addr string, on func(c *exec.Cmd) *exec.Cmd) *control.SuccessionStatus {
	if st := statusOf(h, addr, on); st.Server != nil {
		return st.Server.Succession
	}
	return nil
}

// statusOf is what the server at an address knows itself; without a server if it does not listen yet.
func statusOf(h *harness, addr string, on func(c *exec.Cmd) *exec.Cmd) (st control.Status) {
	c := exec.Command(os.Args[0])
	c.Env = append([]string{asGet + "=http://" + addr + "/status?here=1"}, h.env...)
	if out, err := on(c).Output(); err != nil || json.Unmarshal(out, &st) != nil {
		return control.Status{}
	}
	return st
}

// What a node says that was elected, and one whose host is another now.
const (
	wasElected    = "this node was elected and hosts now"
	hostsNoLonger = "this process does not host the control plane any more"
)

// awaitElected waits until one of the machines' nodes was elected, and returns its machine.
func (rj *recordedJob) awaitElected(machines ...int) (elected int) {
	rj.t.Helper()
	testkit.Eventually(rj.t, "another node is elected", func() bool {
		i := slices.IndexFunc(machines, func(m int) bool { return rj.told(m, wasElected) })
		if i >= 0 {
			elected = machines[i]
		}
		return i >= 0
	})
	return elected
}

// lastElected returns the machine whose node was elected last, by the times of its log; 1: none
// was.
func (rj *recordedJob) lastElected() (machine int) {
	machine, at := 1, ""
	for m := range rj.nodes {
		for line := range strings.Lines(string(testkit.ReadFile(rj.t, rj.logOf(m+1)))) {
			if stamp, _, _ := strings.Cut(strings.TrimPrefix(line, "W"), " rallypoint]"); strings.Contains(line, wasElected) && stamp > at {
				machine, at = m+1, stamp
			}
		}
	}
	return machine
}

// wantElections checks how many elections were won.
func (rj *recordedJob) wantElections(n int) {
	rj.t.Helper()
	got := 0
	for m := range rj.nodes {
		got += strings.Count(string(testkit.ReadFile(rj.t, rj.logOf(m+1))), wasElected)
	}
	if got != n {
		rj.t.Errorf("%d elections, want %d", got, n)
	}
}

// TestSilenceWithinALease: the host is stopped until another one is elected, and no longer: no
// worker is started again, and the old host is a node of the new one.
func TestSilenceWithinALease(t *testing.T) {
	t.Parallel()
	j := &localJob{recordedJob: &recordedJob{harness: newHarness(t)}, endpoint: "127.0.0.1:" + strconv.Itoa(testkit.FreePort(t))}
	j.env = []string{params.EnvTokenFile + "=" + testkit.TokenFile(t, "correct horse battery staple, and more")} // TLS comes with the token
	j.grow(3)
	j.signal(syscall.SIGSTOP, 1)
	j.awaitElected(2, 3)
	j.signal(syscall.SIGCONT, 1)
	j.await(1, hostsNoLonger)
	j.await(1, "hosts the control plane now")
	time.Sleep(silenceLease) // in which a seat that was given up would show
	j.end(2)
	j.wantElections(1)
	if n := j.started(); n > 0 {
		t.Errorf("%d workers were started", n)
	}
}

// TestSilenceForGood: the host, and one of five voters with it, never continues before the job
// ends: the others are in the next round, and end well. What wakes up then ends, too.
func TestSilenceForGood(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		nodes  int
		silent []int
	}{{3, []int{1}}, {5, []int{1}}, {5, []int{1, 2}}, {5, []int{1, 4}}, {8, []int{1}}} {
		t.Run(fmt.Sprintf("%d of %d", len(test.silent), test.nodes), func(t *testing.T) {
			if test.nodes > 3 {
				onlyLong(t)
			}
			t.Parallel()
			j := newLocalJob(t, test.nodes)
			j.signal(syscall.SIGSTOP, test.silent...)
			j.readRound(test.nodes - len(test.silent))
			j.finish()
			for m, p := range j.nodes {
				if slices.Contains(test.silent, m+1) {
					continue
				}
				if code := p.end(); code != 0 {
					t.Errorf("machine %d: exit code %d", m+1, code)
				}
			}
			j.wantElections(1)
			j.signal(syscall.SIGKILL, test.silent...)
		})
	}
}

// TestSilenceOfTwoVoters: of three voters two are silent, the host among them or not. Nobody
// hosts, or the host says nothing; workers run. With one back it continues.
func TestSilenceOfTwoVoters(t *testing.T) {
	onlyLong(t)
	t.Parallel()
	t.Run("the host and a standby", func(t *testing.T) {
		t.Parallel()
		j := newLocalJob(t, 3)
		j.signal(syscall.SIGSTOP, 1, 2)
		j.await(3, "lost the control plane")
		time.Sleep(2 * silenceLease) // what is tested
		j.wantElections(0)
		j.signal(syscall.SIGCONT, 2)
		j.readRound(2)
		j.signal(syscall.SIGCONT, 1)
		j.readRound(3)
		j.end(2)
		j.wantElections(1)
	})
	t.Run("a silent standby and a dead one", func(t *testing.T) { // a node that waits for the next round is told why
		t.Parallel()
		j := newLocalJob(t, 3)
		j.signal(syscall.SIGSTOP, 2)
		j.signal(syscall.SIGKILL, 3)
		j.await(1, "the control plane waits for its voters")
		j.await(1, "no majority: 1 of ")
		j.signal(syscall.SIGCONT, 2)
		j.readRound(2)
		j.end(1, 3)
		j.wantElections(0)
	})
	t.Run("both standbys", func(t *testing.T) {
		t.Parallel()
		j := newLocalJob(t, 3)
		j.signal(syscall.SIGSTOP, 2, 3)
		testkit.Eventually(t, "the host has no majority", func() bool {
			s := j.succession(j.endpoint)
			return s != nil && s.Majority != nil && !*s.Majority && strings.Contains(s.Missing, "1 of 3 voters reachable")
		})
		for _, command := range [][]string{{"close", "--reason=x"}} {
			code, _, stderr := execute(t, append([]string{"admin", command[0], j.endpoint}, command[1:]...)...)
			if code == 0 || !strings.Contains(stderr, "no majority: 1 of 3 voters reachable") {
				t.Errorf("admin %v: code %d, %s", command, code, stderr)
			}
		}
		time.Sleep(2 * silenceLease) // what is tested
		j.signal(syscall.SIGCONT, 3)
		testkit.Eventually(t, "the host has a majority", func() bool {
			s := j.succession(j.endpoint)
			return s != nil && (s.Majority == nil || *s.Majority)
		})
		j.signal(syscall.SIGCONT, 2)
		j.finish()
		for _, p := range j.nodes {
			p.end()
		}
		j.wantElections(0)
	})
}

// TestQuorumOption: with quorum=0 on all nodes nobody votes, as before the vote; on one of them
// it is refused.
func TestQuorumOption(t *testing.T) {
	t.Parallel()
	t.Run("all", func(t *testing.T) {
		t.Parallel()
		j := &localJob{recordedJob: &recordedJob{harness: newHarness(t)}, endpoint: "127.0.0.1:" + strconv.Itoa(testkit.FreePort(t)), conf: ",quorum=0"}
		j.grow(3)
		j.signal(syscall.SIGSTOP, 2, 3)
		j.readRound(1)
		j.signal(syscall.SIGCONT, 2, 3)
		j.readRound(3)
		j.end(1)
		j.wantElections(0)
		for m := 2; m <= 3; m++ {
			if !j.told(m, "; this process did not run for") {
				t.Errorf("machine %d was not told that it is its own standstill that cost its place", m)
			}
		}
	})
	t.Run("one", func(t *testing.T) {
		t.Parallel()
		j := newLocalJob(t, 2)
		j.conf = ",quorum=0"
		if code := j.add("1:2").end(); code != 2 || !j.told(3, "quorum=0") {
			t.Errorf("exit code %d", code)
		}
		j.end(1, 3)
	})
}
