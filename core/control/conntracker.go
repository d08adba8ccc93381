package control

import (
	"context"
	"fmt"
	"os"
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

func (t *connTracker) add(a boundSession) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.connected == nil {
		t.connected = map[boundSession]struct{}{}
	}
	t.connected[a] = struct{}{}
}

func (t *connTracker) remove(a boundSession) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.connected, a)
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

func (t *connTracker) wait(ctx context.Context, except []rendezvous.SessionID) error {
	for {
		t.mu.Lock()
		others := len(t.connected)
		for a := range t.connected {
			if others > len(except) {
				break // more than could be excepted
			}
			if slices.Contains(except, a.session) {
				others--
			}
		}
		if others == 0 {
			t.mu.Unlock()
			return nil
		}
		if t.changed == nil {
			t.changed = make(chan struct{})
		}
		changed := t.changed
		t.mu.Unlock()
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

func (g *shutdownGate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.inside.Add(1)
	return true
}

func (g *shutdownGate) leave() { g.inside.Done() }

func (g *shutdownGate) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.inside.Wait()
}

// processName names this process to users on other machines.
func processName(hostname string) string {
	if hostname == "" {
		hostname = "unknown"
	}
	return fmt.Sprintf("host %s, pid %d", hostname, os.Getpid())
}
