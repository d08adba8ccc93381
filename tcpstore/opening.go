package tcpstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"rallypoint/core/secret"
	"rallypoint/internal/acceptloop"
	"rallypoint/internal/backoff"
	"rallypoint/internal/descriptors"
	"rallypoint/internal/eventloop"
	"rallypoint/internal/printable"
)

const (
	// maxOpenings bounds the connections that are not open yet, where a quarter of the
	// descriptors is not less; one more is closed. Each has a goroutine.
	maxOpenings = 4096
	// maxHandshakes limits those that have begun their TLS handshake. Others wait.
	maxHandshakes = 256
	// maxCrowd bounds those of them of sources that have more than a few: they wait for each
	// other, so that one machine alone keeps no other out.
	maxCrowd = maxHandshakes - maxHandshakes/4
	// tlsByte is the first byte of a connection that speaks TLS.
	tlsByte = 0x16
	// maxHello is how much of the first record has to arrive before the handshake begins. The
	// hello of our own clients is shorter.
	maxHello = 2 << 10
)

// Secure has the options of a Server that accepts connections by TLS and a proof
// (secret.DialStore).
type Secure struct {
	Token  *secret.Token
	Config *tls.Config // of secret.ServerTLS
}

// openings are the connections to a server with a token that have not proven themselves.
type openings struct {
	Secure
	side   func(*tls.Conn, secret.StoreName)
	slots  secret.Slots
	begun  chan struct{} // holds a token for each handshake that has begun
	crowd  chan struct{} // holds another token for those of sources that have more than a few
	places *secret.Places
}

func newOpenings(with Secure, side func(*tls.Conn, secret.StoreName)) *openings {
	return &openings{Secure: with, side: side, slots: secret.NewSlots(), begun: make(chan struct{}, maxHandshakes),
		crowd: make(chan struct{}, maxCrowd), places: secret.NewPlaces(mostOpenings())}
}

// begin waits until a handshake may begin. It reports false if ctx ends before; else the caller
// calls end after the handshake.
func (o *openings) begin(ctx context.Context, peer net.Addr) (end func(), ok bool) {
	turns := []chan struct{}{o.begun}
	if !o.places.Few(peer) {
		turns = []chan struct{}{o.crowd, o.begun}
	}
	had := 0
	end = func() {
		for _, turn := range turns[:had] {
			<-turn
		}
	}
	for _, turn := range turns {
		select {
		case turn <- struct{}{}:
			had++
		case <-ctx.Done():
			end()
			return nil, false
		}
	}
	return end, true
}

// mostOpenings leaves descriptors for open connections and for the rest of the process. A control
// plane in it takes up to half of them for its own unidentified connections.
func mostOpenings() int {
	return max(1, min(maxOpenings, descriptors.Limit()/4))
}

var (
	errPlain = errors.New("it does not speak TLS")
	errCrowd = errors.New("too many other connections are still opening, in total or from its machine")
)

// open accepts a connection, or closes it, in a goroutine of its own: no other one waits for it.
func (s *Server) open(nc net.Conn) {
	o := s.openings
	if !o.places.Take(nc.RemoteAddr()) {
		s.refuseOpening(nc, errCrowd)
		return
	}
	s.wg.Go(func() {
		conn, shard, side, err := s.secure(nc)
		var t *eventloop.TLS
		if err == nil && !side {
			if t, err = eventloop.NewTLS(conn); err != nil {
				err = fmt.Errorf("%w: %w", secret.ErrHandshake, err)
			}
		}
		o.places.Give(nc.RemoteAddr())
		switch {
		case err != nil:
			s.refuseOpening(nc, err)
		case side:
			o.side(conn, shard.name)
		default:
			s.startWhenPossible(nc, t, shard)
		}
	})
}

