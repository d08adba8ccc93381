package check

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/internal/testkit"
)

// machine has interfaces, InfiniBand devices, and an nvidia-smi that runs a script.
func machine(t *testing.T, smi string) Machine {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"class/net/eth0/carrier":                "1\n",
		"class/net/eth1/carrier":                "0\n",
		"class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
		"class/infiniband/mlx5_1/ports/1/state": "1: DOWN\n",
		"class/infiniband/mlx5_1/ports/2/state": "2: INIT\n",
	} {
		path := filepath.Join(dir, name)
		testkit.Check(t, os.MkdirAll(filepath.Dir(path), 0o700))
		testkit.WriteFile(t, path, []byte(text))
	}
	path := filepath.Join(dir, "nvidia-smi")
	if smi != "" {
		testkit.Check(t, os.WriteFile(path, []byte("#!/bin/sh\n"+smi+"\n"), 0o700))
	}
	return Machine{Sys: dir, SMI: path, GPUs: 2}
}

func TestLook(t *testing.T) {
	full := t.TempDir()
	for _, c := range []struct {
		smi, check string
		state      State
		says       string // reason and text
	}{
		{"", "nic:eth0", Fit, " "},
		{"", "nic:eth1", Unfit, "nic_down eth1 has no carrier"},
		{"", "nic:mlx5_0", Fit, " "},
		{"", "nic:mlx5_1", Unfit, "nic_down no port of mlx5_1 is active"},
		{"", "nic:ib0", Unfit, "nic_missing there is no"},
		{"", "disk:" + full, Fit, " "},
		{"", "disk:" + full + ":4K", Fit, " "},
		{"", "disk:" + full + ":1000000T", Unfit, "disk_full "},
		{"", "disk:" + full + "/none", Unfit, "disk open "},
		{"", "disk:/sys", Unknown, " open /sys/"},
		{"", "gpu", Unknown, " nvidia-smi: "},
		{"echo '0, 0, No'; echo '1, [N/A], [N/A]'", "gpu", Fit, " "},
		{"echo '0, 0, No'; echo '1, 0, No'", "gpu:3", Unfit, "gpu_missing found 2 of 3 GPUs"},
		{"echo '0, 0, No'; echo '1, 12, No'", "gpu", Unfit, "gpu_ecc GPU 1 has 12 uncorrected memory errors"},
		{"echo '0, 0, Yes'; echo '1, 0, No'", "gpu:1", Unfit, "gpu_row_remap GPU 0 waits"},
		{"echo 'Unable to determine the device handle: GPU is lost'; exit 15", "gpu", Unfit, "gpu_lost Unable to"},
		{"echo 'could not communicate with the driver'; exit 9", "gpu", Unknown, " nvidia-smi: exit status 9: could not"},
		{"echo", "gpu", Unfit, "gpu_missing found 0 of 2 GPUs"},
	} {
		v, err := machine(t, c.smi).Look(t.Context(), c.check)
		if got := v.Reason + " " + v.Text; err != nil || v.State != c.state || !strings.HasPrefix(got, c.says) {
			t.Errorf("%s after %q: %+v, %v", c.check, c.smi, v, err)
		}
	}
	if left, _ := os.ReadDir(full); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestLookEnded: a check that is ended takes no node out, however the driver is.
func TestLookEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	say := filepath.Join(t.TempDir(), "say")
	testkit.Check(t, unix.Mkfifo(say, 0o600))
	go func() {
		_, _ = os.ReadFile(say) // it runs
		cancel()
	}()
	if v, err := machine(t, "echo up > "+say+"; exec sleep 100").Look(ctx, "gpu"); err != nil || v.State != Unknown {
		t.Errorf("%+v, %v", v, err)
	}
}

// TestLookHung: a driver that hangs in the kernel, where no signal ends who asks it, is found to hang. It
// is a frozen group of version 1, if this machine has these.
func TestLookHung(t *testing.T) {
	group, err := os.MkdirTemp("/sys/fs/cgroup/freezer", "rallypoint-test-")
	if err != nil {
		t.Skip("no group of version 1 can be frozen here: ", err)
	}
	t.Cleanup(func() {
		testkit.WriteFile(t, group+"/freezer.state", []byte("THAWED"))
		for os.Remove(group) != nil {
			runtime.Gosched()
		}
	})
	defer func(d time.Duration) { smiPatience = d }(smiPatience)
	smiPatience = 100 * time.Millisecond
	m := machine(t, "echo $$ > "+group+"/cgroup.procs; echo FROZEN > "+group+"/freezer.state; echo '0, 0, No'")
	if v, err := m.Look(t.Context(), "gpu:1"); err != nil || v.State != Unfit || v.Reason != "gpu_hang" {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestLookRefused(t *testing.T) {
	for _, text := range []string{"", "gpu:", "gpu:0", "gpu:x", "xid:", "xid:0", "xid:x", "xid:79,", "xid:1234567", "disk", "disk:", "disk:/tmp:x", "disk:/tmp:-1", "disk:/tmp:9999999999T", "nic", "nic:", "nic:../x", "nic:..", "clock"} {
		if v, err := machine(t, "").Look(t.Context(), text); err == nil {
			t.Errorf("%q: %+v", text, v)
		}
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]uint64{"0": 0, "4096": 4096, "1K": 1 << 10, "3M": 3 << 20, "10G": 10 << 30, "2T": 2 << 40} {
		if got, err := parseSize(text); err != nil || got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
}
