package wire

import (
	"bufio"
	"context"
	"net"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
)

// callPatience is the deadline of a Call until the caller sets another: a process that was
// stopped still accepts connections, but never answers.
const callPatience = 10 * time.Second

// Call is a connection to another process that hosts or may host, on which this process has
// identified itself.
type Call struct {
	*Conn
	FrameReader
	stop      func() bool
	handshake ClientHandshake
	theirs    Preamble
}

// Greet sends the first frame on a new connection, once each side has proven that it knows the
// token. It closes the connection on an error and when ctx ends. lease limits for how long sent
// data may stay unacknowledged.
func Greet(ctx context.Context, raw net.Conn, token *secret.Token, lease time.Duration, first Frame) (*Call, error) {
	c := &Call{Conn: NewConn(raw), handshake: ClientHandshake{Token: token, Addr: raw.RemoteAddr()}}
	c.stop = context.AfterFunc(ctx, func() { c.Conn.Close() })
	c.In = bufio.NewReaderSize(c.Conn, ReadBuffer)
	SetUserTimeout(c.Conn, lease)
	c.SetDeadline(time.Now().Add(callPatience))
	var err error
	if c.theirs, err = c.handshake.Run(c.Conn, &c.FrameReader, AppendFrame(nil, first)); err != nil {
		c.Close()
	}
	return c, err
}

// Explain is ClientHandshake's.
func (c *Call) Explain(refusal *rendezvous.Error) error {
	return c.handshake.Explain(refusal, c.theirs)
}

// Close ends the call.
func (c *Call) Close() error {
	c.stop()
	return c.Conn.Close()
}
