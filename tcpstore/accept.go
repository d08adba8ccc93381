package tcpstore

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"rallypoint/core/peer"
	"rallypoint/internal/acceptloop"
	"rallypoint/internal/eventloop"
)

// acceptor accepts from one listener of a server, in a goroutine of its own, so that new
// connections never wait for the requests of others.
type acceptor struct {
	*Server
	listener net.Listener
	accept   Accept                          // nil: all
	pass     func(ctx context.Context) error // nil: at once
	secure   bool                            // they have to open by TLS and a proof
	done     context.Context                 // ends with the listener
}

// run accepts until done ends.
func (a *acceptor) run() {
	var nc net.Conn // accepted, but not in a loop yet
	defer func() {
		if nc != nil {
			nc.Close()
		}
	}()
	log := a.log.With("listen", a.listener.Addr().String())
	if acceptloop.Run(a.done, log, "connections to the TCPStore", func() error { return a.acceptOne(&nc) }) != nil {
		log.Error("tcpstore: the listener was closed from outside; no new connections are served")
	}
}

// acceptOne accepts a connection, unless nc is one, and hands it to a loop, or to its
// opening. After an error the caller tries again with the connection in nc.
func (a *acceptor) acceptOne(nc *net.Conn) (err error) {
	if *nc == nil {
		if *nc, err = a.next(); err != nil {
			*nc = nil
			return err
		}
	}
	if a.pass != nil {
		if err := a.pass(a.done); err != nil {
			return err
		}
	}
	if a.secure {
		a.open(*nc)
	} else if err := a.start(*nc, nil, nil); err != nil {
		return err
	}
	*nc = nil
	return nil
}

func (a *acceptor) next() (net.Conn, error) {
	if a.accept == nil {
		return a.listener.Accept()
	}
	return a.accept(a.listener, a.refused)
}

// refused counts and logs a connection that may not be served.
func (a *acceptor) refused(from netip.AddrPort, why error) {
	a.counters.accepted.Add(1)
	if errors.Is(why, peer.ErrEnded) {
		a.counters.refused[reasonEnded].Add(1)
		a.log.Debug("tcpstore: a connection ended before it was accepted", "peer", from.String(), "listen", a.listener.Addr().String())
		return
	}
	a.counters.refused[reasonUser].Add(1)
	if a.refusals.Note(reasonUser.String(), from.Addr().String()) {
		a.log.Warn("tcpstore: connection closed: "+why.Error(),
			"peer", from.String(), "listen", a.listener.Addr().String(), "reason", reasonUser.String())
	}
}

// start hands an accepted connection to a loop. A TLS connection comes with its state and the
// shard that it has named. If start fails, it can be called again with the same arguments.
func (s *Server) start(nc net.Conn, t *eventloop.TLS, shard *engineShard) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	if s.loops == nil {
		loops, err := newLoops(s, s.numLoops)
		if err != nil {
			return err
		}
		s.loops = loops
		for _, l := range loops {
			s.wg.Go(l.run)
		}
	}
	peer := peerOf(nc)
	fd, err := eventloop.TakeOver(nc)
	if errors.Is(err, errors.ErrUnsupported) {
		s.log.Warn("tcpstore: connection closed: it is not a socket", "peer", nc.RemoteAddr().String(), "listen", s.Addr().String())
		return nc.Close()
	}
	if err != nil {
		return err
	}
	l := s.loops[s.next%len(s.loops)]
	s.next++
	s.counters.open.Add(1)
	s.counters.accepted.Add(1)
	if shard == nil {
		shard = s.shard
	}
	c := newConn(l, shard, fd, peer)
	c.tls = t
	if !l.events.Put(func(in *inbox) { in.added = append(in.added, c) }) {
		s.counters.open.Add(-1)
		return unix.Close(fd)
	}
	return nil
}
