package cli

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"rallypoint/internal/testkit"
)

// TestHostKilled ends the agent that hosts the control plane with SIGKILL. The others
// regroup, and the next host may be killed as well, down to the last node.
func TestHostKilled(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	all := h.grown(3, elastic(t, "1:3")) // in order of arrival: each is the next host
	for len(all) > 1 {
		all[0].kill(t, syscall.SIGKILL)
		all[0].expect(t, -int(syscall.SIGKILL))
		all = all[1:]
		if places := h.readRound(len(all)); places[0].restarts != 0 {
			t.Errorf("the loss was counted as a restart: %+v", places)
		}
	}
	h.finish()
	all[0].expect(t, 0)
}

// grown starts nodes one after the other, each when the round has those before, so that
// they stand by in this order.
func (h *harness) grown(nodes int, options []string) (all []*nodeProcess) {
	for n := 1; n <= nodes; n++ {
		all = append(all, h.run(printPlacement, options...))
		h.readRound(n)
	}
	return all
}

func (n *nodeProcess) kill(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := n.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// TestHostAndFirstStandbyKilled kills both at the same instant: two of three voters. The third cannot know that it
// is not the one that is cut off, and waits for four leases.
func TestHostAndFirstStandbyKilled(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	all := h.grown(4, elastic(t, "1:4"))
	all[0].kill(t, syscall.SIGKILL)
	all[1].kill(t, syscall.SIGKILL)
	h.readRound(2)
	h.finish()
	for _, p := range all[2:] {
		p.expect(t, 0)
	}
}

// TestHostTerminated ends the host in order: its control plane continues elsewhere before it
// goes, and it does not wait for the others' end.
func TestHostTerminated(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	all := h.grown(3, elastic(t, "1:3"))
	all[0].kill(t, syscall.SIGTERM)
	h.readRound(2)
	all[0].end()
	h.finish()
	for _, p := range all[1:] {
		p.expect(t, 0)
		if lost := "lost the control plane"; strings.Contains(p.stderr.String(), lost) {
			t.Errorf("a node was told that it %s:\n%s", lost, p.stderr.String())
		}
	}
}

// TestHostRestarted starts the host again at the endpoint at once, and after the others
// have a host: it joins their job.
func TestHostRestarted(t *testing.T) {
	delays := []time.Duration{0, 500 * time.Millisecond}
	if long {
		delays = append(delays, 20*time.Second)
	}
	for _, after := range delays {
		t.Run(after.String(), func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			options := elastic(t, "1:3")
			all := h.grown(3, options)
			all[0].kill(t, syscall.SIGKILL)
			time.Sleep(after) // what is tested, and nothing that is waited for
			all[0].end()
			all[0] = h.run(printPlacement, options...)
			h.readRound(3)
			h.seenAtEndpoint(options)
			h.finish()
			for _, p := range all {
				p.expect(t, 0)
			}
			all[0].beginsWithoutWarning(t)
		})
	}
}

// beginsWithoutWarning checks what a node says before its first round.
func (n *nodeProcess) beginsWithoutWarning(t *testing.T) {
	t.Helper()
	first, _, found := strings.Cut(n.stderr.String(), "started a worker")
	if !found || regexp.MustCompile(`(?m)^W\d`).MatchString(first) {
		t.Errorf("it began with:\n%s", first)
	}
}

// seenAtEndpoint checks that the job shows itself at its endpoint, whichever node hosts it.
func (h *harness) seenAtEndpoint(options []string) {
	h.t.Helper()
	var endpoint string
	for _, o := range options {
		if at, is := strings.CutPrefix(o, "--rdzv-endpoint="); is {
			endpoint = at
		}
	}
	for command, want := range map[string]string{"status": "3 nodes of 1 to 3 here", "stacks": "3 ranks", "logs": "of ranks 0-2"} {
		if code, stdout, stderr := execute(h.t, command, endpoint); code != 0 || !strings.Contains(stdout, want) {
			h.t.Errorf("%s: %d, %q, %q", command, code, stdout, stderr)
		}
	}
}

// withoutQuorum has no node vote.
func withoutQuorum(options []string) []string {
	for i, o := range options {
		if strings.HasPrefix(o, "--rdzv-conf=") {
			options[i] += ",quorum=0"
		}
	}
	return options
}

// TestHostStopped stops the host's process until its silence was noticed: where nobody votes no
// node takes over, and the job continues when that node does.
func TestHostStopped(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	all := h.grown(3, withoutQuorum(elastic(t, "1:3")))
	all[0].kill(t, syscall.SIGSTOP)
	silence := 5 * time.Second // three leases: connections are given up after two
	if long {
		silence = 30 * time.Second
	}
	time.Sleep(silence)
	all[0].kill(t, syscall.SIGCONT)
	h.endWithoutTakeover(all)
}

