package tcpstore

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net"
	"time"

	"rallypoint/core/store"
	"rallypoint/internal/backoff"
)

// Pauses between attempts to connect. Their jitter keeps the clients of a store that
// came back from arriving all at once.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 5 * time.Second
)

// handshakeTimeout bounds one attempt's handshake. Without it a peer that accepts
// and stays silent, such as a server of torch 2.1, would hold the client for ever.
const handshakeTimeout = 10 * time.Second

// connect connects and makes the handshake. It tries again until ctx ends or the client
// is closed.
func (c *Client) connect(ctx context.Context) (*link, error) {
	start := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.done, cancel)()
	pause := backoff.New(firstPause, lastPause)
	var last error // of the attempts that the end of ctx did not cut short, if there is one
	for attempt := 1; ; attempt++ {
		l, err := handshake(ctx, c.addr)
		if err == nil {
			if !c.adopt(l) {
				return nil, store.ErrClosed
			}
			if attempt > 1 {
				c.log.Info("tcpstore: connected", "server", c.addr, "attempts", attempt, "tried", time.Since(start))
			}
			return l, nil
		}
		if attempt == 1 && ctx.Err() == nil {
			c.log.Info("tcpstore: cannot connect yet, trying on", "server", c.addr, "error", err)
		}
		if last == nil || store.ContextError(ctx) == nil {
			last = err
		}
		if !pause.Wait(ctx) {
			return nil, fmt.Errorf("connect, %d times, last error: %w: %w", attempt, last, store.ContextError(ctx))
		}
	}
}

// handshake makes one attempt. A server that closes on PING is one of torch
// 2.2-2.4, which do not know it, and is tried once more without
// (docs/spec/tcpstore-wire.md 3).
func handshake(ctx context.Context, addr string) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	l, err := dialOnce(ctx, addr, true)
	if store.EndedByPeer(err) {
		l, err = dialOnce(ctx, addr, false)
	}
	return l, err
}

// dialOnce connects and sends VALIDATE together with requests that have replies, in one
// write, since some servers take VALIDATE only in one piece.
func dialOnce(ctx context.Context, addr string, ping bool) (*link, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, store.PlainNetError(err)
	}
	l, err := newLink(conn.(*net.TCPConn))
	if err == nil {
		err = l.handshake(ctx, ping)
	}
	if err != nil {
		conn.Close()
		return nil, store.PlainNetError(err)
	}
	return l, nil
}

// handshake sends the opening messages of a connection, and reads the replies.
func (l *link) handshake(ctx context.Context, ping bool) error {
	hello := appendHello(nil)
	if ping {
		var nonce [4]byte
		_, _ = rand.Read(nonce[:]) // never fails
		l.pings, l.nonce = true, binary.LittleEndian.Uint32(nonce[:])
		hello = l.appendAck(hello)
	}
	hello = appendText(appendInt(append(hello, byte(opCheck)), 1), probeKey)
	return l.exchange(ctx, hello, func(in input) error {
		if ping {
			if err := l.readAck(in); err != nil {
				return err
			}
		}
		b, err := in.ReadByte()
		if err == nil && b != replyReady && b != replyNotReady {
			err = errOutOfStep
		}
		l.missingOK = b == replyReady
		return err
	}, new(bool), time.Time{})
}
