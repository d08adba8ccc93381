package cli

import (
	"syscall"
	"testing"
	"time"
)

// TestMajorityLostAtOnce: the host and one of the two other voters are silent, and are killed then. The third founds the control plane anew after four leases, and the
// nodes that are left form the next round.
func TestMajorityLostAtOnce(t *testing.T) {
	onlyLong(t)
	t.Parallel()
	j := newLocalJob(t, 4)
	j.signal(syscall.SIGSTOP, 1, 2)
	time.Sleep(silenceLease * 7 / 10) // what is tested
	j.signal(syscall.SIGKILL, 1, 2)
	j.await(3, "this node founds the control plane anew")
	j.readRound(2)
	j.end(anyHosts, 1, 2)
}
