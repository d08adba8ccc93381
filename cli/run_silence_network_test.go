package cli

import (
	"slices"
	"testing"
	"time"

	"rallypoint/core/control"
	"rallypoint/internal/testkit"
)

// networkLease is the lease of the jobs below: their cuts are parts of it.
const networkLease = 3 * time.Second

// newVotingJob starts a job of nodes on machines of their own, and waits until the host hears
// all voters.
func newVotingJob(t *testing.T, nodes int) *spreadJob {
	t.Helper()
	j := newSpreadJobAt(t, address, ",lease_timeout=3", nodes, nodes)
	j.awaitVoters()
	return j
}

// awaitVoters waits until the host hears as many voters as there can be.
func (sj *spreadJob) awaitVoters() {
	sj.t.Helper()
	voters := 2
	if len(sj.nodes) > 4 {
		voters = 4
	}
	testkit.Eventually(sj.t, "the host hears all voters", func() bool {
		s := sj.succession(1)
		return s != nil && len(s.Voters) == voters && !slices.ContainsFunc(s.Voters, func(v control.VoterStatus) bool { return !v.Reachable })
	})
}

// TestNetworkSilencePause: the host is cut off for less than an election takes, in both
// directions or in one. TCP may repeat too late what was lost, so that another is elected: no
// worker is started again.
func TestNetworkSilencePause(t *testing.T) {
	onlyLong(t)
	t.Parallel()
	for name, way := range map[string][2]int{"both": {0, 0}, "to the host": {0, 1}, "from the host": {1, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newVotingJob(t, 3)
			if name == "both" {
				j.net.cut(1, 0)
			} else {
				j.net.drop(way[0], way[1])
			}
			time.Sleep(networkLease * 2 / 5) // what is tested
			j.net.mend()
			time.Sleep(networkLease) // in which a lost seat would show
			j.end(anyHosts)
			if n := j.started(); n > 0 {
				t.Errorf("%d workers were started", n)
			}
		})
	}
}

// TestNetworkSilenceBeyondALease: the host is cut off, in both directions or in one, until the
// others are in a round without it. It forms none meanwhile, though one node is enough, and
// is in the next one when the network is whole.
func TestNetworkSilenceBeyondALease(t *testing.T) {
	onlyLong(t)
	t.Parallel()
	for name, way := range map[string][2]int{"both": {0, 0}, "to the host": {0, 1}, "from the host": {1, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newVotingJob(t, 3)
			if name == "both" {
				j.net.cut(1, 0)
			} else {
				j.net.drop(way[0], way[1])
			}
			j.readRound(2)
			time.Sleep(networkLease) // in which the host would regroup
			j.net.mend()
			j.readRound(3)
			j.end(2)
			if n := j.started(); n > 0 {
				t.Errorf("%d more workers were started", n)
			}
		})
	}
}

// TestNetworkSilenceUntilTheEnd: the host is cut off until the job has ended without it. When the
// network is whole, it learns that the others' processes are gone, and ends.
func TestNetworkSilenceUntilTheEnd(t *testing.T) {
	onlyLong(t)
	t.Parallel()
	j := newVotingJob(t, 3)
	j.net.cut(1, 0)
	j.readRound(2)
	j.finish()
	for _, p := range j.nodes[1:] {
		if code := p.end(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
	time.Sleep(2 * networkLease) // what is tested
	if n := j.started(); n > 0 {
		t.Errorf("%d more workers were started", n)
	}
	j.net.mend()
	j.await(1, "the exit barrier ends without the other nodes")
	if code := j.nodes[0].end(); code != 0 {
		t.Errorf("the host: exit code %d", code)
	}
	j.wantElections(1)
	j.audit(2)
}

// TestNetworkSilenceToOneVoter: the host and one voter are cut off from each other, and hear the
// third: no other node is elected, and the host continues without that voter.
func TestNetworkSilenceToOneVoter(t *testing.T) {
	onlyLong(t)
	t.Parallel()
	j := newVotingJob(t, 3)
	j.net.cut(1, 2)
	j.readRound(2)
	time.Sleep(networkLease) // in which one would be elected
	j.net.mend()
	j.readRound(3)
	j.end(1)
	j.wantElections(0)
}

// TestNetworkSilenceOfAMinority: the host and the first standby of five are cut off from the
// others, which are a majority.
func TestNetworkSilenceOfAMinority(t *testing.T) {
	onlyLong(t)
	t.Parallel()
	j := newVotingJob(t, 5)
	for m := 3; m <= 5; m++ {
		j.net.cut(1, m)
		j.net.cut(2, m)
	}
	j.readRound(3)
	time.Sleep(networkLease) // in which the minority would regroup
	j.net.mend()
	j.readRound(5)
	j.end(2)
	j.wantElections(1)
}

// TestNetworkSilenceLies: a firewall ends all connections to the host and refuses new ones, at all
// standbys. Either one of them is elected, and the host is a node of its round; or they hear the
// host by its own connections to them, and it continues alone until the firewall is gone. There
// are never two that continue.
func TestNetworkSilenceLies(t *testing.T) {
	onlyLong(t)
	t.Parallel()
	j := newVotingJob(t, 3)
	j.net.refuse(0, 1, j.port, allPorts)
	for m := 2; m <= 3; m++ { // one may hear of the next leader at once
		testkit.Eventually(t, "a standby has lost the control plane", func() bool { return j.told(m, "lost the control plane") || j.told(m, "hosts the control plane now") })
	}
	time.Sleep(2 * networkLease) // what is tested
	j.net.mend()
	j.readRound(3)
	j.end(anyHosts)
}
