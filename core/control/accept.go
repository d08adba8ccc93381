package control

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/peer"
	"rallypoint/internal/backoff"
	"rallypoint/internal/descriptors"
)

const (
	// Pauses after a failed accept, which is nearly always for want of a
	// descriptor.
	firstAcceptPause = 5 * time.Millisecond
	lastAcceptPause  = 20 * time.Millisecond

	// acceptSettled is how long accepting goes well before a failure is news again:
	// at the limit of descriptors it fails after each connection.
	acceptSettled = 10 * time.Second

	// patienceWhenShort is how long a connection may take to say anything while others
	// wait. A peer that speaks our protocol or HTTP sends its first bytes with the
	// connection, so that they have arrived when it is accepted.
	patienceWhenShort = 20 * time.Millisecond
	shedEvery         = 5 * time.Millisecond
)

// errCrowd is why the port accepts no connection for a moment.
var errCrowd = errors.New("connections that have not said who they are have half of the descriptors")

// maxUnidentified is how many connections may be open before they have identified themselves:
// half of the descriptors. Nodes, and everything else in the process, have the rest.
func maxUnidentified() int64 {
	return max(1, int64(descriptors.Limit()/2))
}

// accept serves one listener until it is closed. It does nothing else, so that new connections
// never wait for the requests of others.
func (s *Server) accept(l net.Listener) {
	check := s.userCheck(l)
	var failed, shed time.Time // the last times; failed is zero when another one is news
	pauses := backoff.New(firstAcceptPause, lastAcceptPause)
	for {
		conn, err := s.acceptOne(check, l)
		if err == nil {
			pauses.Reset()
			if !failed.IsZero() && s.clock.Now().Sub(failed) > acceptSettled {
				failed = time.Time{}
				s.log.Info("accepts connections again", "address", l.Addr().String())
			}
			s.admit(conn)
			continue
		}
		if s.ending() {
			return
		}
		if failed.IsZero() {
			s.log.Error("cannot accept a connection, trying on; those that are open are served", "address", l.Addr().String(), "error", err)
		}
		failed = s.clock.Now()
		if failed.Sub(shed) >= shedEvery {
			shed = failed
			if s.shed() {
				pauses.Reset()
				continue
			}
		}
		select {
		case <-time.After(pauses.Next()):
		case <-s.stop:
			return
		}
	}
}

// acceptOne accepts a connection of an allowed user. It closes one of another user before it
// reads a byte.
func (s *Server) acceptOne(check *peer.Check, l net.Listener) (net.Conn, error) {
	if s.unidentified.Load() >= s.cfg.maxUnidentified {
		return nil, errCrowd
	}
	return check.Accept(l, func(from netip.AddrPort, why error) {
		s.metrics.accepted.Add(1)
		if errors.Is(why, peer.ErrEnded) {
			s.metrics.refused[refusedIncomplete].Add(1)
			s.log.Debug("a connection ended before it was accepted", "address", from.String())
			return
		}
		if s.sampleRefusal(refusedUser, net.TCPAddrFromAddrPort(from), "") {
			s.log.Warn("closed a connection", slog.String("address", from.String()), slog.String("reason", why.Error()))
		}
	})
}

func (s *Server) admit(conn net.Conn) {
	p := newServerConn(s, conn)
	s.metrics.accepted.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		conn.Close()
		return
	}
	s.conns[p] = struct{}{}
	p.markUnidentified()
	s.wg.Go(p.serve)
}

// shed closes connections that have not identified themselves, so that new ones need not wait
// until helloTimeout. It closes those that have sent nothing. If there are none, it closes the
// older half of the others, since a proof or a long hello may be on its way in the rest. It
// reports whether it has closed any.
func (s *Server) shed() (any bool) {
	now := s.clock.Now()
	var silent, slow []*serverConn
	s.mu.Lock()
	for p := range s.conns {
		switch {
		case !p.unidentified.Load() || now.Sub(p.since) < patienceWhenShort:
		case p.heard.Load() == 0:
			silent = append(silent, p)
		default:
			slow = append(slow, p)
		}
	}
	s.mu.Unlock()
	if len(silent) == 0 {
		slices.SortFunc(slow, func(a, b *serverConn) int { return a.since.Compare(b.since) })
		silent = slow[:(len(slow)+1)/2]
	}
	for _, p := range silent {
		if wire.Unread(p.conn) == 0 {
			p.markIdentified()
			p.out.Cut(errShed)
			any = true
		}
	}
	return any
}

// userCheck decides whose connections a listener accepts. nil accepts everyone's, as for a server
// of many runs, which many users share.
func (s *Server) userCheck(l net.Listener) *peer.Check {
	if s.cfg.Node == nil {
		return nil
	}
	return peer.NewCheck(s.cfg.Node, l.Addr())
}
