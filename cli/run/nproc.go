package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent/process"
	"rallypoint/internal/background"
	"rallypoint/internal/printable"
)

// localWorkers is the number of workers that --nproc-per-node means.
// interpreter answers, if nothing else can, how many GPUs torch sees. warning says that auto counts
// CPUs although there are devices; "": it does not.
func localWorkers(text string, allOfCPUs bool, interpreter string) (n int, warning string, err error) {
	if n, err := strconv.Atoi(strings.TrimSpace(text)); err == nil {
		if n < 1 {
			return 0, "", usagef("argument --nproc-per-node: it is %d, it must be at least 1", n)
		}
		return n, "", nil
	}
	switch text {
	case "cpu":
		return cpuCount(allOfCPUs), "", nil
	case "gpu":
		n, err = deviceCount(interpreter, "cuda")
		if err == nil && n == 0 {
			err = usagef("gpu: Cuda is not available: torch of %s sees no GPU; give a number, cpu or auto", interpreter)
		}
	case "xpu":
		n, err = deviceCount(interpreter, "xpu")
		if err == nil && n == 0 {
			err = usagef("xpu: Xpu is not available: torch of %s sees none; give a number, cpu or auto", interpreter)
		}
	case "auto":
		n, err = deviceCount(interpreter, "accelerator")
		if err != nil && !errors.Is(err, errNoAnswer) {
			warning, err = fmt.Sprintf("--nproc-per-node=auto counts CPUs: %v", err), nil
		}
		if err == nil && n == 0 {
			n = cpuCount(allOfCPUs)
		}
	default:
		err = usagef("Unsupported nproc_per_node value: %s; give a number, auto, cpu, gpu or xpu", text)
	}
	if err != nil {
		return 0, "", usagef("argument --nproc-per-node: %v", err)
	}
	return n, warning, nil
}

// cpuCount is the number of CPUs that this process may run on, and unless all
// are wanted no more than its control group's quota, rounded up.
func cpuCount(all bool) int {
	var set unix.CPUSet
	n := 1
	if unix.SchedGetaffinity(0, &set) == nil {
		n = max(set.Count(), 1)
	}
	if all {
		return n
	}
	if quota, ok := cpuQuota("/proc/self/cgroup", "/sys/fs/cgroup"); ok {
		n = max(min(n, int(math.Ceil(quota))), 1)
	}
	return n
}

// cpuQuota is the smallest quota in CPUs of the control group (v2) that file
// names, and of those above it, under root.
func cpuQuota(file, root string) (quota float64, ok bool) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	path, v2 := process.GroupOf(string(text))
	if !v2 {
		return 0, false
	}
	for {
		if q, set := readQuota(filepath.Join(root, path, "cpu.max")); set && (!ok || q < quota) {
			quota, ok = q, true
		}
		if path == "/" || path == "." || path == "" {
			return quota, ok
		}
		path = filepath.Dir(path)
	}
}

// readQuota reads a cpu.max file: "<quota or max> <period>".
func readQuota(path string) (cpus float64, ok bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	fields := strings.Fields(string(text))
	if len(fields) != 2 {
		return 0, false
	}
	quota, err1 := strconv.ParseFloat(fields[0], 64)
	period, err2 := strconv.ParseFloat(fields[1], 64)
	if err1 != nil || err2 != nil || period <= 0 {
		return 0, false
	}
	return quota / period, true
}

// devicePatience bounds a question to torch, which loads the devices' driver. Only tests change it.
var devicePatience = 2 * time.Minute

// deviceFiles are the device files that accelerators' drivers make. A machine without
// accelerators has none.
var deviceFiles = map[string][]string{
	"cuda":        {"/dev/nvidia[0-9]*", "/dev/kfd"},
	"xpu":         {"/dev/dri/renderD*"},
	"accelerator": {"/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dri/renderD*", "/dev/accel*"},
}

// deviceQuestion asks torch, by module name, for the number of its devices; torch
// before 2.6 has no torch.accelerator.
const deviceQuestion = `import sys, torch
m = getattr(torch, sys.argv[1], torch.cuda)
print(m.device_count() if m.is_available() else 0)`

func deviceCount(interpreter, module string) (int, error) {
	n := 0
	text, err := askTorch(interpreter, module, deviceQuestion)
	if err == nil && text != "" {
		if n, err = strconv.Atoi(text); err != nil {
			err = cannotAsk(interpreter, fmt.Errorf("it answers %.100q, which is no number", text))
		}
	}
	if err != nil {
		err = fmt.Errorf("%w; give a number, or cpu", err)
	}
	return n, err
}

// errNoAnswer is why torch cannot be asked where a driver hangs.
var errNoAnswer = errors.New("it did not answer")

func cannotAsk(interpreter string, err error) error {
	return fmt.Errorf("torch of %s cannot be asked for devices: %w", interpreter, err)
}

// notFromHere begins each question: another user may own the current directory, from
// which -c would import.
const notFromHere = `import sys
if sys.path[:1] == [""]: del sys.path[0]
`

const pciQuestion = `import sys, torch
if torch.accelerator.is_available():
    m = torch.get_device_module(torch.accelerator.current_accelerator())
    for i in range(torch.accelerator.device_count()):
        p = m.get_device_properties(i)
        print("%04x:%02x:%02x.0" % (p.pci_domain_id, p.pci_bus_id, p.pci_device_id))`

// askTorch asks torch in a child interpreter if there are device files: only torch knows which
// devices its build and the environment allow. Without these files the answer is empty.
func askTorch(interpreter, module, question string) (answer string, err error) {
	there := 0
	for _, pattern := range deviceFiles[module] {
		files, _ := filepath.Glob(pattern)
		there += len(files)
	}
	if there == 0 {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), devicePatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, interpreter, "-c", notFromHere+question, module)
	cmd.WaitDelay = time.Second
	var out []byte
	var failed error
	answered := background.Within(devicePatience+2*cmd.WaitDelay, func() { out, failed = cmd.Output() }) // no signal ends one that waits for the driver
	if ctx.Err() != nil || !answered {
		return "", cannotAsk(interpreter, fmt.Errorf("%w within %v, as where a driver hangs", errNoAnswer, devicePatience))
	}
	if ended := new(exec.ExitError); errors.As(failed, &ended) {
		lines := strings.Split(strings.TrimSpace(string(ended.Stderr)), "\n")
		failed = errors.New(cmp.Or(printable.Text(lines[len(lines)-1]), failed.Error()))
	}
	if failed != nil {
		return "", cannotAsk(interpreter, failed)
	}
	return strings.TrimSpace(string(out)), nil
}
