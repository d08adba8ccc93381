package main

import (
	"bytes"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ticks are the parts of a second in which the kernel tells the CPU time of a process.
const ticks = 100

func cpuTime() float64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// cpuTimeOf is the CPU time of another process so far, in seconds; 0 if it is gone.
func cpuTimeOf(pid int) float64 {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // from the third on
	var user, system float64
	if len(fields) < 13 {
		return 0
	}
	_, _ = fmt.Sscan(string(fields[11]), &user)
	_, _ = fmt.Sscan(string(fields[12]), &system)
	return (user + system) / ticks
}
