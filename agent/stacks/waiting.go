package stacks

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// WaitsForThread reports whether the main thread of a process waits for another thread: in a
// futex. A worker in a gloo collective, whose threads exchange the data, does so until the last
// rank has arrived. A worker that computes, sleeps, reads from a disk or a pipe, or polls for the
// end of a collective, as with NCCL and MPI, does not.
func WaitsForThread(pid int) bool {
	return bytes.Contains(waitChannel(fmt.Sprintf("/proc/%d/wchan", pid)), []byte("futex"))
}

// waitChannel is where in the kernel a thread waits; "0": nowhere, or the kernel does not say.
func waitChannel(path string) []byte {
	text, _ := os.ReadFile(path)
	return text
}

// KernelTellsWaits reports whether the kernel says where threads wait. Of this process some always do.
func KernelTellsWaits() bool {
	paths, _ := filepath.Glob("/proc/self/task/*/wchan")
	return slices.ContainsFunc(paths, func(path string) bool { text := string(waitChannel(path)); return text != "" && text != "0" })
}

// plainDevices are those that compute nothing.
var plainDevices = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/pts/", "/dev/ptmx", "/dev/shm/", "/dev/mqueue/", "/dev/hugepages/", "/dev/console"}

// UsesDevice reports whether a process has a device open that may compute for it: its main thread
// waits for that where others wait in a collective. It is so, too, where that cannot be seen.
func UsesDevice(pid int) bool {
	folder := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return true
	}
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		path, _ := os.Readlink(filepath.Join(folder, e.Name()))
		return computes(path)
	})
}

// computes reports whether a file may be a device that computes.
func computes(path string) bool {
	return strings.HasPrefix(path, "/dev/") && !slices.ContainsFunc(plainDevices, func(plain string) bool { return strings.HasPrefix(path, plain) })
}
