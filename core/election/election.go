// Package election says who leads a run's control plane, in which term, and which facts one leader
// passes to the next. There are two ways to agree on that: a vote among the processes of a job or a
// list of servers (core/control/standby), and a compare-and-set register that the site has.
//
// The server of a control plane knows no more of either than [Elector] tells it.
package election

import (
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
)

// Elector is one process's part in the election of a leader. Its methods are safe for concurrent
// use and do not block. A server without one leads for as long as it runs.
type Elector interface {
	// Serves reports whether a run's leader is elected here.
	Serves(run string) bool
	// Hosting reports whether this process leads.
	Hosting() bool
	// Current returns the leader, as far as it is known.
	Current() wire.Redirect
	// Admit decides what a server does with a node's hello: it serves the node, or sends it to the
	// leader, which may not be known yet.
	Admit() (to wire.Redirect, serve, known bool)
	// Changed returns a channel that is closed at the next change of what the methods return.
	Changed() <-chan struct{}
	// StepDown has this process lead no more. It reports whether it has led until now.
	StepDown(to wire.Redirect) (led bool)

	// Began returns the succession with which a run begins that this process leads, when it began to lead, and for how
	// long nobody had led.
	Began() (s rendezvous.Succession, since time.Time, took time.Duration)

	// Quorum reports whether facts have to be confirmed before nodes may be told what follows from
	// them.
	Quorum() bool
	// Propose proposes new facts of the run. Committed reports the number that it returns once they are
	// committed.
	Propose(f rendezvous.Facts) (number uint64)
	// Committed reports whether this process still leads, as far as it can know, and the facts of that
	// number are confirmed. Number 0 asks for the former alone.
	Committed(number uint64) bool
	// NoMajority says why nothing is confirmed at present.
	NoMajority() string
}

// Remains is what is left of a run when the node leaves whose process leads it.
type Remains struct {
	Open  bool              // other nodes are connected, and the run goes on
	Over  bool              // no node is left that may come back
	Ended *rendezvous.Ended // how the run was closed, if it stays so for a time
	Rests bool              // and nothing has happened to it since this process leads
}
