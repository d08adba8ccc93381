package process

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The ways of binding workers to CPUs. Worker i belongs to device i.
const (
	numaNode        = "node"         // all CPUs of the device's NUMA node
	numaSocket      = "socket"       // all CPUs of the socket of that node
	numaExclusive   = "exclusive"    // an equal share of the node's cores
	numaCoreComplex = "core-complex" // the CPUs of one last-level cache of the node
)

// NUMAModes are all of them.
var NUMAModes = []string{numaNode, numaSocket, numaExclusive, numaCoreComplex}

// BindCPUs chooses the CPUs of each worker. devices are the PCI addresses of all
// devices, such as 0000:dc:00.0, of which the first belong to the workers. Only
// CPUs that this process may use are chosen.
func BindCPUs(mode string, devices []string, workers int) ([][]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("read the affinity: %w", err)
	}
	var allowed []int
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			allowed = append(allowed, cpu)
		}
	}
	t := topology{root: "/sys", allowed: allowed}
	return t.bind(mode, devices, workers)
}

// topology is the machine's CPUs as the kernel describes them.
type topology struct {
	root    string // of sysfs
	allowed []int
}

func (t *topology) bind(mode string, devices []string, workers int) ([][]int, error) {
	if workers > len(devices) {
		return nil, fmt.Errorf("there are %d workers, but %d devices", workers, len(devices))
	}
	nodes := make([]int, len(devices))
	for i, device := range devices {
		node, err := t.number("bus/pci/devices/" + device + "/numa_node")
		if err != nil {
			return nil, fmt.Errorf("the NUMA node of device %d: %w", i, err)
		}
		nodes[i] = max(node, 0) // a machine of one node often says -1
	}
	bound := make([][]int, workers)
	for i := range bound {
		// The device's place among those of its node.
		place, count := 0, 0
		for j, node := range nodes {
			if node == nodes[i] {
				if j < i {
					place++
				}
				count++
			}
		}
		cpus, err := t.cpusOf(mode, nodes[i], place, count)
		if err == nil && len(cpus) == 0 {
			err = fmt.Errorf("this process may use no CPU of NUMA node %d", nodes[i])
		}
		if err != nil {
			return nil, fmt.Errorf("the CPUs of device %d: %w", i, err)
		}
		bound[i] = cpus
	}
	return bound, nil
}

// cpusOf chooses for a device, the place-th of count on its node.
func (t *topology) cpusOf(mode string, node, place, count int) ([]int, error) {
	cpus, err := t.nodeCPUs(node)
	if err != nil || len(cpus) == 0 {
		return nil, err
	}
	switch mode {
	case numaNode:
		return cpus, nil
	case numaSocket:
		return t.socketCPUs(cpus[0])
	case numaExclusive:
		return t.share(cpus, place, count)
	case numaCoreComplex:
		return t.complex(cpus, place)
	}
	return nil, fmt.Errorf("unknown mode %q", mode)
}

// nodeCPUs are those of a NUMA node that may be used.
func (t *topology) nodeCPUs(node int) ([]int, error) {
	cpus, err := t.list(fmt.Sprintf("devices/system/node/node%d/cpulist", node))
	return slices.DeleteFunc(cpus, func(cpu int) bool { return !slices.Contains(t.allowed, cpu) }), err
}

func (t *topology) socket(cpu int) (int, error) {
	return t.number(fmt.Sprintf("devices/system/cpu/cpu%d/topology/physical_package_id", cpu))
}

// socketCPUs are those of all nodes whose lowest CPU is on the same socket.
func (t *topology) socketCPUs(cpu int) (all []int, err error) {
	socket, err := t.socket(cpu)
	if err != nil {
		return nil, err
	}
	nodes, err := t.list("devices/system/node/possible")
	if err != nil {
		return nil, err
	}
	for _, node := range nodes {
		cpus, err := t.nodeCPUs(node)
		if err != nil || len(cpus) == 0 {
			continue // possible, but not there
		}
		other, err := t.socket(cpus[0])
		if err != nil {
			return nil, err
		}
		if other == socket {
			all = append(all, cpus...)
		}
	}
	slices.Sort(all)
	return all, nil
}

