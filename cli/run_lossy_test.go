package cli

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"rallypoint/internal/testkit"
)

// lossyJob is a job of three nodes, one a machine, that a lossy link joins. Each has two
// workers, which train by the round's store. The first node hosts the control plane.
type lossyJob struct {
	*spreadJob
	link   *lossyLink
	strict bool                   // no node that lives may be lost
	pids   map[string]int         // by node, a worker of the last round
	round  int                    // the last one
	size   int                    // its nodes
	ended  time.Time              // since when the last round may end
	orders map[string]map[int]int // by directive and rank, the step at which it came
}

const lossyWorkers = 2

// lossyScript ends as the worker does, and is no other process.
const lossyScript = `exec "$BINARY"`

func newLossyJob(t *testing.T, loss float64, token string) *lossyJob {
	t.Helper()
	j := &lossyJob{strict: loss <= 0.1, pids: map[string]int{}, orders: map[string]map[int]int{}}
	j.spreadJob = &spreadJob{recordedJob: &recordedJob{harness: newHarness(t), nodes: make([]*nodeProcess, 3)}, address: address, port: testkit.FreePort(t)}
	j.net, j.link = newLossyNetwork(t, 3)
	j.link.lose(loss)
	j.env = []string{"BINARY=" + os.Args[0], asLossyWorker + "=" + j.dir}
	if !j.strict { // a large value would take minutes
		j.env = append(j.env, smallValues+"=1")
	}
	if token != "" {
		j.env = append(j.env, "RALLYPOINT_TOKEN_FILE="+token)
	}
	return j
}

// start starts a machine's node, or starts it again.
func (l *lossyJob) start(machine int) {
	t := l.t
	t.Helper()
	p := l.command(lossyScript, "--nnodes=2:3", "--nproc-per-node="+strconv.Itoa(lossyWorkers), "--max-restarts=100", "--rdzv-id=lossy",
		"--rdzv-endpoint="+l.endpoint(),
		fmt.Sprintf("--rdzv-conf=node_id=n%d,record=%s/history", machine, l.dir))
	p.Env = append(p.Env, "NODE="+strconv.Itoa(machine), envLeaks+"=1")
	p.Cmd = l.net.on(machine, p.Cmd)
	log := testkit.Must(os.OpenFile(l.logOf(machine), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600))(t)
	p.Stdout, p.Stderr = log, log
	testkit.Check(t, p.Start())
	t.Cleanup(func() {
		_ = p.Process.Kill() // if the test has failed
		_ = p.Wait()
		if err := log.Close(); err != nil || t.Failed() {
			t.Logf("machine %d (%v):\n%s", machine, err, testkit.ReadFile(t, log.Name()))
		}
	})
	l.nodes[machine-1] = p
}

func (l *lossyJob) endpoint() string { return address(1) + ":" + strconv.Itoa(l.port) }

// read reads what one worker says, and holds it against what the others have said.
func (l *lossyJob) read() (what string, at time.Time, round int, fields []string) {
	t := l.t
	t.Helper()
	fields = strings.Fields(l.readLine())
	nanoseconds := testkit.Must(strconv.ParseInt(fields[1], 10, 64))(t)
	what, at, round, fields = fields[0], time.Unix(0, nanoseconds), testkit.Must(strconv.Atoi(fields[2]))(t), fields[3:]
	switch what {
	case "wrong":
		t.Errorf("round %d: a worker has read a wrong value: %v", round, fields)
	case "trouble":
		if round == l.round && (l.ended.IsZero() || at.Before(l.ended)) {
			t.Errorf("round %d: a worker has lost the store of a round that goes on: %v", round, fields)
		}
	case "directive":
		rank, step := testkit.Must(strconv.Atoi(fields[0]))(t), testkit.Must(strconv.Atoi(fields[3]))(t)
		id := fields[1] + " " + fields[2]
		if l.orders[id] == nil {
			l.orders[id] = map[int]int{}
		}
		if _, again := l.orders[id][rank]; again {
			t.Errorf("directive %s was told rank %d twice", id, rank)
		}
		l.orders[id][rank] = step
	}
	return what, at, round, fields
}

// await waits for the next round of so many nodes, which is the one after the last if no node
// was lost that lives. It returns how long the workers took to start.
func (l *lossyJob) await(nodes int, since time.Time) time.Duration {
	t := l.t
	t.Helper()
	type view struct{ groups, world, master string }
	views, ranks := map[int]view{}, map[int]map[string]bool{}
	for {
		what, at, round, f := l.read()
		if what != "start" || round <= l.round {
			continue
		}
		v := view{f[0], f[1], f[4]}
		if ranks[round] == nil {
			views[round], ranks[round] = v, map[string]bool{}
		}
		if views[round] != v || ranks[round][f[2]] {
			t.Fatalf("round %d: %v is not what another worker says: %v, ranks %v", round, f, views[round], ranks[round])
		}
		ranks[round][f[2]] = true
		l.pids[f[3]] = testkit.Must(strconv.Atoi(f[5]))(t)
		if v.groups != strconv.Itoa(nodes) || len(ranks[round]) < nodes*lossyWorkers {
			continue
		}
		if l.strict && round != l.round+1 {
			t.Errorf("round %d follows round %d: something was lost in between", round, l.round)
		}
		l.round, l.size, l.ended = round, nodes, time.Time{}
		return at.Sub(since)
	}
}

