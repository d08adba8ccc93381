package agent

import (
	"errors"
	"os"
	"testing"
)

func TestCgroupPlace(t *testing.T) {
	const plain = "24 1 0:21 / /sys rw - sysfs sysfs rw\n41 31 0:38 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw\n"
	const hybrid = "30 1 0:2 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
	for _, c := range []struct{ cgroups, mounts, mount, group string }{
		{"0::/user.slice/a\n", plain, "/sys/fs/cgroup", "/user.slice/a"},
		{"2:cpu:/x\n0::/\n", hybrid, "/sys/fs/cgroup/unified", "/"},
		{"2:cpu:/x\n", plain, "", ""},
		{"0::/../other\n", plain, "", ""},
		{"0::/a\n", "41 31 0:38 /a /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "", ""},
		{"0::/a\n", "nonsense - cgroup2\n", "", ""},
		{"", "", "", ""},
	} {
		mount, group, ok := cgroupPlace(c.cgroups, c.mounts)
		if mount != c.mount || group != c.group || ok != (c.mount != "") {
			t.Errorf("%q: %q, %q, %v", c.cgroups, mount, group, ok)
		}
	}
}

// TestCgroup ends detached descendants also in a process that is no subreaper.
func TestCgroup(t *testing.T) {
	g := newCgroup()
	if g == nil {
		t.Skip("no control group can be made here")
	}
	path := g.path
	g.close()
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the group is still there: %v", err)
	}
	s := newStage(t, 1, leavesDescendants+"; exit 1")
	s.spec.ShutdownTimeout = 0
	goFile := s.goFile()
	s.start()
	pids := s.hearPids(2)
	if len(pids) != 4 {
		t.Fatalf("pids %v", pids)
	}
	group := s.agent.forker.group
	if !group.has(pids[0]) || !group.has(pids[3]) || group.has(os.Getpid()) {
		t.Errorf("members %v, expected %v", group.members(), pids)
	}
	if err := os.WriteFile(goFile, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	var failed *FailedError
	if err := s.wait(); !errors.As(err, &failed) {
		t.Errorf("the run ended with %v", err)
	}
	for _, pid := range pids { // whoever adopted them may not have reaped them yet
		if stat, ok := readStat(pid); ok && stat.state != 'Z' {
			t.Errorf("process %d is still there, in state %c", pid, stat.state)
		}
	}
	if _, err := os.Stat(group.path); !os.IsNotExist(err) {
		t.Errorf("the group is still there: %v", err)
	}
}
