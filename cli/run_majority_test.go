package cli

import (
	"syscall"
	"testing"
	"time"
)

// TestMajorityLostAtOnce: the host and one of the two other voters are silent, and are killed then. The third must not
// found the control plane anew: the two may have gone on, and have ended. It gives the run up, and so does the node that
// has waited with it.
func TestMajorityLostAtOnce(t *testing.T) {
	onlyLong(t)
	t.Parallel()
	j := newLocalJob(t, 4)
	j.signal(syscall.SIGSTOP, 1, 2)
	time.Sleep(silenceLease * 7 / 10) // what is tested
	j.signal(syscall.SIGKILL, 1, 2)
	for m := 3; m <= 4; m++ {
		if code := j.nodes[m-1].end(); code != 1 || !j.told(m, "nobody is left who could host it") {
			t.Errorf("machine %d: exit code %d", m, code)
		}
	}
	j.audit(anyHosts)
}
