package control

import (
	"context"
	"slices"
	"sync"

	"rallypoint/core/rendezvous"
)

// connTracker knows which sessions are connected to a server.
type connTracker struct {
	mu        sync.Mutex
	connected map[boundSession]struct{}
	changed   chan struct{} // closed when a session leaves; nil: no caller waits
}

type boundSession struct {
	run     string
	session rendezvous.SessionID
}

func (c *connTracker) add(a boundSession) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.connected[a] = struct{}{}
}

func (c *connTracker) remove(a boundSession) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.connected, a)
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

func (c *connTracker) wait(ctx context.Context, except []rendezvous.SessionID) error {
	for {
		c.mu.Lock()
		others := len(c.connected)
		for a := range c.connected {
			if others > len(except) {
				break // more than could be excepted
			}
			if slices.Contains(except, a.session) {
				others--
			}
		}
		if others == 0 {
			c.mu.Unlock()
			return nil
		}
		if c.changed == nil {
			c.changed = make(chan struct{})
		}
		changed := c.changed
		c.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// shutdownGate admits callbacks of timers until it is closed; close waits for those
// inside.
type shutdownGate struct {
	mu     sync.Mutex
	closed bool
	inside sync.WaitGroup
}

func (s *shutdownGate) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.inside.Add(1)
	return true
}

func (s *shutdownGate) leave() { s.inside.Done() }

func (s *shutdownGate) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.inside.Wait()
}