// train waits until the workers have trained so many steps.
func (l *lossyJob) train(steps int) {
	l.t.Helper()
	for goal, deadline := l.step()+steps, time.Now().Add(4*testkit.Patience); l.step() < goal; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			l.t.Fatalf("the workers are at step %d, not at %d", l.step(), goal)
		}
	}
}

func (l *lossyJob) step() int {
	text, err := os.ReadFile(l.dir + "/step")
	if err != nil {
		return -1
	}
	return testkit.Must(strconv.Atoi(string(text)))(l.t)
}

// ends says that the round ends now.
func (l *lossyJob) ends() time.Time {
	l.ended = time.Now()
	return l.ended
}

// kill ends a node without a word.
func (l *lossyJob) kill(machine int) time.Time {
	at := l.ends()
	l.nodes[machine-1].kill(l.t, syscall.SIGKILL)
	l.nodes[machine-1].end()
	return at
}

// admin gives an administrator's command on a machine.
func (l *lossyJob) admin(machine int, command string, options ...string) {
	l.t.Helper()
	c := exec.Command(os.Args[0], append([]string{"admin", command, l.endpoint(), "--rdzv-id=lossy", "--timeout=60s", "--reason=a test"}, options...)...)
	c.Env = append([]string{testkit.EndAtOnce, asCommand + "=1"}, l.env...)
	if out, err := l.net.on(machine, c).CombinedOutput(); err != nil {
		l.t.Fatalf("admin %s: %v: %s", command, err, out)
	}
}

// directive waits until all ranks have been told a directive of this kind, at one step.
func (l *lossyJob) directive(kind string) {
	l.t.Helper()
	for {
		for id, steps := range l.orders {
			if !strings.HasSuffix(id, " "+kind) || len(steps) < l.size*lossyWorkers {
				continue
			}
			for rank, step := range steps {
				if step != steps[0] {
					l.t.Errorf("directive %s came to rank 0 at step %d, to rank %d at step %d", id, steps[0], rank, step)
				}
			}
			return
		}
		l.read()
	}
}

// descriptors are how many all agents have open: which of them has the store of a round may change.
func (l *lossyJob) descriptors() (open int) {
	for _, p := range l.nodes {
		open += len(testkit.Must(os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Process.Pid)))(l.t))
	}
	return open
}

// awaitLinks waits until the two standbys are connected.
func (l *lossyJob) awaitLinks() {
	for m := 2; m <= 3; m++ {
		testkit.Eventually(l.t, "each standby is connected to the other", func() bool { return l.linked(m) == 1 })
	}
}

// TestNetworkLoss has a job of three machines meet, train by the round's store and regroup for
// each cause there is, over a link that loses packets. No node is lost that lives, no worker
// reads a wrong value or loses its store, and no directive comes twice, or at two steps.
func TestNetworkLoss(t *testing.T) {
	if !long {
		t.Skip("it takes minutes: make test-long")
	}
	for _, loss := range []float64{0, 0.1, 0.3} {
		for _, token := range []bool{true, false} {
			name := fmt.Sprintf("%.0f%%", 100*loss)
			path := ""
			if token {
				name, path = name+" with a token", testkit.TokenFile(t)
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				newLossyJob(t, loss, path).live()
			})
		}
	}
}

