package cli

import (
	"math/rand/v2"
	"testing"
	"time"
)

// endAll ends the job when all its nodes are in one round.
func (sj *spreadJob) endAll() {
	sj.t.Helper()
	for m := range sj.nodes {
		sj.tell(0, m+1)
	}
	sj.ended(anyHosts)
}

// TestNetworkTwoSides: a firewall rejects all between three machines of five and the two others, which are enough
// to go on. The three go on; the two may, too, and no round of theirs has a number of the others'. All are in one
// round again when the network is whole.
func TestNetworkTwoSides(t *testing.T) {
	onlyLong(t)
	for _, how := range []string{"reset", "icmp", "icmp-host"} {
		t.Run(how, func(t *testing.T) {
			seeds(t, 5, func(t *testing.T, random *rand.Rand) {
				two, apart := drawn(random, 5, 2), leases(0.5+2*random.Float64())
				if how != "reset" { // after a lease a node without proof gives the run up
					apart = leases(random.Float64())
				}
				t.Logf("machines %v, %v apart", two, apart)
				j, seen := newFaultJob(t, "2:5", 5, 5, "")
				until := time.Now().Add(apart)
				j.net.split(how, two...)
				seen.await(j.harness, 3)
				time.Sleep(time.Until(until)) // what is tested
				j.net.accept(0)
				seen.await(j.harness, 5)
				j.endAll()
			})
		})
	}
}

// TestNetworkFlapping: a machine's link is down again and again, for at most a third of a lease. Afterwards all are
// in one round, and no two rounds have had one number.
func TestNetworkFlapping(t *testing.T) {
	onlyLong(t)
	seeds(t, 4, func(t *testing.T, random *rand.Rand) {
		nodes := 3 + random.IntN(3)
		machine := 1 + random.IntN(nodes)
		t.Logf("machine %d of %d", machine, nodes)
		j, seen := newFaultJob(t, "1:8", nodes, nodes+1, "")
		for until := time.Now().Add(leases(2)); time.Now().Before(until); { // what is tested
			j.net.cut(machine, 0)
			time.Sleep(leases(0.03 + random.Float64()*0.3))
			j.net.mend()
			time.Sleep(leases(0.03 + random.Float64()*0.3))
		}
		j.nodes = append(j.nodes, j.start(nodes+1, "1:8", "0.1")) // a round more, which they all have to come to
		seen.await(j.harness, nodes+1)
		j.endAll()
	})
}
