package backend

import (
	"cmp"
	"log/slog"
	"time"

	"rallypoint/core/election/register"
	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/roundstore"
)

// Open is Place.Open of p.Endpoint.
func Open(p params.Params, log *slog.Logger) (Node, error) {
	at, err := At(p.Endpoint)
	if err != nil {
		return nil, err
	}
	return at.Open(p, log)
}

// node hands out no typed nil with an error.
func node[T Node](n T, err error) (Node, error) {
	if err != nil {
		return nil, err
	}
	return n, nil
}

// OpenRegister makes the member that p describes, whose run's leader a register of the caller names.
// p.Endpoint is a name for display.
func OpenRegister(p params.Params, r register.Register, log *slog.Logger) (*member.Member, error) {
	p.ClosedFor = 0 // no clock of the register tells when that is over
	return roundstore.OpenRegister(p, r, func() string { return ownAddress(p.Max) }, nil, log)
}

// noLease is the lease of a node that is in the process of its control plane: neither has to show the other that
// it is there.
const noLease = 365 * 24 * time.Hour

// OpenStandalone makes the member of a job of one node, which no other can reach: its control
// plane ends with this process. Of p, LocalAddr is announced to the workers; "" is the loopback
// address. A wrong parameter is ErrInvalid.
func OpenStandalone(p params.Params, log *slog.Logger) (Node, error) {
	p.Min, p.Max, p.Endpoint, p.TokenFile = 1, 1, "", ""
	p.LeaseTimeout = noLease
	p.LocalAddr = cmp.Or(p.LocalAddr, p.AdvertiseAddr, loopback)
	return node(roundstore.OpenLocal(p, log))
}
