package control

import (
	"net"
	"time"
)

const (
	// Pauses after a failed accept, which is nearly always for want of a
	// descriptor, doubled each time.
	firstAcceptPause = 5 * time.Millisecond
	lastAcceptPause  = 200 * time.Millisecond

	// acceptSettled is how long accepting goes well before a failure is news again:
	// at the limit of descriptors it fails after each connection.
	acceptSettled = 10 * time.Second

	// patienceWhenShort is how long a connection may take to say who it is while
	// others wait for descriptors, shedEvery how often that is looked after.
	patienceWhenShort = 500 * time.Millisecond
	shedEvery         = 100 * time.Millisecond
)

// accept serves one listener until it is closed. It does nothing else, so that who
// is new never waits for the requests of others.
func (s *Server) accept(l net.Listener) {
	var failed, shed time.Time // the last times; failed is zero when another one is news
	pause := firstAcceptPause
	for {
		conn, err := l.Accept()
		if err == nil {
			pause = firstAcceptPause
			if !failed.IsZero() && s.clock.Now().Sub(failed) > acceptSettled {
				failed = time.Time{}
				s.log.Info("accepts connections again", "address", l.Addr().String())
			}
			s.admit(conn)
			continue
		}
		select {
		case <-s.stop:
			return
		default:
		}
		if failed.IsZero() {
			s.log.Error("cannot accept a connection, trying on; those that are open are served", "address", l.Addr().String(), "error", err)
		}
		failed = s.clock.Now()
		if failed.Sub(shed) >= shedEvery {
			shed = failed
			if s.shed() {
				pause = firstAcceptPause
			}
		}
		select {
		case <-time.After(pause):
		case <-s.stop:
			return
		}
		pause = min(2*pause, lastAcceptPause)
	}
}

func (s *Server) admit(conn net.Conn) {
	p := newPeer(s, conn)
	s.meters.accepted.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		conn.Close()
		return
	}
	s.peers[p] = struct{}{}
	s.wg.Go(p.serve)
}

func (s *Server) forgetPeer(p *peer) {
	s.mu.Lock()
	delete(s.peers, p)
	s.mu.Unlock()
}

// shed ends connections that have not said who they are, so that those who wait
// to be accepted need not wait until helloTimeout; false if there are none.
func (s *Server) shed() (any bool) {
	now := s.clock.Now()
	var silent []*peer
	s.mu.Lock()
	for p := range s.peers {
		if !p.known.Load() && now.Sub(p.since) >= patienceWhenShort {
			silent = append(silent, p)
		}
	}
	s.mu.Unlock()
	for _, p := range silent {
		if unread(p.conn) == 0 {
			p.out.cut(errShed)
			any = true
		}
	}
	return any
}
