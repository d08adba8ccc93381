package cli

import (
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestHostKilled ends the agent that hosts the control plane with SIGKILL. The others
// regroup, and the next host may be killed as well, down to the last node.
func TestHostKilled(t *testing.T) {
	for _, nodes := range []int{2, 3} {
		t.Run(strconv.Itoa(nodes), func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			options := elastic(t, "1:"+strconv.Itoa(nodes))
			var all []*nodeProcess
			for n := 1; n <= nodes; n++ { // in order of arrival: each is the next host
				all = append(all, h.run(printPlacement, options...))
				h.readRound(n)
			}
			for n := nodes - 1; n > 0; n-- {
				host := all[0]
				all = all[1:]
				if err := host.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				host.expect(t, -int(syscall.SIGKILL))
				if places := h.readRound(n); places[0].restarts != 0 {
					t.Errorf("the loss was counted as a restart: %+v", places)
				}
			}
			h.finish()
			all[0].expect(t, 0)
		})
	}
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

func (p *nodeProcess) kill(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := p.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// TestHostAndFirstStandbyKilled kills both at the same instant.
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

// TestHostTerminated ends the host in order: its control plane goes on elsewhere before it
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
	for _, after := range []time.Duration{0, 50 * time.Millisecond, 500 * time.Millisecond} {
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
			h.finish()
			for _, p := range all {
				p.expect(t, 0)
			}
		})
	}
}

// TestHostStopped stops the host's process until its silence was noticed: no node takes
// over, and the job goes on when it goes on.
func TestHostStopped(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	all := h.grown(3, elastic(t, "1:3"))
	all[0].kill(t, syscall.SIGSTOP)
	time.Sleep(5 * time.Second) // three leases: connections are given up after two
	all[0].kill(t, syscall.SIGCONT)
	h.finish()
	for _, p := range all {
		p.expect(t, 0)
		if strings.Contains(p.stderr.String(), "hosts now") {
			t.Errorf("a node took over:\n%s", p.stderr.String())
		}
	}
}

// TestStandbyStoppedWhileTheHostIsKilled stops the first standby: the second one goes
// after a lease. When the first wakes up it joins.
func TestStandbyStoppedWhileTheHostIsKilled(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	all := h.grown(3, elastic(t, "1:3"))
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
