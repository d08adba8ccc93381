package process

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// machine makes the files of two sockets with two NUMA nodes each. A node has four
// cores of two threads: node n has CPUs 4n to 4n+3 and their siblings, 16 higher;
// each two cores share a last-level cache. There is a fifth node without a CPU.
func machine(t *testing.T, devices map[string]int) topology {
	t.Helper()
	root := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for address, node := range devices {
		write("bus/pci/devices/"+address+"/numa_node", fmt.Sprint(node))
	}
	write("devices/system/node/possible", "0-4")
	write("devices/system/node/node4/cpulist", "")
	for node := range 4 {
		write(fmt.Sprintf("devices/system/node/node%d/cpulist", node), fmt.Sprintf("%d-%d,%d-%d", 4*node, 4*node+3, 4*node+16, 4*node+19))
	}
	for cpu := range 32 {
		dir, core := fmt.Sprintf("devices/system/cpu/cpu%d/", cpu), cpu%16
		write(dir+"topology/physical_package_id", fmt.Sprint(core/8))
		write(dir+"topology/thread_siblings_list", fmt.Sprintf("%d,%d", core, core+16))
		pair := core / 2 * 2
		for i, c := range [][3]string{
			{"1", "Data", fmt.Sprintf("%d,%d", core, core+16)},
			{"1", "Instruction", fmt.Sprintf("%d,%d", core, core+16)},
			{"3", "Unified", fmt.Sprintf("%d-%d,%d-%d", pair, pair+1, pair+16, pair+17)},
			{"4", "Instruction", "0-31"},
		} {
			write(fmt.Sprintf("%scache/index%d/level", dir, i), c[0])
			write(fmt.Sprintf("%scache/index%d/type", dir, i), c[1])
			write(fmt.Sprintf("%scache/index%d/shared_cpu_list", dir, i), c[2])
		}
	}
	var all []int
	for cpu := range 32 {
		all = append(all, cpu)
	}
	return topology{root: root, allowed: all}
}

// TestBindCPUs follows A100 on such a machine, with three devices on node 1 and one
// on node 0, which its driver calls -1.
func TestBindCPUs(t *testing.T) {
	devices := []string{"0000:01:00.0", "0000:02:00.0", "0000:03:00.0", "0000:04:00.0"}
	m := machine(t, map[string]int{devices[0]: 1, devices[1]: -1, devices[2]: 1, devices[3]: 1})
	for _, c := range []struct {
		mode, without, want string
	}{
		{numaNode, "", "[[4 5 6 7 20 21 22 23] [0 1 2 3 16 17 18 19] [4 5 6 7 20 21 22 23] [4 5 6 7 20 21 22 23]]"},
		{numaNode, "4-6,1", "[[7 20 21 22 23] [0 2 3 16 17 18 19] [7 20 21 22 23] [7 20 21 22 23]]"},
		{numaSocket, "1-6", "[[0 7 16 17 18 19 20 21 22 23] [0 7 16 17 18 19 20 21 22 23] [0 7 16 17 18 19 20 21 22 23] [0 7 16 17 18 19 20 21 22 23]]"},
		{numaExclusive, "", "[[4 5 20 21] [0 1 2 3 16 17 18 19] [6 22] [7 23]]"},
		{numaExclusive, "4,20", "[[5 21] [0 1 2 3 16 17 18 19] [6 22] [7 23]]"},
		{numaExclusive, "4-5,20-21", "error"},
		{numaCoreComplex, "", "[[4 5 20 21] [0 1 16 17] [6 7 22 23] [4 5 20 21]]"},
		{numaCoreComplex, "4", "[[6 7 22 23] [0 1 16 17] [5 20 21] [6 7 22 23]]"},
		{numaNode, "4-7,20-23", "error"},
		{"other", "", "error"},
	} {
		without, err := parseCPUList(c.without)
		if err != nil {
			t.Fatal(err)
		}
		here := m
		here.allowed = slices.DeleteFunc(slices.Clone(m.allowed), func(cpu int) bool { return slices.Contains(without, cpu) })
		cpus, err := here.bind(c.mode, devices, len(devices))
		got := fmt.Sprint(cpus)
		if err != nil {
			got = "error"
		}
		if got != c.want {
			t.Errorf("%s without %q: %s, %v; expected %s", c.mode, c.without, got, err, c.want)
		}
	}
	if _, err := m.bind(numaNode, devices, 5); err == nil {
		t.Error("five workers have four devices")
	}
	if _, err := m.bind(numaNode, []string{"0000:99:00.0"}, 1); err == nil {
		t.Error("a device that is not there has a node")
	}
}

func TestParseCPUList(t *testing.T) {
	for text, want := range map[string]string{"": "[]", "3": "[3]", "0-2,7,5": "[0 1 2 5 7]", "1-": "error", "a": "error", "2-1": "error", "0-99999999": "error"} {
		cpus, err := parseCPUList(text)
		got := fmt.Sprint(cpus)
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%q: %s", text, got)
		}
	}
}
