package standby

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestSuspendedHost: the machine of a host is suspended, and the others elect another meanwhile. By a clock that
// goes on it knows at once that nobody has heard it for a while; by one that has stood still it would judge
// leases, and tell nodes what it knows, beside the other.
func TestSuspendedHost(t *testing.T) {
	const lease = 10 * time.Second
	now := time.Hour
	g := newGroup("run", "a", lease, false, func() time.Duration { return now })
	g.SetSelf("10.0.0.1:1", "")
	g.Found(time.Now())
	voters := votersOf(g, map[string]*Link{"b": linkTo(g, "b", "a", "c"), "c": linkTo(g, "c", "a", "b")})
	if g.SetEligible([]string{"b", "c"}); !g.Votes() {
		t.Fatal("no voters")
	}
	voters.carry()
	for range 3 { // beats
		now += g.Beat()
		g.tick()
		voters.carry()
	}
	if !g.Committed(0) {
		t.Fatal("a host that its voters hear says nothing")
	}
	if now += lease; g.Committed(0) {
		t.Error("a host whose machine was suspended for a lease believes that its voters hear it")
	}
}

// TestClockGoesOnInSuspend: in a namespace whose clock of the time since the boot is ahead of the one that stands still
// in suspend, a group lives by the former.
func TestClockGoesOnInSuspend(t *testing.T) {
	const ahead = 1_000_000 // seconds
	if os.Getenv("RALLYPOINT_TEST_CLOCK") == "" {
		c := exec.Command("unshare", "--time", "--boottime", fmt.Sprint(ahead), "--fork", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		c.Env = append(os.Environ(), "RALLYPOINT_TEST_CLOCK=1")
		out, err := c.CombinedOutput()
		switch {
		case strings.Contains(string(out), "unshare:"):
			t.Skipf("no time namespaces: %s", out)
		case err != nil:
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if at := NewGroup("run", "a", time.Second, false).clock(); at < ahead*time.Second {
		t.Errorf("its clock says %s", at)
	}
}
