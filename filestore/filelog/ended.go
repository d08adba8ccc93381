package filelog

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/rendezvous"
)

// ended returns the first entry of the log that takes the place of this one, which nobody has
// open, if its run stays closed. The rest of its time is measured by the clock of this machine
// since it was started, which nobody can set, if the log was left on this machine. Else a node
// that comes asks the times of files; one that leaves was alive while the time ran, and has
// nothing to ask. The lock of run is held.
func (l *Log) ended(leaves bool) (entry []byte, ok bool) {
	if l.generation == "" {
		return nil, false
	}
	r, err := l.tryInspect()
	if err != nil {
		return nil, false
	}
	ended, rests, ok := r.Ended()
	if !ok {
		return nil, false
	}
	machine, uptime := machineClock()
	switch {
	case rests && machine != "" && ended.Machine == machine:
		ended.For -= max(0, uptime-ended.Uptime)
	case !leaves:
		ended.For -= l.age()
	}
	ended.Machine, ended.Uptime = machine, uptime
	if ended.For <= 0 {
		return nil, false
	}
	entry, err = rendezvous.EncodeEvent(ended)
	return entry, err == nil
}

// age is how long ago the log was last written to, by the clock that the directory's file
// system writes times by; 0 if that does not tell.
func (l *Log) age() time.Duration {
	seqs, err := l.list()
	if err != nil || len(seqs) == 0 {
		return 0
	}
	written, err := os.Stat(l.logPath(seqs[len(seqs)-1]))
	probe := filepath.Join(l.dir, "now-"+l.generation)
	if err != nil || l.writeWhole(probe, nil) != nil {
		return 0
	}
	now, err := os.Stat(probe)
	_ = unix.Unlink(probe)
	if err != nil {
		return 0
	}
	return max(0, now.ModTime().Sub(written.ModTime()))
}

// machineClock is for how long this machine has run, sleep included, and which start of it
// that was; "" if that is not known. Each time namespace of a machine has a clock of its own.
func machineClock() (machine string, uptime time.Duration) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	var now unix.Timespec
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil || now.Nano() == math.MaxInt64 {
		return "", 0
	}
	machine = strings.TrimSpace(string(id))
	if space, err := os.Readlink("/proc/self/ns/time"); err == nil { // a kernel of before 5.6 has none
		machine += " " + space
	}
	return machine, time.Duration(now.Nano())
}
