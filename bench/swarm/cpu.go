package main

import "golang.org/x/sys/unix"

// cpuTime is the CPU time of this process so far, in seconds.
func cpuTime() float64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
