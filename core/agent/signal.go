package agent

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// signalName is the name of a signal, such as SIGTERM; "<N/A>" if it has none
// (A75).
func signalName(sig unix.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	if sig >= 34 && sig <= 64 { // real-time signals, as Python names their ends
		switch sig {
		case 34:
			return "SIGRTMIN"
		case 64:
			return "SIGRTMAX"
		}
	}
	return notAvailable
}

// SignalError ends a run because the agent was sent a signal (A58).
type SignalError struct {
	Signal unix.Signal
	Pid    int // of the agent
}

func (e *SignalError) Error() string {
	return "Process " + strconv.Itoa(e.Pid) + " got signal: " + strconv.Itoa(int(e.Signal))
}
