package cli

import (
	"strconv"
	"syscall"
	"testing"
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
