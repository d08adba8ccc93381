package stacks

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"rallypoint/internal/pack"
	"rallypoint/internal/printable"
)

// kernelState is the state of a process in /proc.
type kernelState struct {
	state   byte   // of its main thread, as /proc/PID/status has it: R, S, D, T, t, Z, X, I; 0: the process is gone
	tracer  int    // pid of the debugger; 0: none
	pending uint64 // signals that wait for the process or its main thread, by bit
	caught  uint64
	blocked uint64 // by the main thread

	switches int    // of its main thread, by which that stopped or began to run; 0: not counted
	channel  string // where in the kernel its main thread waits; "": nowhere, or the kernel does not say
}

// maxStatus is the most that is read of a file in /proc.
const maxStatus = 1 << 14

func readKernel(pid int) kernelState {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return kernelState{}
	}
	k := parseStatus(text[:min(len(text), maxStatus)])
	if channel, err := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", pid)); err == nil && string(channel) != "0" {
		k.channel = pack.CutText(printable.Text(string(channel)), maxFunction)
	}
	return k
}

func parseStatus(text []byte) (k kernelState) {
	for line := range bytes.Lines(text) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		mask := func() uint64 {
			n, _ := strconv.ParseUint(string(value), 16, 64)
			return n
		}
		switch string(name) {
		case "State":
			if len(value) > 0 {
				k.state = value[0]
			}
		case "TracerPid":
			k.tracer, _ = strconv.Atoi(string(value))
		case "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches":
			n, _ := strconv.Atoi(string(value))
			k.switches += n
		case "SigPnd", "ShdPnd":
			k.pending |= mask()
		case "SigCgt":
			k.caught = mask()
		case "SigBlk":
			k.blocked = mask()
		}
	}
	return k
}

// has reports whether a mask of signals has that of a question.
func has(mask uint64, q Question) bool { return mask&(1<<(q-1)) != 0 }

// answers reports whether a process in this state can answer a signal on its own, and if not,
// why.
func (k kernelState) answers() (why string) {
	switch {
	case k.state == 0 || k.state == 'Z' || k.state == 'X':
		return "it has ended"
	case k.tracer != 0:
		return "a debugger holds it"
	case k.state == 'T' || k.state == 't':
		return "it is stopped"
	}
	return ""
}

// stateD is uninterruptible sleep.
const stateD = 'D'

// Signs that tell a worker without a stack from others.
const (
	stateStopped  = "stopped"
	stateDebugger = "in a debugger, "
	stateEnded    = "ended"
	stateRunning  = "running"
	stateSleeping = "sleeping"
	unbroken      = " without a break" // at its end: of a main thread that did nothing else for a while
	whyLate       = "it did not answer in time"
)

// String is the state in words that are equal for workers in equal states.
func (k kernelState) String() string {
	text := ""
	switch k.state {
	case 0, 'X', 'Z':
		return stateEnded
	case 'R':
		text = stateRunning
	case stateD:
		text = "in uninterruptible sleep (D)"
	case 'T', 't':
		text = stateStopped
	default:
		text = stateSleeping
	}
	if k.tracer != 0 {
		text = stateDebugger + text
	}
	if k.channel != "" && !strings.HasPrefix(text, stateRunning) {
		text += " in " + k.channel
	}
	return text
}

// The share of a core that a process uses whose main thread sleeps, at most, and that computes, at least.
const (
	idleShare = workCPU
	busyShare = 0.9
)

// between is the state of a process without a stack in words, from two readings and the share of a core
// that it used between them. A thread that did not run at all, or did nothing else, tells where a process
// stands; what it did at one moment does not.
func between(before, after kernelState, share float64) string {
	text := after.String()
	asleep := after.state == 'S' || after.state == stateD
	switch {
	case after.state != before.state || after.tracer != 0:
	case asleep && share < idleShare && after.channel != "" && after.channel == before.channel && after.switches > 0 && after.switches == before.switches:
		text += unbroken
	case after.state == 'R' && share >= busyShare:
		text += unbroken
	}
	return text
}