// share is the place-th of count equal shares of the physical cores. The first shares get the
// remainder.
func (t *topology) share(cpus []int, place, count int) ([]int, error) {
	cores, err := t.group(cpus, func(cpu int) ([]int, error) {
		return t.list(fmt.Sprintf("devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu))
	})
	if err != nil {
		return nil, err
	}
	if len(cores) < count {
		return nil, fmt.Errorf("its NUMA node has %d cores for %d devices", len(cores), count)
	}
	each, extra := len(cores)/count, len(cores)%count
	first := place*each + min(place, extra)
	last := first + each
	if place < extra {
		last++
	}
	var share []int
	for _, name := range slices.Sorted(maps.Keys(cores))[first:last] {
		share = append(share, cores[name]...)
	}
	slices.Sort(share)
	return share, nil
}

// complex is one group of CPUs with a last-level cache: the largest first.
func (t *topology) complex(cpus []int, place int) ([]int, error) {
	caches, err := t.group(cpus, t.cacheSiblings)
	if err != nil {
		return nil, err
	}
	names := slices.SortedFunc(maps.Keys(caches), func(a, b int) int {
		return cmp.Or(cmp.Compare(len(caches[b]), len(caches[a])), cmp.Compare(a, b))
	})
	return caches[names[place%len(names)]], nil
}

// cacheSiblings are the CPUs that share the highest level of data cache with one.
func (t *topology) cacheSiblings(cpu int) (siblings []int, err error) {
	highest := -1
	folders, _ := filepath.Glob(filepath.Join(t.root, fmt.Sprintf("devices/system/cpu/cpu%d/cache/index[0-9]*", cpu)))
	for _, folder := range folders {
		folder, _ = filepath.Rel(t.root, folder)
		kind, err := t.text(folder + "/type")
		if err != nil {
			return nil, err
		}
		level, err := t.number(folder + "/level")
		if err != nil {
			return nil, err
		}
		if level <= highest || kind != "Unified" && kind != "Data" {
			continue
		}
		highest = level
		if siblings, err = t.list(folder + "/shared_cpu_list"); err != nil {
			return nil, err
		}
	}
	if highest < 0 {
		return nil, fmt.Errorf("the caches of CPU %d are not known", cpu)
	}
	return siblings, nil
}

// group groups CPUs by the lowest of their siblings.
func (t *topology) group(cpus []int, siblings func(int) ([]int, error)) (map[int][]int, error) {
	groups := make(map[int][]int)
	for _, cpu := range cpus {
		together, err := siblings(cpu)
		if err != nil {
			return nil, err
		}
		name := cpu
		if len(together) > 0 {
			name = slices.Min(together)
		}
		groups[name] = append(groups[name], cpu)
	}
	return groups, nil
}

func (t *topology) text(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(t.root, name))
	return strings.TrimSpace(string(text)), err
}

func (t *topology) number(name string) (int, error) {
	text, err := t.text(name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}

func (t *topology) list(name string) ([]int, error) {
	text, err := t.text(name)
	if err != nil {
		return nil, err
	}
	return parseCPUList(text)
}

const maxCPU = 1 << 16

// parseCPUList reads a list such as 0-2,4.
func parseCPUList(text string) (cpus []int, err error) {
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		first, last, ranged := strings.Cut(item, "-")
		low, err1 := strconv.Atoi(first)
		high, err2 := low, error(nil)
		if ranged {
			high, err2 = strconv.Atoi(last)
		}
		if err1 != nil || err2 != nil || low < 0 || high < low || high > maxCPU {
			return nil, fmt.Errorf("%q is not a list of CPUs", text)
		}
		for cpu := low; cpu <= high; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	slices.Sort(cpus)
	return slices.Compact(cpus), nil
}

// withCPUs runs f, which starts a process from this thread, with the affinity that the process
// should have; nil: this process's. The thread must be locked.
func withCPUs(cpus []int, f func() error) error {
	if cpus == nil {
		return f()
	}
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("read the affinity: %w", err)
	}
	if err := bindTo(0, cpus); err != nil {
		return err
	}
	defer func() { _ = unix.SchedSetaffinity(0, &before) }()
	return f()
}

// bindTo binds a thread to CPUs; 0 is the calling one.
func bindTo(thread int, cpus []int) error {
	var set unix.CPUSet
	for _, cpu := range cpus {
		set.Set(cpu)
	}
	if err := unix.SchedSetaffinity(thread, &set); err != nil {
		return fmt.Errorf("bind to CPUs: %w", err)
	}
	return nil
}
