package run

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLocalWorkers counts devices by a torch that is asked in an interpreter of its
// own, and only where a driver has left files.
func TestLocalWorkers(t *testing.T) {
	dir := t.TempDir()
	const torch = `class Devices:
    def __init__(self, n): self.n = n
    def is_available(self): return self.n > 0
    def device_count(self): return self.n
cuda, xpu, accelerator = Devices(3), Devices(2), Devices(5)
`
	const broken = "raise ImportError('no driver')\n"
	before, patience := deviceFiles, devicePatience
	t.Cleanup(func() { deviceFiles, devicePatience = before, patience })
	t.Setenv("PYTHONPATH", dir)
	t.Setenv("PYTHONDONTWRITEBYTECODE", "1")
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	cpus := set.Count()
	here := t.TempDir()
	hostile(t, here)
	t.Chdir(here)
	for _, c := range []struct {
		name, torch string
		drivers     bool
		want        map[string]int // 0: an error
		says        string         // by the error or the warning
	}{
		{"devices", torch, true, map[string]int{"auto": 5, "gpu": 3, "xpu": 2, "cpu": cpus, "4": 4}, ""},
		{"no accelerator", "cuda = xpu = accelerator = __import__('types').SimpleNamespace(is_available=lambda: False)", true,
			map[string]int{"auto": cpus, "gpu": 0, "xpu": 0}, "is not available: torch of python3 sees no"},
		{"older torch", "class cuda:\n    is_available = lambda: True\n    device_count = lambda: 7\n", true, map[string]int{"auto": 7, "gpu": 7}, ""},
		{"torch that cannot be imported", broken, true, map[string]int{"auto": cpus, "gpu": 0}, "torch of python3 cannot be asked for devices: ImportError: no driver; give a number"},
		{"torch that writes to stdout", "print('hello')\n" + torch, true, map[string]int{"auto": cpus, "gpu": 0}, `torch of python3 cannot be asked for devices: it answers "hello\n`},
		{"a driver that hangs", "import time\ntime.sleep(1000)\n", true, map[string]int{"auto": 0, "gpu": 0}, "torch of python3 cannot be asked for devices: it did not answer within 1s, as where a driver hangs; give a number"},
		{"no driver", torch, false, map[string]int{"auto": cpus, "gpu": 0, "xpu": 0}, "is not available: torch of python3 sees no"},
	} {
		if err := os.WriteFile(dir+"/torch.py", []byte(c.torch), 0o600); err != nil {
			t.Fatal(err)
		}
		deviceFiles = map[string][]string{}
		if c.drivers {
			for module := range before {
				deviceFiles[module] = []string{"/nowhere/*", dir + "/torch.p[y]"}
			}
		}
		if strings.Contains(c.torch, "sleep") {
			devicePatience = time.Second
		}
		for text, want := range c.want {
			got, says, err := localWorkers(text, true, "python3")
			if got != want || (err == nil) != (want > 0) {
				t.Errorf("%s: %s is %d (%v), expected %d", c.name, text, got, err, want)
			}
			if err != nil {
				says = err.Error()
			}
			warned := text == "auto" && strings.Contains(c.says, "asked")
			if silent := err == nil && !warned; silent && says != "" || !silent && !strings.Contains(says, c.says) {
				t.Errorf("%s: %s says %q, expected %q", c.name, text, says, c.says)
			}
		}
	}
}
