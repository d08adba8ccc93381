package roundstore

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"

	"rallypoint/core/peer"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/core/store"
	"rallypoint/tcpstore"
	"rallypoint/tcpstore/forward"
)

// Connect connects to the store of a round at HOST:PORT from outside of its job: with a token
// to a protected one, else to a plain one. It tries until ctx ends. The caller closes the store
// and then calls stop. An error is ErrConnection or, with a token, ErrAuth.
func Connect(ctx context.Context, place string, name secret.StoreName, token *secret.Token) (s store.Store, stop func(), err error) {
	stop = func() {}
	at := place
	if token != nil {
		way, err := openWay(ctx, place, name, token)
		if err != nil {
			return nil, nil, err
		}
		at, stop = way.Addr().String(), func() { _ = way.Close() }
	}
	s, err = tcpstore.Connect(ctx, at)
	if err != nil {
		stop()
		return nil, nil, rendezvous.Errorf(rendezvous.CodeConnection, "the store of round %d, which the node of rank 0 serves, cannot be reached from this machine: %v", name.Round, err)
	}
	return s, stop, nil
}

// openWay opens a way to a protected store, for this user's processes alone.
func openWay(ctx context.Context, place string, name secret.StoreName, token *secret.Token) (*forward.Forwarder, error) {
	p := &Protection{log: slog.New(slog.DiscardHandler), with: tcpstore.Secure{Token: token}}
	first, err := p.dial(ctx, place, name, 0) // says what is wrong
	if err != nil {
		code := rendezvous.CodeOf(err)
		if code == rendezvous.CodeInternal {
			code = rendezvous.CodeConnection
		}
		return nil, &rendezvous.Error{Code: code, Text: fmt.Sprintf("the store of round %d at %s cannot be reached with this token: %v", name.Round, place, err)}
	}
	_ = first.Close()
	return forward.Listen(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0, forward.Options{
		Accept: peer.NewLoopbackCheck(p.users).Accept, Store: place, Log: p.log, Refusals: &p.refusals,
		Dial: func(ctx context.Context, _ int) (forward.Conn, error) { return p.dial(ctx, place, name, 0) },
	})
}
