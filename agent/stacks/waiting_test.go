package stacks

import (
	"fmt"
	"os"
	"testing"

	"rallypoint/internal/testkit"
)

// TestWaitsForThread: a main thread that waits for another one is told from those that compute or
// wait for something else.
func TestWaitsForThread(t *testing.T) {
	if !KernelTellsWaits() {
		t.Skip("the kernel does not say where threads wait")
	}
	for program, want := range map[string]bool{
		"import threading; threading.Event().wait()":                  true,
		"import threading; threading.Event().wait(1000)":              true,
		"import time; time.sleep(1000)":                               false,
		"import os; os.read(os.pipe()[0], 1)":                         false,
		"import select; select.select([], [], [], 1000)":              false,
		"import multiprocessing; multiprocessing.SimpleQueue().get()": false,
	} {
		t.Run(program, func(t *testing.T) {
			w := startWorker(t, "print('up', flush=True); "+program)
			testkit.Eventually(t, "the process waits where its line has it", func() bool {
				channel := string(waitChannel(fmt.Sprintf("/proc/%d/wchan", w.Pid)))
				return channel != "" && channel != "0" && WaitsForThread(w.Pid) == want
			})
		})
	}
	if WaitsForThread(1 << 30) {
		t.Error("a process that is gone waits")
	}
}

// TestUsesDevice: what may compute for a process, and what does not.
func TestUsesDevice(t *testing.T) {
	for path, want := range map[string]bool{
		"/dev/nvidia0": true, "/dev/kfd": true, "/dev/accel/accel0": true, "/dev/infiniband/uverbs0": true,
		"/dev/null": false, "/dev/pts/3": false, "/dev/shm/x": false, "/home/dev/nvidia0": false, "socket:[1]": false, "": false,
	} {
		if computes(path) != want {
			t.Error(path)
		}
	}
	if UsesDevice(os.Getpid()) {
		t.Error("this process uses a device")
	}
	if !UsesDevice(1 << 30) {
		t.Error("of a process that is gone it is known that it uses none")
	}
}
