package cli

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"rallypoint/internal/testkit"
)

// want waits until a machine's node has ended, and logs after how many leases.
func (sj *spreadJob) want(machine, code int, since time.Time) {
	sj.t.Helper()
	if got := sj.endInTime(machine); got != code {
		sj.t.Errorf("machine %d: exit code %d, want %d", machine, got, code)
	}
	sj.t.Logf("machine %d ended after %.1f leases", machine, float64(time.Since(since))/float64(faultLease()))
}

// endInTime waits for a node that must not run until its join_timeout, and ends it if it does.
func (sj *spreadJob) endInTime(machine int) int {
	sj.t.Helper()
	p := sj.nodes[machine-1]
	late := time.AfterFunc(testkit.Patience, func() { _ = p.Process.Signal(syscall.SIGKILL) })
	defer late.Stop()
	return p.end()
}

// cutOff cuts a machine off, has the others end with success, in a next round of so many members if it was one of them,
// and mends the network so long after the cut.
func (sj *spreadJob) cutOff(seen seenRounds, machine, members int, away time.Duration) (back time.Time) {
	sj.t.Helper()
	sj.net.cut(machine, 0)
	until := time.Now().Add(away)
	if members > 0 {
		seen.await(sj.harness, members)
	}
	for n := range sj.nodes {
		if n+1 != machine {
			sj.tell(0, n+1)
		}
	}
	for n, p := range sj.nodes {
		if n+1 == machine {
			continue
		}
		if code := p.end(); code != 0 {
			sj.t.Errorf("machine %d: exit code %d", n+1, code)
		}
	}
	time.Sleep(time.Until(until))
	sj.net.mend()
	return time.Now()
}

// wantNothingFounded checks that a machine's node has taken nothing over, and that no workers were started.
func (sj *spreadJob) wantNothingFounded(machine int) {
	sj.t.Helper()
	for _, text := range []string{wasElected, "this node hosts now", "this node founds the control plane anew"} {
		if sj.told(machine, text) {
			sj.t.Errorf("machine %d: %s", machine, text)
		}
	}
	if n := sj.started(); n > 0 {
		sj.t.Errorf("%d workers were started", n)
	}
}

// TestNetworkJobEndsWithout: a node is cut off while the job finishes without it. It is not told how; its own workers
// have finished, too, or they fail, as those do whose partners have gone. It founds nothing, and ends with their
// result.
func TestNetworkJobEndsWithout(t *testing.T) {
	for _, who := range []struct {
		name           string
		nodes, machine int
	}{{"host", 3, 1}, {"voter", 3, 2}, {"other voter", 3, 3}, {"voter of five", 5, 3}, {"member", 4, 4}} {
		for _, code := range []int{0, 1} {
			if quick := who.name == "voter" && code == 1; !long && !quick {
				continue
			}
			t.Run(fmt.Sprintf("%s %d", who.name, code), func(t *testing.T) {
				seeds(t, 1, func(t *testing.T, random *rand.Rand) {
					away := leases(1.2 + 0.3*random.Float64())
					j, seen := newFaultJob(t, fmt.Sprintf("1:%d", who.nodes), who.nodes, who.nodes, "")
					back := j.cutOff(seen, who.machine, who.nodes-1, away)
					j.tell(code, who.machine)
					j.want(who.machine, code, back)
					j.wantNothingFounded(who.machine)
					if !j.told(who.machine, map[int]string{0: "the exit barrier ends without the other nodes", 1: "nobody is left"}[code]) {
						t.Errorf("machine %d does not say why it ends", who.machine)
					}
				})
			})
		}
	}
}

// TestNetworkSpareAfterTheEnd: a spare, or a newcomer that waits to be admitted, is cut off while the job finishes.
// It was not in a round, and does not know how the job has ended: a supervisor has to start it again.
func TestNetworkSpareAfterTheEnd(t *testing.T) {
	onlyLong(t)
	for name, nnodes := range map[string]string{"spare": "3:3", "newcomer": "3:4"} {
		t.Run(name, func(t *testing.T) {
			seeds(t, 1, func(t *testing.T, random *rand.Rand) {
				away := leases(1.2 + 0.3*random.Float64())
				j, seen := newFaultJob(t, nnodes, 3, 4, ",admit_delay=60")
				j.nodes = append(j.nodes, j.start(4, nnodes, "0.1"))
				if name == "spare" {
					j.await(4, "spare")
				} else {
					testkit.Eventually(t, "the control plane has heard it", func() bool { return j.waiting(1) > 0 })
				}
				back := j.cutOff(seen, 4, 0, away)
				j.want(4, 1, back)
				j.wantNothingFounded(4)
			})
		})
	}
}

// TestNetworkStoppedWhileTheHostIs: the run is closed while its host's process is stopped. That one ends, and says
// why, once it runs again.
func TestNetworkStoppedWhileTheHostIs(t *testing.T) {
	onlyLong(t)
	seeds(t, 1, func(t *testing.T, random *rand.Rand) {
		away := leases(1.5)
		if long {
			away = leases(1.2 + 2*random.Float64())
		}
		j, seen := newFaultJob(t, "1:3", 3, 3, "")
		j.signal(syscall.SIGSTOP, 1)
		until := time.Now().Add(away)
		seen.await(j.harness, 2)
		host := j.awaitElected(2, 3)
		stop := exec.Command(os.Args[0], "admin", "stop", j.addr(host), "--failed", "--reason", "wrong data")
		stop.Env = []string{asCommand + "=1"}
		if out, err := j.net.on(host, stop).CombinedOutput(); err != nil {
			t.Errorf("admin stop --failed: %v: %s", err, out)
		}
		for _, m := range []int{2, 3} {
			j.nodes[m-1].end()
		}
		time.Sleep(time.Until(until))
		back := time.Now()
		j.signal(syscall.SIGCONT, 1)
		j.want(1, 1, back)
		j.wantNothingFounded(1)
		if !j.told(1, "wrong data") && !j.told(1, "nobody is left") {
			t.Error("the host does not say why it ends")
		}
	})
}