// live is the life of the job.
func (l *lossyJob) live() {
	t := l.t
	report := func(what string, d time.Duration) { t.Logf("%-28s %6.2f s", what, d.Seconds()) }
	took := func(what string, d time.Duration) {
		report(what, d)
		if l.strict { // else a step may take a minute: TCP gives up speed for losses
			l.train(3)
		}
	}
	took("three nodes meet", l.meet())

	if l.strict {
		begun := time.Now()
		l.train(20)
		report("20 steps", time.Since(begun))
	}
	l.awaitLinks() // which are descriptors, too
	open := l.descriptors()

	at := l.ends()
	testkit.Check(t, syscall.Kill(l.pids["2"], syscall.SIGKILL))
	took("a worker fails", l.await(3, at))

	took("a node is killed", l.await(2, l.kill(3)))
	at = l.ends()
	l.start(3)
	took("it is started again", l.await(3, at))

	if l.strict { // else workers are no more in time for an agreement
		l.direct(report, took)
	}
	testkit.Eventually(t, fmt.Sprintf("the nodes have no more descriptors open than before, %d", open), func() bool {
		return l.descriptors() <= open+12 // each has a connection and its like more, as one round or the other has it
	})

	l.awaitLinks()
	l.awaitVoters() // else it may be the second voter that is lost, after the one that was started again
	took("the host is killed", l.await(2, l.kill(1)))
	l.nodes = l.nodes[1:]

	if l.strict {
		l.strict = false
		l.link.lose(0.3)
		at = l.ends()
		testkit.Check(t, syscall.Kill(l.pids["2"], syscall.SIGKILL))
		report("a worker fails, at 30%", l.await(2, at))
		l.ends()                     // some may be lost now
		time.Sleep(10 * time.Second) // what is tested, and nothing that is waited for
	}
	l.link.lose(0)
	begun := time.Now()
	l.train(20)
	report("20 steps without loss", time.Since(begun))
	t.Logf("%d packets, %d lost, %d rounds", l.link.carried.Load(), l.link.lost.Load(), l.round)
	l.end(2)
	for m := 1; m <= 3; m++ {
		if l.told(m, leaked) {
			t.Errorf("machine %d: %s", m, leaked)
		}
	}
}

// direct has the job save, and drains a node that comes back.
func (l *lossyJob) direct(report, took func(what string, d time.Duration)) {
	at := time.Now()
	l.admin(2, "save", "--within=60s")
	l.directive("save")
	report("a save", time.Since(at))
	at = l.ends()
	l.admin(2, "drain", "--node=n3", "--within=60s")
	l.directive("drain")
	report("a drain, until all save", time.Since(at))
	took("until the others go on", l.await(2, at))
	l.expectEnd(3)
	l.admin(2, "undrain", "--node=n3")
	at = l.ends()
	l.start(3)
	took("it is started again", l.await(3, at))
}

// expectEnd waits for the end of a node that ends well.
func (l *lossyJob) expectEnd(machine int) {
	l.t.Helper()
	if code := l.nodes[machine-1].end(); code != 0 {
		l.t.Errorf("machine %d: exit code %d", machine, code)
	}
}

// meet starts the three nodes and returns how long it takes until their workers run.
func (l *lossyJob) meet() time.Duration {
	l.t.Helper()
	begun := time.Now()
	for m := 1; m <= 3; m++ {
		l.start(m)
	}
	return l.await(3, begun)
}

// TestNetworkLossBurst has the link lose a node's beat, and eight times in a row what the
// kernel sends instead, while all else arrives. If the kernel waited twice as long before each
// try, the node would be silent for longer than its lease: it is not lost.
func TestNetworkLossBurst(t *testing.T) {
	if !long {
		t.Skip("it takes some seconds: make test-long")
	}
	t.Parallel()
	j := newLossyJob(t, 0, "")
	j.meet()
	host, node := packetAddress(1), packetAddress(2)
	burst := j.link.loseNext(9, func(p tcpPacket) bool {
		return p.from == node && p.to == host && p.port == j.port && p.carries > 0
	})
	testkit.Eventually(t, "the beat was lost often enough", burst.over)
	j.ends() // the workers may end
	j.finish()
	j.endWell()
	if j.told(1, "lost: not heard of") {
		t.Error("a node was lost that lives")
	}
}

// TestNetworkLossAtTakeover has the link lose the first packet by which a survivor turns to the
// next host, which the kernel sends again after a second, and the first one after it: the
// survivor is not lost to the round.
func TestNetworkLossAtTakeover(t *testing.T) {
	if !long {
		t.Skip("it takes some seconds: make test-long")
	}
	t.Parallel()
	j := newLossyJob(t, 0, "")
	j.meet()
	j.awaitLinks()
	first := map[[4]byte]*atomic.Int64{packetAddress(2): {}, packetAddress(3): {}} // the port of each one's connection
	burst := j.link.loseNext(4, func(p tcpPacket) bool {
		from := first[p.from]
		if from == nil || first[p.to] == nil || p.port != j.port {
			return false
		}
		return p.opens && from.CompareAndSwap(0, int64(p.fromPort)) || p.carries > 0 && from.CompareAndSwap(int64(p.fromPort), -1)
	})
	j.await(2, j.kill(1))
	if left := burst.left.Load(); left > 2 {
		t.Errorf("%d packets were lost", 4-left)
	}
	j.nodes = j.nodes[1:]
	j.finish()
	j.endWell()
	for m := 2; m <= 3; m++ {
		if j.told(m, "did not come to the control plane's next host") {
			t.Errorf("machine %d takes the other for lost, which lives", m)
		}
	}
}

// endWell waits for the ends of the nodes that are left.
func (l *lossyJob) endWell() {
	l.t.Helper()
	for _, p := range l.nodes {
		if code := p.end(); code != 0 {
			l.t.Errorf("exit code %d", code)
		}
	}
}
