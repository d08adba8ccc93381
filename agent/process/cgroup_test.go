package process

import "testing"

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
