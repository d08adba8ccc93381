package process

import "golang.org/x/sys/unix"

// SignalName is the name of a signal, such as SIGTERM; "<N/A>" if it has none.
func SignalName(sig unix.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	switch sig { // real-time signals, as Python names their ends
	case 34:
		return "SIGRTMIN"
	case 64:
		return "SIGRTMAX"
	}
	return NotAvailable
}

// NotAvailable is shown in place of a missing value.
const NotAvailable = "<N/A>"