// endWithoutTakeover ends a job whose first host has hosted all the time.
func (h *harness) endWithoutTakeover(all []*nodeProcess) {
	h.t.Helper()
	h.finish()
	for _, p := range all {
		p.expect(h.t, 0)
		if strings.Contains(p.stderr.String(), "hosts now") {
			h.t.Errorf("a node took over:\n%s", p.stderr.String())
		}
	}
}

// TestStandbyStopped stops the first standby until the others have gone on without it: it
// takes nothing over when it wakes up, and comes back.
func TestStandbyStopped(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	all := h.grown(3, elastic(t, "1:3"))
	all[1].kill(t, syscall.SIGSTOP)
	h.readRound(2)
	if long {
		time.Sleep(30 * time.Second) // what is tested, and nothing that is waited for
	}
	all[1].kill(t, syscall.SIGCONT)
	h.readRound(3)
	h.endWithoutTakeover(all)
}

// TestHostOnAQuota gives the host's process a tenth of a processor: the others come and go
// as before, and none of them takes over.
func TestHostOnAQuota(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	options := elastic(t, "1:3")
	all := []*nodeProcess{h.run(printPlacement, options...)}
	h.readRound(1)
	throttled := limitCPU(t, all[0].Process.Pid)
	regroups, most := 2, 20
	if long {
		regroups = most
	}
	all = append(all, h.run(printPlacement, options...))
	h.readRound(2)
	for done := 0; done < regroups || done < most && throttled() == 0; done++ { // a fast processor needs more than two
		third := h.run(printPlacement, options...)
		h.readRound(3)
		third.kill(t, syscall.SIGKILL)
		third.end()
		h.readRound(2)
	}
	if throttled() == 0 {
		t.Error("the quota was never used up")
	}
	h.endWithoutTakeover(all)
}

// limitCPU gives a process 10 ms of processor time in each 100 ms, in a control group of
// its own, and returns how often the process had to wait for more. The test is skipped
// where that is not allowed.
func limitCPU(t *testing.T, pid int) (throttled func() int) {
	t.Helper()
	name := fmt.Sprintf("rptest%08x", rand.Uint32())
	for _, c := range []struct{ folder, file, quota string }{
		{"/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "10000"},
		{"/sys/fs/cgroup", "cpu.max", "10000 100000"},
	} {
		group := filepath.Join(c.folder, name)
		if os.Mkdir(group, 0o755) != nil {
			continue
		}
		t.Cleanup(func() {
			testkit.Eventually(t, "the control group is removed", func() bool { return os.Remove(group) == nil })
		})
		if os.WriteFile(filepath.Join(group, c.file), []byte(c.quota), 0) == nil &&
			os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0) == nil {
			return func() (times int) {
				_, after, _ := strings.Cut(string(testkit.ReadFile(t, filepath.Join(group, "cpu.stat"))), "nr_throttled ")
				_, err := fmt.Sscan(after, &times)
				testkit.Check(t, err)
				return times
			}
		}
	}
	t.Skip("no control group with a quota of processor time can be made here")
	return nil
}

// TestHostAmongBusyLoops has 32 processes take all processor time for a minute.
func TestHostAmongBusyLoops(t *testing.T) {
	if !long {
		t.Skip("it keeps all processors from other tests: make test-long")
	}
	h := newHarness(t)
	all := h.grown(3, elastic(t, "1:3"))
	for range 32 {
		loop := exec.Command("sh", "-c", "while :; do :; done")
		testkit.Check(t, loop.Start())
		defer func() {
			_ = loop.Process.Kill()
			_ = loop.Wait()
		}()
	}
	time.Sleep(time.Minute)
	h.endWithoutTakeover(all)
}

// TestStandbyStoppedWhileTheHostIsKilled stops the first standby: where nobody votes the second
// one goes after a lease. When the first wakes up it joins.
func TestStandbyStoppedWhileTheHostIsKilled(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	all := h.grown(3, withoutQuorum(elastic(t, "1:3")))
	all[1].kill(t, syscall.SIGSTOP)
	all[0].kill(t, syscall.SIGKILL)
	h.readRound(1)
	all[1].kill(t, syscall.SIGCONT)
	h.readRound(2)
	h.finish()
	for _, p := range all[1:] {
		p.expect(t, 0)
	}
	if strings.Contains(all[1].stderr.String(), "this node hosts now") {
		t.Errorf("the node that was stopped took over:\n%s", all[1].stderr.String())
	}
}
