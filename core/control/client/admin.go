package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	rallypoint "rallypoint"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/core/store"
	"rallypoint/internal/printable"
)

// AdminClose closes a run at the control plane at addr ("host:port"): no
// node joins any more. With stop it is a failed close: all nodes stop at once. The
// nodes see who did it (by) and the reason. It returns what was done, in one
// sentence; a run that was closed already is none to do anything about. An
// unknown run is ErrInvalid, an unreachable control plane ErrConnection. It
// blocks until the answer has come or ctx ends. A nil token is none; one that the
// control plane does not know is ErrAuth.
func AdminClose(ctx context.Context, addr string, token *secret.Token, runID, by, reason string, stop bool) (string, error) {
	return requestAdmin(ctx, addr, token, wire.Admin{Op: wire.AdminOpClose, RunID: runID, By: by, Reason: reason, Stop: stop})
}

// AdminEvict drops a live node from a run, like AdminClose in all else. A node
// that is not alive is ErrInvalid. The node's process may come back.
func AdminEvict(ctx context.Context, addr string, token *secret.Token, runID, node, by, reason string) (string, error) {
	return requestAdmin(ctx, addr, token, wire.Admin{Op: wire.AdminOpEvict, RunID: runID, Node: node, By: by, Reason: reason})
}

// requestAdmin makes a connection for one request of an administrator, and follows a server in
// waiting to the one that hosts.
func requestAdmin(ctx context.Context, addr string, token *secret.Token, f wire.Admin) (string, error) {
	tooLong := func(name string) bool { return len(name) > wire.MaxName }
	switch nodes := f.Directive.Nodes; {
	case tooLong(f.RunID), tooLong(f.Node), slices.ContainsFunc(nodes, tooLong):
		return "", rendezvous.Errorf(rendezvous.CodeInvalid, "a run id or node id has more than %d bytes", wire.MaxName)
	case len(nodes) > rendezvous.MaxDirectiveNodes:
		return "", rendezvous.Errorf(rendezvous.CodeInvalid, "run %q: a drain names 1 to %d nodes, not %d", f.RunID, rendezvous.MaxDirectiveNodes, len(nodes))
	}
	f.Software = rallypoint.Version()
	asked := map[string]bool{}
	for {
		asked[addr] = true
		done, err := requestAdminAt(ctx, addr, token, f)
		var moved *redirected
		if !errors.As(err, &moved) {
			return done, err
		}
		to := moved.to.Host
		wrong := ""
		switch {
		case to == "":
			wrong = moved.Error()
		case asked[to]:
			wrong = fmt.Sprintf("%v, which points back", moved)
		case len(asked) > maxRedirects:
			wrong = fmt.Sprintf("%d servers have sent it on, the last one to %s", len(asked), to)
		default:
			wrong = leadsNowhere(addr, moved.to)
		}
		if wrong != "" {
			return "", fmt.Errorf("%w at %s: %s", rendezvous.ErrConnection, addr, wrong)
		}
		addr = to
	}
}

// leadsNowhere says why the redirect of the server at an address cannot be followed; "" if it
// can.
func leadsNowhere(from string, to wire.Redirect) string {
	addr, err := netip.ParseAddrPort(to.Host)
	if err != nil || addr.Addr().IsUnspecified() || addr.Addr().IsMulticast() || addr.Port() == 0 {
		return fmt.Sprintf("node %s is said to host the control plane at %q, which is no address", printable.Text(to.Node), to.Host)
	}
	host, _, _ := net.SplitHostPort(from)
	if near, err := netip.ParseAddr(host); err == nil && addr.Addr().IsLoopback() && !near.Unmap().IsLoopback() {
		return fmt.Sprintf("node %s hosts the control plane at %s, a loopback address of its own machine: ask there", printable.Text(to.Node), to.Host)
	}
	return ""
}

// requestAdminAt is requestAdmin of one server; a *redirected if that is not the one that
// hosts.
func requestAdminAt(ctx context.Context, addr string, token *secret.Token, f wire.Admin) (string, error) {
	start := time.Now()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", fmt.Errorf("%w at %s, tried for %s: %w", rendezvous.ErrConnection, addr, time.Since(start).Round(time.Millisecond), store.PlainNetError(err))
	}
	defer conn.Close()
	release := abortOn(ctx, conn)
	answer, err := roundTrip(wire.NewConn(conn), token, f)
	var refusal *rendezvous.Error
	switch {
	case errors.As(err, &refusal):
		return "", refusal
	case errors.As(err, new(*redirected)):
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
		return none, &redirected{got}
	}
	return none, fmt.Errorf("%w: a frame %q", wire.ErrMalformed, wire.NameOf(got))
}

// DialHTTP connects to the control plane at addr ("host:port") for one HTTP
// request. With a token both sides prove first that they know it, so that the
// control plane answers whatever address the request comes from; ErrAuth if they
// do not. A nil token is none. ctx bounds this call only.
func DialHTTP(ctx context.Context, addr string, token *secret.Token) (net.Conn, error) {
	var dialer net.Dialer
	raw, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil || token == nil {
		return raw, store.PlainNetError(err)
	}
	conn := wire.NewConn(raw)
	release := abortOn(ctx, conn)
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
