package control

import (
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
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
var errCrowd = errors.New("connections that have not said who they are have half of the descriptors, or their part of the memory")

// maxUnidentified is how many connections may be open before they have identified themselves:
// half of the descriptors. Nodes, and everything else in the process, have the rest.
func maxUnidentified() int64 {
	return max(1, int64(descriptors.Limit()/2))
}

// All connections that have not identified themselves share a thirty-second of what the server keeps for
// all runs, or leastUnidentified. Each counts with unidentifiedCost, which its goroutine and its buffers take, and with the
// frame that it sends.
const (
	unidentifiedShare = 32
	leastUnidentified = 4 << 20
	unidentifiedCost  = 8 << 10
)

// unidentified are the connections that have not identified themselves, which shed closes first, and their memory.
type unidentified struct {
	mu    sync.Mutex
	held  map[*serverConn]int64
	bytes int64
}

func (g *unidentified) add(p *serverConn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, known := g.held[p]; known {
		return
	}
	if g.held == nil {
		g.held = map[*serverConn]int64{}
	}
	g.held[p] = unidentifiedCost
	g.bytes += unidentifiedCost
}

func (g *unidentified) drop(p *serverConn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.bytes -= g.held[p]
	delete(g.held, p)
}

// hold counts by more bytes of a connection that is still one of them, and returns the sum of all.
func (g *unidentified) hold(p *serverConn, by int64) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, known := g.held[p]; known {
		g.held[p] += by
		g.bytes += by
	}
	return g.bytes
}

func (g *unidentified) total() (connections, bytes int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return int64(len(g.held)), g.bytes
}

// list returns all of them, the oldest first.
func (g *unidentified) list() []*serverConn {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.SortedFunc(maps.Keys(g.held), func(a, b *serverConn) int { return a.since.Compare(b.since) })
}

// oldest drops the oldest ones that hold the memory of a frame, until no more than most bytes are
// held, and returns them.
func (g *unidentified) oldest(most int64) (out []*serverConn) {
	all := g.list()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range all {
		if g.bytes <= most {
			break
		}
		if held := g.held[p]; held > unidentifiedCost {
			g.bytes -= held
			delete(g.held, p)
			out = append(out, p)
		}
	}
	return out
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
	if n, bytes := s.strangers.total(); n >= s.cfg.maxUnidentified || bytes >= s.cfg.maxUnidentifiedBytes {
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
	s.strangers.add(p)
	s.wg.Go(p.serve)
}

// shed closes connections that have not identified themselves, so that new ones need not wait
// until helloTimeout. It closes those that have sent nothing. If there are none, it closes the
// older half of the others, since a proof or a long hello may be on its way in the rest. It
// reports whether it has closed any.
func (s *Server) shed() (any bool) {
	now := s.clock.Now()
	var silent, slow []*serverConn
	for _, p := range s.strangers.list() {
		switch {
		case now.Sub(p.since) < patienceWhenShort:
		case p.heard.Load() == 0:
			silent = append(silent, p)
		default:
			slow = append(slow, p)
		}
	}
	if len(silent) == 0 {
		silent = slow[:(len(slow)+1)/2]
	}
	for _, p := range silent {
		if wire.Unread(p.conn) == 0 {
			s.strangers.drop(p)
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
