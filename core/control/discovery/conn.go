package discovery

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"rallypoint/core/control/standby"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/internal/printable"
)

// handshakeTimeout bounds one attempt from the hello to its answer: a server that
// was stopped still accepts connections, but never answers.
const handshakeTimeout = 10 * time.Second

// Conn is a connection to the server that has welcomed this node. Later frames of the server are
// read by In.
type Conn struct {
	wire.PeekedConn
	Addr    netip.AddrPort // of the server, as dialled
	Welcome wire.Welcome
	opened  time.Time

	// Set when it has ended.
	WasSilent bool  // the server had been silent for half a lease by then
	Second    *Conn // of Beside, which takes its place; nil: there is none

	unanswered int // hellos of Beside in a row

	standsBy bool // the host has received where this node stands by
}

// openConn says hello on a new connection. It asks believe about the process that has answered, whatever the answer. A
// refusal is a *rendezvous.Error; the connection is closed on any error.
func openConn(ctx context.Context, raw net.Conn, h wire.Hello, token *secret.Token, believe func(net.Conn) error) (*Conn, error) {
	conn := wire.NewConn(raw)
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	ours := h.Policy.LeaseTimeout
	wire.SetUserTimeout(conn, ours) // until the run's is known
	release := wire.AbortOn(ctx, conn)
	l := &Conn{PeekedConn: wire.PeekedConn{Conn: conn, In: bufio.NewReaderSize(conn, wire.ReadBuffer)}, opened: time.Now()}
	if tcp, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		l.Addr = tcp.AddrPort()
	}
	err := l.handshake(h, wire.ClientHandshake{Token: token, Addr: conn.RemoteAddr()})
	if err == nil || isRefusal(err) || errors.As(err, new(*wire.Redirected)) {
		err = cmp.Or(believe(conn), err)
	}
	if !release() && ctx.Err() != nil {
		err = fmt.Errorf("no answer from %s to the hello within %s", conn.RemoteAddr(), time.Since(l.opened).Round(time.Millisecond))
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	if lease := time.Duration(l.Welcome.Lease); lease != ours {
		wire.SetUserTimeout(conn, lease)
	}
	return l, nil
}

// handshake says hello and reads the answer.
func (c *Conn) handshake(h wire.Hello, g wire.ClientHandshake) error {
	frames := wire.FrameReader{In: c.In}
	theirs, err := g.Run(c.Conn, &frames, wire.AppendFrame(nil, h))
	if err != nil {
		return err
	}
	f, err := frames.NextFrame(wire.MaxFrame)
	if err != nil {
		return fmt.Errorf("%s did not answer the hello: %w", c.RemoteAddr(), wire.NoEOF(err))
	}
	switch f := f.(type) {
	case wire.Welcome:
		if _, ok := wire.Negotiate(theirs); !ok || f.Lease <= 0 {
			return rendezvous.Errorf(rendezvous.CodeState, "the control plane at %s answered with protocol version %d and lease %d",
				c.RemoteAddr(), theirs.High, f.Lease)
		}
		if h.Policy.Segment > 1 && !slices.Contains(f.Features, wire.FeatureSegments) {
			return rendezvous.Errorf(rendezvous.CodeState, "the control plane at %s is of release %s, which knows no segments: start it by the release of this node, or leave --segment out",
				c.RemoteAddr(), printable.Text(f.Software))
		}
		c.Welcome = f
		return nil
	case wire.Redirect:
		return &wire.Redirected{To: f}
	case wire.Refuse:
		if rendezvous.CodeOf(f.Err) == rendezvous.CodeConnection { // as long as it cannot store: tried again, like one that is out of reach
			return fmt.Errorf("%s takes this node not yet: %s", c.RemoteAddr(), printable.Text(f.Err.Text))
		}
		return &refused{g.Explain(f.Err, theirs), f.Group}
	}
	return rendezvous.Errorf(rendezvous.CodeState, "the control plane at %s answered a hello with a frame %q", c.RemoteAddr(), wire.NameOf(f))
}

// refused is a refusal of a hello, by a server of a group.
type refused struct {
	error
	group string
}

func (r *refused) Unwrap() error { return r.error }

// direct reports whether the address dialled is the one that the server sees itself.
func (c *Conn) direct() bool {
	return c.Addr.IsValid() && standby.PlainAddr(c.Addr).String() == c.Welcome.Addr
}
