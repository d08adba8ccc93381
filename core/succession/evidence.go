package succession

import "time"

// A host counts as dead after Dials fresh dials that were all refused, DialEvery apart.
// The listener of a process that dies outlives its connections by some milliseconds, in which dials
// are still accepted, so that the proof is given up only after MostDials.
const (
	Dials     = 3
	DialEvery = 20 * time.Millisecond
	MostDials = 15
)

// Dial is how a fresh dial to the host's address ended.
type Dial int

// The ends of a dial.
const (
	DialRefused  Dial = iota // the machine answers, and no process listens
	DialAnswered             // a process accepted it and spoke
	DialBroken               // it was accepted, and ended by the other side before a word
	DialSilent               // it timed out, or found no route: nothing follows
)

// Evidence is one node's evidence of the host's death.
type Evidence struct {
	Ended   bool // the host's side ended the established connection (FIN or RST)
	Direct  bool // the address dialled is the one that the host sees itself on that connection
	Refused int  // dials in sequence that were refused
	Silent  bool // nothing had come for half a lease when the connection ended: voters may have elected another host since
}

// Observe counts a fresh dial. Only refusals in sequence count.
func (e *Evidence) Observe(d Dial) {
	if d == DialRefused {
		e.Refused++
	} else {
		e.Refused = 0
	}
}

// Proves reports whether the host's process is dead, as far as this node alone can tell.
func (e Evidence) Proves() bool { return e.Ended && e.Direct && e.Refused >= Dials }
