// Package wake has what one goroutine wakes another by.
package wake

// Signal wakes the goroutine that receives from it: once, however often it was set before.
// The work itself is kept elsewhere, and looked at after the receive.
type Signal chan struct{}

// New returns a signal that is not set.
func New() Signal { return make(Signal, 1) }

// Set sets the signal; it never blocks.
func (s Signal) Set() {
	select {
	case s <- struct{}{}:
	default: // it is set
	}
}
