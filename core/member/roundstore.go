package member

import (
	"context"
	"io"

	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
)

// RoundStores opens round stores: the stores that the workers of one round use.
// Its methods are safe for concurrent use.
type RoundStores interface {
	// Open returns an empty store that listens on host if that is an address or a
	// name of this machine, else (or if host is "") on the wildcard. Port 0 is any
	// free port. A fixed port may be opened again while the store opened on it
	// before is in use: the two share the socket.
	//
	// It returns early when ctx ends, and leaves no store open then. An error says
	// the address, and what to do if the port is taken.
	Open(ctx context.Context, host string, port int) (RoundStore, error)

	// Reach opens this node's way to the store of a round whose rank 0 is another node. It
	// returns the outcome with StoreAddr and StorePort as this node's workers use them, and
	// what ends the way; nil: nothing has to.
	Reach(ctx context.Context, o rendezvous.Outcome) (rendezvous.Outcome, io.Closer, error)
}

// RoundStore is an open round store. It serves no workers before Begin.
type RoundStore interface {
	// Port is the port that the store listens on.
	Port() int

	// Begin makes this the store that new connections get, because its round is
	// complete. Connections made before keep the store that they have. It returns the
	// outcome with StoreAddr and StorePort as this node's workers use them.
	Begin(o rendezvous.Outcome) (rendezvous.Outcome, error)

	// Close ends the store and, if no other store uses the socket, closes that
	// with all its connections. Closing again does nothing.
	Close() error
}

// storeHost returns the host that a join announces for this node's round store ("": the control
// plane takes the address it sees) and the one that the store listens on (docs/decisions/0033).
func storeHost(p *params.Params, seen string) (announce, listen string) {
	switch {
	case p.AdvertiseAddr != "":
		return p.AdvertiseAddr, p.AdvertiseAddr
	case p.LocalAddr != "":
		return p.LocalAddr, p.LocalAddr
	case rendezvous.IsLoopback(seen) && p.Max > 1 && !p.Servers.Loopback():
		// This node sits beside the control plane. Which of this machine's
		// addresses the workers receive depends on the other members of the round.
		return "", ""
	}
	return "", seen
}
