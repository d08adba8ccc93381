package cli

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"
)

// drawn returns so many of the machines up to the last one.
func drawn(random *rand.Rand, last, n int) []int {
	machines := random.Perm(last)[:n]
	for i := range machines {
		machines[i]++
	}
	return machines
}

// TestNetworkPowerCycle: a majority of the machines goes dark, and is back: their nodes are started again. The job
// forms its next round with all of them, whose number was never used if the endpoint's node has stayed.
func TestNetworkPowerCycle(t *testing.T) {
	onlyLong(t)
	for _, job := range [][2]int{{3, 2}, {5, 3}} {
		t.Run(fmt.Sprintf("%d of %d", job[1], job[0]), func(t *testing.T) {
			seeds(t, job[0], func(t *testing.T, random *rand.Rand) {
				nodes := job[0]
				lost := drawn(random, nodes-1, job[1])
				for i := range lost {
					lost[i]++ // the host stays, if nothing is drawn
				}
				gap, dark, boot := leases(0.3), leases(2), time.Duration(0)
				if long {
					lost = drawn(random, nodes, job[1])
					gap, dark, boot = leases(random.Float64()/3), leases(1+2*random.Float64()), leases(0.8*random.Float64()) // after a lease those that are left give the run up
				}
				t.Logf("machines %v; %v between them, %v without power, %v without a node", lost, gap, dark, boot)
				nnodes := fmt.Sprintf("2:%d", nodes)
				j, seen := newFaultJob(t, nnodes, nodes, nodes, "")
				for _, m := range lost { // what is tested, as all times of this file
					j.net.cut(m, 0)
					time.Sleep(gap / time.Duration(len(lost)))
				}
				j.signal(syscall.SIGKILL, lost...)
				for _, m := range lost {
					j.nodes[m-1].end()
				}
				time.Sleep(dark)
				j.net.mend()
				time.Sleep(boot)
				back := time.Now()
				for _, m := range lost {
					j.nodes[m-1] = j.start(m, nnodes, "0.1")
				}
				if slices.Contains(lost, 1) { // an empty process at the endpoint may have founded a job with those that are back
					seen = seenRounds{}
				}
				seen.await(j.harness, nodes)
				t.Logf("the next round after %.1f leases", float64(time.Since(back))/float64(faultLease()))
				for m := range nodes {
					j.tell(0, m+1)
				}
				j.ended(anyHosts)
			})
		})
	}
}
