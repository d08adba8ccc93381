package lockedfile

import "testing"

func TestLocalLocks(t *testing.T) {
	const table = `22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
40 22 0:50 / /a rw,relatime shared:2 - nfs4 host:/a rw,vers=4.2,local_lock=none,addr=10.0.0.1
41 22 0:51 / /b rw,relatime - nfs host:/b rw,vers=3,nolock,local_lock=all,addr=10.0.0.1
42 22 0:52 / /c rw,relatime - nfs host:/c rw,vers=3,local_lock=flock,addr=10.0.0.1
`
	for minor, want := range map[uint32]string{50: "", 51: "nolock", 52: "local_lock=flock"} {
		if got := localLockOption([]byte(table), 0, minor); got != want {
			t.Errorf("device 0:%d: got %q, want %q", minor, got, want)
		}
	}
	if got := localLockOption([]byte(table), 254, 1); got != "" {
		t.Errorf("ext4: %q", got)
	}
}
