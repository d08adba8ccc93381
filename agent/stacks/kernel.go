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
	channel string // where in the kernel its main thread waits; "": nowhere, or the kernel does not say
}

// maxStatus is the most that is read of a file in /proc.
const maxStatus = 1 << 14

// readKernel asks the kernel for the state of a process.
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

// parseStatus reads /proc/PID/status.
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
	whyLate       = "it did not answer in time"
)

// String is the state in words that are equal for workers in equal states.
func (k kernelState) String() string {
	text := ""
	switch k.state {
	case 0, 'X', 'Z':
		return stateEnded
	case 'R':
		text = "running"
	case stateD:
		text = "in uninterruptible sleep (D)"
	case 'T', 't':
		text = stateStopped
	default:
		text = "sleeping"
	}
	if k.tracer != 0 {
		text = stateDebugger + text
	}
	if k.channel != "" && !strings.HasPrefix(text, "running") {
		text += " in " + k.channel
	}
	return text
}