// secure goes through the TLS handshake and both proofs. shard is that of the round which the
// connection has named; side reports that it is for another port.
func (s *Server) secure(nc net.Conn) (conn *tls.Conn, shard *engineShard, side bool, err error) {
	ctx, cancel := context.WithTimeout(s.done, secret.OpeningTimeout)
	defer cancel()
	said, err := awaitHello(ctx, nc)
	if err != nil {
		return nil, nil, false, err
	}
	o := s.openings
	end, ok := o.begin(ctx, nc.RemoteAddr())
	if !ok {
		return nil, nil, false, os.ErrDeadlineExceeded
	}
	defer end()
	below := o.slots.Begin(nc, said)
	defer below.Finish()
	conn, err = secret.AcceptStore(ctx, eventloop.NewRecords(below), o.Config, o.Token, func(p secret.Purpose) bool {
		side = p == secret.PurposeSide && o.side != nil
		return side || p == secret.PurposeStore
	}, func() secret.StoreName {
		s.mu.Lock()
		defer s.mu.Unlock()
		shard = s.shard
		return shard.name
	})
	return conn, shard, side, err
}

// awaitHello returns the first record, up to maxHello: a connection that sends it byte by byte
// costs no computation, and delays none that has sent its own.
func awaitHello(ctx context.Context, nc net.Conn) ([]byte, error) {
	release := context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })
	said, err := readHello(nc)
	if !release() && err == nil {
		err = os.ErrDeadlineExceeded
	}
	return said, err
}

func readHello(r io.Reader) ([]byte, error) {
	var head [eventloop.RecordHead]byte
	n, err := r.Read(head[:])
	switch {
	case n == 0:
		return nil, err
	case head[0] != tlsByte:
		return nil, fmt.Errorf("%w: it begins with %s", errPlain, secret.HexStart(head[:n]))
	}
	if _, err := io.ReadFull(r, head[n:]); err != nil {
		return nil, fmt.Errorf("%w: it ended in its first record: %w", secret.ErrHandshake, err)
	}
	said := make([]byte, eventloop.RecordHead+min(eventloop.BodyLen(head[:]), maxHello))
	copy(said, head[:])
	if _, err := io.ReadFull(r, said[eventloop.RecordHead:]); err != nil {
		return nil, fmt.Errorf("%w: it ended in its first record: %w", secret.ErrHandshake, err)
	}
	return said, nil
}

// startWhenPossible hands an open connection to a loop. It waits while the process has no
// descriptor for that.
func (s *Server) startWhenPossible(nc net.Conn, t *eventloop.TLS, shard *engineShard) {
	pause := backoff.New(acceptloop.FirstPause, acceptloop.LastPause)
	for s.start(nc, t, shard) != nil {
		if !pause.Wait(s.done) {
			nc.Close()
			return
		}
	}
}

// refuseOpening closes a connection that is not open, and counts and logs why.
func (s *Server) refuseOpening(nc net.Conn, err error) {
	nc.Close()
	if s.done.Err() != nil {
		return
	}
	s.counters.accepted.Add(1)
	why := openingRefusal(err)
	if why == nil {
		return
	}
	s.refuse(why, peerOf(nc))
}

// openingRefusal says why a connection is not admitted. It returns nil for one that has ended
// without sending a byte, such as a check of the port.
func openingRefusal(err error) *refusal {
	text := printable.Text(strings.ReplaceAll(err.Error(), "\n", ": "))
	switch {
	case err == io.EOF, errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, secret.ErrHandshake):
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return refuse(reasonSilent, "it did not prove that it knows the token within %s", secret.OpeningTimeout)
	case errors.Is(err, errCrowd):
		return refuse(reasonCrowd, "%s", text)
	case errors.Is(err, errPlain):
		return refuse(reasonPlain, "%s: this store has a token, workers reach it by the agent of their node", text)
	case errors.Is(err, secret.ErrUnproven):
		return refuse(reasonAuth, "%s", text)
	case errors.Is(err, secret.ErrOtherRound):
		return refuse(reasonRound, "%s", text)
	case errors.Is(err, secret.ErrHandshake):
		return refuse(reasonHandshake, "%s", text)
	case errors.Is(err, secret.ErrMalformed), errors.Is(err, secret.ErrForeign):
		return refuse(reasonMalformed, "%s", text)
	}
	return refuse(reasonHandshake, "it ended before it was open: %s", text)
}
