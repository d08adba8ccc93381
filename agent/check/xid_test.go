package check

import (
	"path/filepath"
	"strings"
	"testing"

	"rallypoint/internal/testkit"
)

const (
	lostGPU   = "3,812,5004,-;NVRM: Xid (PCI:0000:dc:00): 79, pid=4711, name=python, GPU has fallen off the bus.\n"
	needs     = "3,813,5005,-;NVRM: Xid (PCI:0000:dc:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)\n"
	needsNone = "3,900,9000,-;NVRM: Xid (PCI:0000:dc:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)\n"
	ofScript  = "3,700,4000,-;NVRM: Xid (PCI:0000:1a:00): 31, pid=4711, name=python, Ch 00000008\n"
)

// TestXids: the last word of the driver about a GPU decides, and without one the number of the error.
func TestXids(t *testing.T) {
	for _, c := range []struct {
		log, check string
		state      State
		says       string
	}{
		{"", "xid", Fit, " "},
		{"6,1,2,-;Linux version 6.1\n SUBSYSTEM=cpu\n" + ofScript, "xid", Fit, " "},
		{ofScript + lostGPU, "xid", Unfit, "gpu_xid Xid 79 on 0000:dc:00 since"},
		{lostGPU + needs, "xid", Unfit, "gpu_xid Xid 79, then Xid 154: Node Reboot Required on 0000:dc:00 since"},
		{needs, "xid", Unfit, "gpu_xid Xid 154: Node Reboot Required on"},
		{lostGPU + needs + needsNone, "xid", Fit, " "},
		{lostGPU + needs + needsNone + lostGPU, "xid", Unfit, "gpu_xid Xid 79 on"},
		{lostGPU, "xid:48,64", Fit, " "},
		{ofScript, "xid:31", Unfit, "gpu_xid Xid 31 on 0000:1a:00"},
		{strings.TrimSuffix(ofScript, ", pid=4711, name=python, Ch 00000008\n"), "xid:31", Unfit, "gpu_xid Xid 31 on"},
		{"3,1,2,-;NVRM: Xid (PCI:0000:dc:00): 154\n3,1,2,-;NVRM: Xid (PCI:" + strings.Repeat("0", 99) + "): 79, x\n", "xid", Fit, " "},
	} {
		m := Machine{Kmsg: filepath.Join(t.TempDir(), "kmsg")}
		testkit.WriteFile(t, m.Kmsg, []byte(c.log))
		v, err := m.Look(t.Context(), c.check)
		if got := v.Reason + " " + v.Text; err != nil || v.State != c.state || !strings.HasPrefix(got, c.says) {
			t.Errorf("%s of %q: %+v, %v", c.check, c.log, v, err)
		}
	}
}

// TestKernelLog reads this machine's, where that is allowed; where it is not, nobody can tell.
func TestKernelLog(t *testing.T) {
	if v, err := (Machine{Kmsg: filepath.Join(t.TempDir(), "none")}).Look(t.Context(), "xid"); err != nil || v.State != Unknown || !strings.Contains(v.Text, "the kernel's log cannot be read: open ") {
		t.Errorf("%+v, %v", v, err)
	}
	log, err := kernelLog("/dev/kmsg")
	if err != nil {
		t.Skip(err)
	}
	if len(log) > 0 && !strings.Contains(string(log), ";") {
		t.Errorf("%.200q", log)
	}
}

func FuzzXids(f *testing.F) {
	f.Add([]byte(lostGPU + needs + needsNone + ofScript))
	f.Fuzz(func(t *testing.T, log []byte) {
		if v := judgeXids(log, fatalXids); v.State == Unfit && !strings.Contains(string(log), "NVRM: Xid (PCI:") {
			t.Errorf("%+v", v)
		}
	})
}
