package wire

import (
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"

	"rallypoint/core/secret"
)

// TLSByte is the first byte of a connection that speaks TLS.
const TLSByte = 0x16

// Conn is a connection that TLS may take over: a server's after some bytes of it were read, a
// client's before anything is. Its methods may be called by several goroutines, but Secure and
// Open only before anything is written.
type Conn struct {
	net.Conn // below TLS
	secured  atomic.Pointer[secured]
}

type secured struct {
	conn     *tls.Conn
	exporter []byte
}

// NewConn makes a connection that is not secured yet; one that is a *Conn stays it.
func NewConn(raw net.Conn) *Conn {
	if c, ok := raw.(*Conn); ok {
		return c
	}
	return &Conn{Conn: raw}
}

// Secure switches to a TLS connection over this one, whose handshake is complete.
func (c *Conn) Secure(conn *tls.Conn) error {
	exporter, err := secret.Exporter(conn)
	if err != nil {
		return err
	}
	c.secured.Store(&secured{conn, exporter})
	return nil
}

// Exporter returns the secret of the TLS connection that only its two ends can derive; nil:
// it is plain.
func (c *Conn) Exporter() []byte {
	if s := c.secured.Load(); s != nil {
		return s.exporter
	}
	return nil
}

// Read reads what the peer has sent, through TLS after Secure.
func (c *Conn) Read(b []byte) (int, error) {
	if s := c.secured.Load(); s != nil {
		return s.conn.Read(b)
	}
	return c.Conn.Read(b)
}

// Write sends, by TLS once that has taken over.
func (c *Conn) Write(b []byte) (int, error) {
	if s := c.secured.Load(); s != nil {
		return s.conn.Write(b)
	}
	return c.Conn.Write(b)
}

// CloseWrite ends the sending side.
func (c *Conn) CloseWrite() error {
	if s := c.secured.Load(); s != nil {
		if err := s.conn.CloseWrite(); err != nil {
			return err
		}
	}
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// NetConn returns the connection below.
func (c *Conn) NetConn() net.Conn { return c.Conn }

// Open makes the TLS handshake with a control plane that has a token, which any token
// does for. It blocks until the connection's deadline. The caller closes the connection after
// an error.
func (c *Conn) Open(token *secret.Token) error {
	t, err := secret.OpenTLS(c.Conn)
	if err != nil {
		return secret.ExplainTLS(err, "control plane", c.RemoteAddr(), token)
	}
	return c.Secure(t)
}
