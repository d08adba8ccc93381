package run

import (
	"os"
	"testing"

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
	before := deviceFiles
	t.Cleanup(func() { deviceFiles = before })
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
	}{
		{"devices", torch, true, map[string]int{"auto": 5, "gpu": 3, "xpu": 2, "cpu": cpus, "4": 4}},
		{"no accelerator", "cuda = xpu = accelerator = __import__('types').SimpleNamespace(is_available=lambda: False)", true,
			map[string]int{"auto": cpus, "gpu": 0, "xpu": 0}},
		{"older torch", "class cuda:\n    is_available = lambda: True\n    device_count = lambda: 7\n", true, map[string]int{"auto": 7, "gpu": 7}},
		{"torch that cannot be imported", broken, true, map[string]int{"auto": cpus, "gpu": 0}},
		{"no driver", torch, false, map[string]int{"auto": cpus, "gpu": 0, "xpu": 0}},
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
		for text, want := range c.want {
			got, err := localWorkers(text, true, "python3")
			if got != want || (err == nil) != (want > 0) {
				t.Errorf("%s: %s is %d (%v), expected %d", c.name, text, got, err, want)
			}
		}
	}
}
