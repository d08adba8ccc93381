package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	rallypoint "rallypoint"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
)

// Ask has the control plane at addr ("host:port", or the list of its servers with commas) apply an
// event to a run that comes from no node: a CloseRun, Evict, Direct, CancelDirective, Cordon or
// Undrain, with the name of the sender and the reason, which the nodes receive. The control plane
// sets the time, and completes the sender's name: "admin" before it, and after it the
// address from which the request comes. Ask finds the server that hosts as AskHost does, and
// blocks until the answer has come or ctx ends.
//
// It returns what was done, in one sentence. For a run that is closed already it does nothing.
// Asking again does no harm, since a Direct has an ID. It returns ErrInvalid for a request that
// does not fit the run and for an unknown run, ErrConnection for an unreachable control plane,
// and ErrAuth for a token that the control plane does not know. A nil token stands for none.
func Ask(ctx context.Context, addr string, token *secret.Token, runID string, ev rendezvous.Event) (string, error) {
	f, ok := wire.NewAdmin(runID, ev)
	if !ok {
		return "", rendezvous.Errorf(rendezvous.CodeInvalid, "run %q: an administrator cannot ask for this %T", runID, ev)
	}
	tooLong := func(name string) bool { return len(name) > wire.MaxName }
	switch nodes := f.Directive.Nodes; {
	case tooLong(f.RunID), tooLong(f.Node), slices.ContainsFunc(nodes, tooLong):
		return "", rendezvous.Errorf(rendezvous.CodeInvalid, "a run id or node id has more than %d bytes", wire.MaxName)
	case len(nodes) > rendezvous.MaxDirectiveNodes:
		return "", rendezvous.Errorf(rendezvous.CodeInvalid, "run %q: a drain names 1 to %d nodes, not %d", f.RunID, rendezvous.MaxDirectiveNodes, len(nodes))
	}
	f.Software = rallypoint.Version()
	final := func(err error) bool { return !errors.Is(err, rendezvous.ErrConnection) }
	return AskHost(ctx, addr, final, func(ctx context.Context, addr string) (string, error) {
		return askAt(ctx, addr, token, f)
	})
}

// askAt is Ask of one server; a *wire.Redirected if that is not the one that
// hosts.
func askAt(ctx context.Context, addr string, token *secret.Token, f wire.Admin) (string, error) {
	start := time.Now()
	conn, err := wire.Dial(ctx, addr)
	if err != nil {
		return "", fmt.Errorf("%w at %s, tried for %s: %w", rendezvous.ErrConnection, addr, time.Since(start).Round(time.Millisecond), err)
	}
	defer conn.Close()
	release := wire.AbortOn(ctx, conn)
	answer, err := roundTrip(conn, token, f)
	var refusal *rendezvous.Error
	switch {
	case errors.As(err, &refusal):
		return "", refusal
	case errors.As(err, new(*wire.Redirected)):
		return "", err
	case !release() && ctx.Err() != nil:
		return "", fmt.Errorf("%w at %s: no answer within %s: %w", rendezvous.ErrConnection, addr, time.Since(start).Round(time.Millisecond), ctx.Err())
	case err != nil:
		return "", fmt.Errorf("%w at %s: %w", rendezvous.ErrConnection, addr, err)
	}
	return answer.Done, nil
}

// roundTrip sends the request and reads its answer. A refusal is a
// *rendezvous.Error.
func roundTrip(conn net.Conn, token *secret.Token, f wire.Admin) (wire.AdminAnswer, error) {
	none := wire.AdminAnswer{}
	g := wire.ClientHandshake{Token: token, Addr: conn.RemoteAddr()}
	frames := wire.FrameReader{In: bufio.NewReader(conn)}
	theirs, err := g.Run(conn, &frames, wire.AppendFrame(nil, f))
	if err != nil {
		return none, err
	}
	got, err := frames.NextFrame(wire.MaxFrame)
	switch {
	case errors.Is(err, wire.ErrMalformed):
		return none, err
	case err != nil:
		return none, fmt.Errorf("it did not answer; an older release does not know this request: %w", wire.NoEOF(err))
	}
	switch got := got.(type) {
	case wire.AdminAnswer:
		if got.Err != nil {
			return none, got.Err
		}
		return got, nil
	case wire.Refuse:
		if got.Err != nil {
			return none, g.Explain(got.Err, theirs)
		}
	case wire.Redirect:
		return none, &wire.Redirected{To: got}
	}
	return none, fmt.Errorf("%w: a frame %q", wire.ErrMalformed, wire.NameOf(got))
}

// DialHTTP connects to the control plane at addr ("host:port") for one HTTP
// request. With a token both sides prove first that they know it, so that the
// control plane answers whatever address the request comes from; ErrAuth if they
// do not. A nil token is none. ctx bounds this call only.
func DialHTTP(ctx context.Context, addr string, token *secret.Token) (net.Conn, error) {
	conn, err := wire.Dial(ctx, addr)
	if err != nil || token == nil {
		return conn, err
	}
	release := wire.AbortOn(ctx, conn)
	frames := wire.FrameReader{In: bufio.NewReader(conn)}
	_, err = wire.ClientHandshake{Token: token, Addr: conn.RemoteAddr()}.Run(conn, &frames, nil)
	if !release() && ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &wire.PeekedConn{Conn: conn, In: frames.In}, nil
}
