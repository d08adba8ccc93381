package process

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Cgroup is a control group (v2) of the workers and of whatever descends from them:
// nothing leaves it, whatever session it makes and whichever process adopts it. A nil
// cgroup is none: most containers, and users without a delegated group, cannot make
// one.
type Cgroup struct {
	path string   // of its folder
	name string   // as /proc/<pid>/cgroup says it
	dir  *os.File // for the start of processes in it
}

// NewCgroup makes a group below that of this process; nil if that is not allowed.
func NewCgroup() *Cgroup {
	text, err1 := os.ReadFile("/proc/self/cgroup")
	mounts, err2 := os.ReadFile("/proc/self/mountinfo")
	if err1 != nil || err2 != nil {
		return nil
	}
	mount, parent, ok := cgroupPlace(string(text), string(mounts))
	if !ok {
		return nil
	}
	g := &Cgroup{name: filepath.Join(parent, fmt.Sprintf("rallypoint-%d-%.8s", os.Getpid(), strings.ToLower(rand.Text())))}
	g.path = filepath.Join(mount, g.name)
	if os.Mkdir(g.path, 0o755) != nil {
		return nil
	}
	if g.dir, err1 = os.Open(g.path); err1 != nil {
		_ = os.Remove(g.path)
		return nil
	}
	return g
}

// cgroupPlace finds where the groups of v2 are mounted, and the group of the
// process, from its cgroup and mountinfo files.
func cgroupPlace(cgroups, mounts string) (mount, group string, ok bool) {
	if group, ok = GroupOf(cgroups); !ok || !strings.HasPrefix(group, "/") || strings.Contains(group, "/..") {
		return "", "", false // none, or outside of what is mounted here
	}
	for line := range strings.Lines(mounts) {
		before, after, found := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if !found || len(fields) < 5 || !strings.HasPrefix(after, "cgroup2 ") || fields[3] != "/" {
			continue
		}
		return fields[4], group, true
	}
	return "", "", false
}

func (c *Cgroup) members() (pids []int) {
	if c == nil {
		return nil
	}
	return pidsIn(c.path + "/cgroup.procs")
}

func (c *Cgroup) has(pid int) bool {
	if c == nil {
		return false
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return false
	}
	name, ok := GroupOf(string(text))
	return ok && (name == c.name || strings.HasPrefix(name, c.name+"/"))
}

// GroupOf is the group of v2 in a process's cgroup file.
func GroupOf(cgroups string) (group string, ok bool) {
	for line := range strings.Lines(cgroups) {
		if group, ok = strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			break
		}
	}
	return group, ok
}

// Folder is the path of the group; "" if there is none.
func (c *Cgroup) Folder() string {
	if c == nil {
		return ""
	}
	return c.path
}

// Close removes the group, which should be empty. A process that has just been
// reaped may be in it for a moment still.
func (c *Cgroup) Close() {
	if c == nil {
		return
	}
	_ = c.dir.Close()
	for range 100 {
		if err := os.Remove(c.path); err == nil || os.IsNotExist(err) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}
