package process

import (
	"strconv"
	"strings"
	"time"
)

// envUninterruptibleTimeout is for how many seconds a worker may be in uninterruptible sleep.
const envUninterruptibleTimeout = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"

// SleepDetector looks for workers that do not leave uninterruptible sleep, state D:
// no signal reaches them, so restarting on this node would not help.
type SleepDetector struct {
	Timeout time.Duration
	State   func(pid int) (state byte, ok bool)
	since   map[int]time.Time // by pid: first seen in D
}

// NewSleepDetector returns a detector that has seen no worker yet, with the timeout that a list of
// NAME=value has in TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT. Anything but a positive number turns it
// off: its Timeout is 0.
func NewSleepDetector(env []string) *SleepDetector {
	s := &SleepDetector{since: make(map[int]time.Time), State: func(pid int) (byte, bool) {
		stat, ok := readStat(pid)
		return stat.state, ok
	}}
	text, _ := LookupEnv(env, envUninterruptibleTimeout)
	if seconds, err := strconv.ParseFloat(strings.TrimSpace(text), 64); err == nil && seconds > 0 && seconds <= 1e9 {
		s.Timeout = time.Duration(seconds * float64(time.Second))
	}
	return s
}

// Period is how often to look.
func (s *SleepDetector) Period(interval time.Duration) time.Duration {
	return max(interval, min(s.Timeout/10, time.Second))
}

// Look returns the workers that have just been seen in D for the first time, and
// those that have been in it for the timeout.
func (s *SleepDetector) Look(procs []*Process, now time.Time) (sleeping, stuck []*Process) {
	for _, p := range procs {
		state, ok := s.State(p.Pid)
		if p.HasExited() || !ok || state != 'D' {
			delete(s.since, p.Pid)
			continue
		}
		first, seen := s.since[p.Pid]
		if !seen {
			s.since[p.Pid] = now
			first = now
			sleeping = append(sleeping, p)
		}
		if now.Sub(first) >= s.Timeout {
			stuck = append(stuck, p)
		}
	}
	return sleeping, stuck
}
