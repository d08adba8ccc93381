package stacks

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent/process"
)

// Work is what a worker's process has done since its start.
type Work struct {
	At    time.Duration `json:"at"`    // when it was read, by a clock of the node
	CPU   time.Duration `json:"cpu"`   // of all threads; 0 of one that uses a device
	Bytes int64         `json:"bytes"` // that it has read and written
}

// A process works if it uses this share of a core, or reads and writes this much per second. A
// process that waits in a collective, sleeps or dumps its stack stays below
// (docs/decisions/0140). The measurement takes at least workSpan, because the kernel counts in
// hundredths of a second.
const (
	workCPU   = 0.03
	workBytes = 64 << 10
	workSpan  = 2 * time.Second
)

// since reports whether the process has worked since an earlier reading, and whether that was long
// enough ago to tell.
func (w Work) since(before Work) (worked, told bool) {
	span := w.At - before.At
	if span < workSpan {
		return false, false
	}
	return (w.CPU-before.CPU).Seconds() >= workCPU*span.Seconds() || float64(w.Bytes-before.Bytes) >= workBytes*span.Seconds(), true
}

// Activity remembers what workers had done, by rank, when it was read last or workSpan before.
type Activity map[int]Work

// Worked takes what they have done now, and reports whether one of them has worked in between.
func (a Activity) Worked(now map[int]Work) (works bool) {
	for rank, w := range now {
		before, known := a[rank]
		worked, told := w.since(before)
		works = works || known && worked
		if !known || told {
			a[rank] = w
		}
	}
	return works
}

// Works returns what the workers' processes have done, by rank. It leaves out the CPU time of a
// process that uses a device, which polls the device even while that waits for other ranks.
func Works(targets []Target) map[int]Work {
	works := make(map[int]Work)
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	for _, t := range targets[:min(len(targets), MaxWorkers)] {
		w := Work{At: time.Duration(now.Nano()), Bytes: readBytes(t.Pid)}
		if !UsesDevice(t.Pid) {
			w.CPU = readCPU(t.Pid)
		}
		works[t.Rank] = w
	}
	return works
}

// ticks is the kernel's unit of CPU time in /proc, the same on all machines.
const ticks = time.Second / 100

// readCPU is the CPU time of a process; 0 if that is not known.
func readCPU(pid int) time.Duration {
	fields := process.StatFields(pid)
	if len(fields) < 13 {
		return 0
	}
	user, err := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	if err != nil || err2 != nil {
		return 0
	}
	return time.Duration(user+system) * ticks
}

// readBytes is how much a process has read and written: by calls, which count when they end, and of
// storage, which counts while they last; 0 if that is not known.
func readBytes(pid int) (sum int64) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	for line := range bytes.Lines(text) {
		name, value, _ := bytes.Cut(line, []byte(": "))
		switch string(name) {
		case "rchar", "wchar", "read_bytes", "write_bytes":
			n, _ := strconv.ParseInt(string(bytes.TrimSpace(value)), 10, 64)
			sum += n
		}
	}
	return sum
}
