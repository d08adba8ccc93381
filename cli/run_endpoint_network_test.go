package cli

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"syscall"
	"testing"
	"time"

	"rallypoint/internal/testkit"
)

// untilTold makes each worker say where it stands and run until its node is told how its workers end, as those of a
// round do whose partners have gone.
const untilTold = `trap 'exit 0' TERM
	echo "$RALLYPOINT_ROUND $GROUP_WORLD_SIZE $WORLD_SIZE $RANK $MASTER_ADDR:$MASTER_PORT $TORCHELASTIC_RESTART_COUNT $ROLE_NAME:$ROLE_RANK/$ROLE_WORLD_SIZE" > $SAY
	until [ -e end-$NODE ]; do sleep 0.2; done; exit $(cat end-$NODE)`

// The lease of the jobs below is as long as that of the other jobs that vote where they run for long, else shorter.
func faultLease() time.Duration {
	if long {
		return networkLease
	}
	return networkLease / 2
}

// leases is a time of so many leases.
func leases(n float64) time.Duration { return time.Duration(n * float64(faultLease())) }

// seeds runs a test once with what is always tried, and in the long suite with ten drawn histories, each of a
// network of its own.
func seeds(t *testing.T, quick int, test func(t *testing.T, random *rand.Rand)) {
	t.Parallel()
	all := []uint64{uint64(quick)}
	if long {
		for range 10 {
			all = append(all, rand.Uint64())
		}
	}
	for _, seed := range all {
		t.Run("seed "+strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			test(t, rand.New(rand.NewPCG(seed, 0)))
		})
	}
}

// newFaultJob starts a job of so many nodes, which are told one by one how their workers end, and waits for its voters.
// There are more machines, perhaps.
func newFaultJob(t *testing.T, nnodes string, nodes, machines int, conf string) (*spreadJob, seenRounds) {
	t.Helper()
	return newFaultJobOf(t, untilTold, nnodes, nodes, machines, conf)
}

// newFaultJobOf is newFaultJob with a script of the workers.
func newFaultJobOf(t *testing.T, workers, nnodes string, nodes, machines int, conf string) (*spreadJob, seenRounds) {
	t.Helper()
	var least int
	fmt.Sscan(nnodes, &least)
	j := &spreadJob{
		recordedJob: &recordedJob{harness: newHarness(t), workers: workers}, net: newNetwork(t, machines), address: address, port: testkit.FreePort(t),
		conf: fmt.Sprintf(",lease_timeout=%v%s", faultLease().Seconds(), conf), options: []string{"--max-restarts=100"},
	}
	j.endpointIs(1)
	seen := seenRounds{}
	for m := 1; m <= nodes; m++ {
		j.nodes = append(j.nodes, j.start(m, nnodes, "0.1"))
		if m >= least {
			seen.await(j.harness, m)
		}
	}
	if nodes > 2 {
		j.awaitVoters()
	}
	return j, seen
}

// tell makes the workers of nodes end with a code.
func (sj *spreadJob) tell(code int, nodes ...int) {
	sj.t.Helper()
	for _, n := range nodes {
		testkit.WriteFile(sj.t, sj.dir+"/end-"+strconv.Itoa(n), []byte(strconv.Itoa(code)))
	}
}

// TestNetworkEndpointIsBoundLater: a second node on the endpoint's machine cannot listen there while the first one
// does. Once that has gone it does: the endpoint leads to the job's control plane for as long as a node is there.
func TestNetworkEndpointIsBoundLater(t *testing.T) {
	onlyLong(t)
	for _, how := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(how.String(), func(t *testing.T) {
			seeds(t, 3, func(t *testing.T, random *rand.Rand) {
				machines := 3
				if long {
					machines = 1 + random.IntN(7) // alone it hosts afterwards; with more than five others it does not stand by
				}
				nnodes := fmt.Sprintf("1:%d", machines+1)
				j, seen := newFaultJob(t, nnodes, machines, machines+1, "")
				j.nodes = append(j.nodes, j.startBeside(machines+1, 1, nnodes, "0.1"))
				seen.await(j.harness, machines+1)
				j.signal(how, 1)
				seen.await(j.harness, machines)
				j.nodes[0].end()
				testkit.Eventually(t, "the endpoint answers", func() bool { return j.succession(1) != nil })
				j.nodes = append(j.nodes, j.startBeside(machines+2, machines+1, nnodes, "0.1"))
				seen.await(j.harness, machines+1)
				for n := range j.nodes {
					j.tell(0, n+1)
				}
				for _, p := range j.nodes[1:] {
					p.expect(t, 0)
				}
				j.audit(anyHosts)
			})
		})
	}
}
