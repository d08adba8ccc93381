package control

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"

	"rallypoint/core/rendezvous"
)

// idleness knows which sessions are connected to a server.
type idleness struct {
	mu        sync.Mutex
	connected map[attachment]struct{}
	changed   chan struct{} // closed at a departure if somebody waits
}

type attachment struct {
	run     string
	session rendezvous.SessionID
}

func (i *idleness) attach(a attachment) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.connected == nil {
		i.connected = map[attachment]struct{}{}
	}
	i.connected[a] = struct{}{}
}

func (i *idleness) detach(a attachment) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.connected, a)
	if i.changed != nil {
		close(i.changed)
		i.changed = nil
	}
}

func (i *idleness) wait(ctx context.Context, except []rendezvous.SessionID) error {
	for {
		i.mu.Lock()
		others := len(i.connected)
		for a := range i.connected {
			if others > len(except) {
				break // more than could be excepted
			}
			if slices.Contains(except, a.session) {
				others--
			}
		}
		if others == 0 {
			i.mu.Unlock()
			return nil
		}
		if i.changed == nil {
			i.changed = make(chan struct{})
		}
		changed := i.changed
		i.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// gate lets callbacks of timers in until it is closed, and waits for those
// inside.
type gate struct {
	mu     sync.Mutex
	closed bool
	inside sync.WaitGroup
}

func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.inside.Add(1)
	return true
}

func (g *gate) leave() { g.inside.Done() }

func (g *gate) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.inside.Wait()
}

// processName names this process for people on other machines.
func processName(hostname string) string {
	if hostname == "" {
		hostname = "unknown"
	}
	return fmt.Sprintf("host %s, pid %d", hostname, os.Getpid())
}
