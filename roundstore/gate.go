package roundstore

import (
	"context"
	"sync"
)

// gate holds up new connections while it is shut. It bridges the time in which it is not
// known which round a new connection belongs to.
type gate struct {
	mu   sync.Mutex
	pass chan struct{} // closed while the gate is open
}

func newGate() *gate {
	g := &gate{pass: make(chan struct{})}
	close(g.pass)
	return g
}

// await waits until the gate is open, or ctx ends, which is its error.
func (g *gate) await(ctx context.Context) error {
	for {
		g.mu.Lock()
		pass := g.pass
		g.mu.Unlock()
		select {
		case <-pass:
			return nil
		default:
		}
		select {
		case <-pass: // look again: it may be shut once more
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.pass:
		g.pass = make(chan struct{})
	default:
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.pass:
	default:
		close(g.pass)
	}
}
