package process

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestOOM finds the kernel's count in each layout of control groups.
func TestOOM(t *testing.T) {
	for _, c := range []struct{ cgroup, file, where string }{
		{"0::/job\n", "sys/fs/cgroup/job/memory.events", "the control group /job"},
		{"0::/job\n", "sys/fs/cgroup/memory.events", "the control group /job"},
		{"4:memory:/a\n0::/\n", "sys/fs/cgroup/memory/a/memory.oom_control", "the control group /a"},
		{"4:cpu,memory:/a\n", "sys/fs/cgroup/memory/memory.oom_control", "the control group /a"},
		{"", "proc/vmstat", "this machine"},
	} {
		root := t.TempDir()
		write := func(name, text string) {
			path := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		write("proc/self/cgroup", c.cgroup)
		write(c.file, "low 0\noom_kill 4\n")
		counter := NewOOMCounter(root)
		if note := counter.Note(); note != "" {
			t.Errorf("%s: %q", c.file, note)
		}
		write(c.file, "low 0\noom_kill 6\n")
		if note, want := counter.Note(), fmt.Sprintf("out of memory: the kernel killed 2 processes of %s since the workers started", c.where); note != want {
			t.Errorf("%s: %q", c.file, note)
		}
	}
	if note := new(OOMCounter).Note(); note != "" {
		t.Errorf("the zero value says %q", note)
	}
}
