package roundstore

import (
	"context"
	"sync"
)

// gate holds up new connections while it is shut. It bridges the time in which it is not
// known which round a new connection belongs to. The zero value is open.
type gate struct {
	mu   sync.Mutex
	pass chan struct{} // closed when the gate opens; nil: it is open
}

// await waits until the gate is open, or ctx ends, which is its error.
func (g *gate) await(ctx context.Context) error {
	for {
		g.mu.Lock()
		pass := g.pass
		g.mu.Unlock()
		if pass == nil {
			return nil
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
	if g.pass == nil {
		g.pass = make(chan struct{})
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pass != nil {
		close(g.pass)
		g.pass = nil
	}
}
