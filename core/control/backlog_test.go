package control

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/internal/testkit"
)

// shortBacklog is set in the process that runs a test in a network of its own, whose
// listeners have a backlog of one connection.
const shortBacklog = "RALLYPOINT_TEST_SHORT_BACKLOG"

// withShortBacklog runs the test again in such a process; there it reports true. Skipped
// where no network namespace is allowed.
func withShortBacklog(t *testing.T) bool {
	t.Helper()
	if os.Getenv(shortBacklog) != "" {
		if err := shortenBacklog(); err != nil {
			t.Skip(err)
		}
		return true
	}
	c := exec.Command(os.Args[0], "-test.v", "-test.run=^"+t.Name()+"$")
	c.Env = append(os.Environ(), shortBacklog+"=1")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if uid := os.Geteuid(); uid != 0 {
		c.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: uid, Size: 1}}
	}
	out, err := c.CombinedOutput()
	switch {
	case c.ProcessState == nil:
		t.Skipf("no network namespaces: %v", err)
	case err != nil:
		t.Errorf("%v\n%s", err, out)
	case strings.Contains(string(out), "--- SKIP"):
		t.Skipf("%s", out)
	}
	t.Logf("%s", out)
	return false
}

func shortenBacklog() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("cannot set the loopback device up: %w", err)
	}
	return os.WriteFile("/proc/sys/net/core/somaxconn", []byte("1"), 0)
}

// TestThousandClientsAndABacklogOfOne has a thousand nodes look for the successor of their
// host at one time, at a listener that keeps one connection waiting. All are served, and
// in the next round.
func TestThousandClientsAndABacklogOfOne(t *testing.T) {
	if !withShortBacklog(t) {
		return
	}
	crowd := 50
	if long {
		crowd = 1000
	}
	p := elastic(t, 3+crowd)
	p.Min = 2 + crowd
	p.LeaseTimeout, p.ReconnectGrace = testkit.Patience, testkit.Patience
	var nodes []*plane
	for _, name := range []string{"a", "b", "c"} {
		nodes = append(nodes, newPlane(t, name, p).connect())
	}
	no := false
	p.IsHost = &no
	for i := range crowd {
		nodes = append(nodes, newPlane(t, fmt.Sprint("n", i), p).connect())
	}
	regroup(t, nodes)
	awaitStandbys(t, nodes, 2)
	nodes[0].kill()
	began := time.Now()
	nodes = nodes[1:]
	// They get in one by one: the last of them late where the machine has much else to do.
	left := slices.Clone(nodes)
	for end := time.Now().Add(testkit.Patience); len(left) > 0; time.Sleep(10 * time.Millisecond) {
		before := len(left)
		left = slices.DeleteFunc(left, func(n *plane) bool { return slices.ContainsFunc(n.obs.All(), n.regroups) })
		switch {
		case len(left) < before:
			end = time.Now().Add(testkit.Patience)
		case time.Now().After(end):
			t.Fatalf("no node gets in any more: %d are served, %d are not, node %s among them", len(nodes)-len(left), len(left), left[0].name)
		}
	}
	t.Logf("all are served %v after the host was killed", time.Since(began).Round(time.Millisecond))
	regroup(t, nodes)
}
