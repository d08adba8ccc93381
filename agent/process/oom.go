package process

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// OOMCounter counts the processes that the kernel killed because memory ran out,
// in this process's control group or, where the group has no count, on the whole
// machine. The zero value counts nothing.
type OOMCounter struct {
	path  string // of a file with a line "oom_kill <number>"
	where string // what the count is of
	base  uint64
}

// NewOOMCounter finds the best counter below root, which is "/" but in tests.
func NewOOMCounter(root string) OOMCounter {
	for _, group := range memoryGroups(filepath.Join(root, "proc/self/cgroup")) {
		for _, mount := range group.files {
			c := OOMCounter{path: filepath.Join(root, mount), where: "the control group " + group.name}
			if _, ok := c.read(); ok {
				c.Reset()
				return c
			}
		}
	}
	c := OOMCounter{path: filepath.Join(root, "proc/vmstat"), where: "this machine"}
	c.Reset()
	return c
}

// memoryGroup is a control group, and where its count may be.
type memoryGroup struct {
	name  string
	files []string
}

// memoryGroups reads /proc/self/cgroup: v2 first, then v1's memory controller.
// Inside a container the group's own folder is often the root of the mount.
func memoryGroups(file string) (groups []memoryGroup) {
	text, _ := os.ReadFile(file)
	if name, ok := GroupOf(string(text)); ok {
		groups = append(groups, memoryGroup{name, []string{
			filepath.Join("sys/fs/cgroup", name, "memory.events"), "sys/fs/cgroup/memory.events",
			filepath.Join("sys/fs/cgroup/unified", name, "memory.events"),
		}})
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) == 3 && slices.Contains(strings.Split(fields[1], ","), "memory") {
			groups = append(groups, memoryGroup{fields[2], []string{
				filepath.Join("sys/fs/cgroup/memory", fields[2], "memory.oom_control"), "sys/fs/cgroup/memory/memory.oom_control",
			}})
		}
	}
	return groups
}

func (o *OOMCounter) read() (kills uint64, ok bool) {
	text, err := os.ReadFile(o.path)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if text, found := strings.CutPrefix(line, "oom_kill "); found {
			kills, err = strconv.ParseUint(strings.TrimSpace(text), 10, 64)
			return kills, err == nil
		}
	}
	return 0, false
}

// Reset starts the count again.
func (o *OOMCounter) Reset() { o.base, _ = o.read() }

// Note says how many processes were killed since Reset; "" if none was.
func (o *OOMCounter) Note() string {
	kills, ok := o.read()
	if o.path == "" || !ok || kills <= o.base {
		return ""
	}
	processes := "a process"
	if n := kills - o.base; n > 1 {
		processes = fmt.Sprintf("%d processes", n)
	}
	return fmt.Sprintf("out of memory: the kernel killed %s of %s since the workers started", processes, o.where)
}
