package watchdog

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// maxTimers bounds the timers that are held at one time: workers that acquire
// without end and never release must not fill the agent's memory.
const maxTimers = 100_000

// timerKey names a timer: a process has one for each scope.
type timerKey struct {
	Pid   int
	Scope string
}

// Timer is one request of torch's file-timer protocol, a line of JSON.
type Timer struct {
	timerKey
	Expires json.Number // Unix time in seconds, as it was written; negative: release
	At      time.Time
	Signal  unix.Signal // to be sent at expiry; 0 or less: none
}

func parseTimer(line []byte) (Timer, error) {
	var request struct {
		Pid     int         `json:"pid"`
		Scope   *string     `json:"scope_id"`
		Expires json.Number `json:"expiration_time"`
		Signal  int         `json:"signal"`
	}
	if err := json.Unmarshal(line, &request); err != nil {
		return Timer{}, err
	}
	seconds, err := request.Expires.Float64()
	switch {
	case request.Pid <= 1:
		return Timer{}, fmt.Errorf("its pid is %d", request.Pid)
	case request.Scope == nil:
		return Timer{}, errors.New("it has no scope_id")
	case err != nil || seconds > 1<<40 || seconds < -1<<40:
		return Timer{}, fmt.Errorf("its expiration_time is %q", request.Expires)
	case request.Signal > 64:
		return Timer{}, fmt.Errorf("its signal is %d", request.Signal)
	}
	t := Timer{timerKey: timerKey{request.Pid, *request.Scope}, Expires: request.Expires, Signal: unix.Signal(request.Signal)}
	if seconds < 0 {
		return t, nil
	}
	whole := int64(seconds)
	t.At = time.Unix(whole, int64((seconds-float64(whole))*1e9))
	return t, nil
}

func (t *Timer) release() bool { return t.At.IsZero() }

// timers are the running timers. The caller passes the time.
type timers map[timerKey]Timer

// take applies a request: a second acquire replaces the first. It reports false if
// there are too many.
func (ts timers) take(t Timer) bool {
	if t.release() {
		delete(ts, t.timerKey)
		return true
	}
	if _, there := ts[t.timerKey]; !there && len(ts) >= maxTimers {
		return false
	}
	ts[t.timerKey] = t
	return true
}

// next is the time of the first expiry; zero if no timer runs.
func (ts timers) next() (first time.Time) {
	for _, t := range ts {
		if first.IsZero() || t.At.Before(first) {
			first = t.At
		}
	}
	return first
}

// expire takes the timers that have expired out, and with them all others of the
// same processes. For each process it returns the expired ones in their
// order.
func (ts timers) expire(now time.Time) [][]Timer {
	byPid := make(map[int][]Timer)
	for _, t := range ts {
		if !t.At.After(now) {
			byPid[t.Pid] = append(byPid[t.Pid], t)
		}
	}
	var expired [][]Timer
	for _, list := range byPid {
		slices.SortFunc(list, func(a, b Timer) int {
			return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Scope, b.Scope))
		})
		expired = append(expired, list)
	}
	slices.SortFunc(expired, func(a, b []Timer) int { return a[0].At.Compare(b[0].At) })
	for key := range ts {
		if byPid[key.Pid] != nil {
			delete(ts, key)
		}
	}
	return expired
}
