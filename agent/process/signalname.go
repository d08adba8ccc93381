package process

import "golang.org/x/sys/unix"

// SignalName is the name of a signal, such as SIGTERM; "<N/A>" if it has none.
func SignalName(sig unix.Signal) string {
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
	return NotAvailable
}

// NotAvailable is shown in place of a missing value.
const NotAvailable = "<N/A>"
