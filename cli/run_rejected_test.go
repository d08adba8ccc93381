package cli

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"rallypoint/internal/testkit"
)

// seenRounds are the rounds whose workers have spoken: the master of each.
type seenRounds map[int]string

// await reads what workers say until all of one round with that many nodes have spoken. No two rounds may have
// one number, whoever has formed them.
func (seen seenRounds) await(h *harness, nodes int) {
	h.t.Helper()
	for spoke := map[int]int{}; ; {
		p := seen.take(h, h.readLine())
		if spoke[p.round]++; p.groups == nodes && spoke[p.round] == p.world {
			return
		}
	}
}

// take takes what a worker has said.
func (seen seenRounds) take(h *harness, line string) (p placement) {
	h.t.Helper()
	if _, err := fmt.Sscan(line, &p.round, &p.groups, &p.world, &p.rank, &p.master, &p.restarts, &p.role); err != nil {
		h.t.Fatal(err)
	}
	round := fmt.Sprintf("%d workers, master %s", p.world, p.master)
	if other := seen[p.round]; other != "" && other != round {
		h.t.Errorf("two rounds have the number %d: %s, and %s", p.round, other, round)
	}
	seen[p.round] = round
	return p
}

// rest takes all that was said and not read.
func (seen seenRounds) rest(h *harness) {
	h.t.Helper()
	if _, err := h.pipe.WriteString("end\n"); err != nil {
		h.t.Fatal(err)
	}
	for line := h.readLine(); line != "end"; line = h.readLine() {
		seen.take(h, line)
	}
}

// rejection is a firewall on one machine of a job.
type rejection struct {
	nodes, machine int
	way, how       string
	leases         float64 // for so long
}

// rejections are those that are tried: a few, or all, and ten drawn ones.
func rejections() []rejection {
	few := []rejection{{4, 1, "both", "reset", 2}, {4, 2, "out", "reset", 2}, {3, 1, "out", "icmp", 1}}
	if !long {
		return few
	}
	var all []rejection
	for _, job := range [][2]int{{3, 1}, {3, 2}, {4, 1}, {4, 2}, {4, 4}, {5, 1}, {5, 3}} { // hosts, voters, and one that does not vote
		for _, way := range []string{"in", "out", "both"} {
			all = append(all, rejection{job[0], job[1], way, "reset", 2}, rejection{job[0], job[1], way, "icmp", 1}, rejection{job[0], job[1], way, "icmp-host", 1}) // after that a node without proof has looked for the others for a lease
		}
	}
	for range 10 {
		drawn := all[rand.IntN(len(all))]
		drawn.leases = 1.5 + 2*rand.Float64()
		if drawn.how != "reset" {
			drawn.leases = rand.Float64()
		}
		all = append(all, drawn)
	}
	return all
}

// TestNetworkRejected: a firewall rejects what one machine sends, what is sent to it, or both:
// that machine takes all others for dead, or they take it for dead. The others go on, the one founds
// nothing, and is one of them again when the network is whole.
func TestNetworkRejected(t *testing.T) {
	t.Parallel()
	for i, r := range rejections() {
		t.Run(fmt.Sprintf("%d of %d %s %s %d", r.machine, r.nodes, r.way, r.how, i), func(t *testing.T) {
			t.Parallel()
			j := newVotingJob(t, r.nodes)
			seen := seenRounds{}
			time.Sleep(rand.N(networkLease / 4)) // what is tested, as all times below
			j.net.reject(r.machine, r.way, r.how)
			until := time.Now().Add(time.Duration(r.leases * float64(networkLease)))
			seen.await(j.harness, r.nodes-1)
			time.Sleep(time.Until(until))
			j.net.accept(r.machine)
			seen.await(j.harness, r.nodes)
			for _, text := range []string{wasElected, "this node hosts now", "this node founds the control plane anew"} {
				if j.told(r.machine, text) {
					t.Errorf("machine %d: %s", r.machine, text)
				}
			}
			j.end(anyHosts)
			for round, who := range seen {
				if strings.HasPrefix(who, "1 workers") {
					t.Errorf("round %d: %s", round, who)
				}
			}
		})
	}
}

// TestNetworkRejectedAwayFromTheEndpoint: as TestNetworkRejected, of a host that is not where the endpoint leads to:
// the endpoint's node was started again, and joined the job there.
func TestNetworkRejectedAwayFromTheEndpoint(t *testing.T) {
	onlyLong(t)
	t.Parallel()
	j := newVotingJob(t, 4)
	seen := seenRounds{}
	j.signal(syscall.SIGKILL, 1)
	j.nodes[0].end()
	seen.await(j.harness, 3)
	j.nodes[0] = j.start(1, "1:4", "0.1")
	seen.await(j.harness, 4)
	host := j.lastElected()
	for m := 2; m <= 4; m++ {
		if j.told(m, "this node hosts now") {
			host = m
		}
	}
	testkit.Eventually(t, "the host hears its voters", func() bool {
		s := j.succession(host)
		return s != nil && s.Majority != nil && *s.Majority && len(s.Voters) == 2
	})
	j.net.reject(host, "both", "reset")
	until := time.Now().Add(2 * networkLease)
	seen.await(j.harness, 3)
	time.Sleep(time.Until(until)) // what is tested
	j.net.accept(host)
	seen.await(j.harness, 4)
	j.end(anyHosts)
}
