package cli

import (
	"context"
	"log/slog"

	"rallypoint/core/agent"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/tcpstore/hosted"
)

// aloneAddr is where the only node of a job serves its round store.
const aloneAddr = "127.0.0.1"

// alone is the rendezvous of a job of one node: each round is complete at once,
// and has an empty store of its own on a free port. It is for one goroutine.
type alone struct {
	addr   string
	stores rendezvous.RoundStores
	round  uint64
	open   rendezvous.RoundStore
	keys   *store.Local
}

var (
	_ agent.Rendezvous = (*alone)(nil)
	_ agent.Notifier   = (*alone)(nil)
)

// newAlone makes the rendezvous; addr is announced to the workers, "" is the
// loopback address.
func newAlone(addr string, log *slog.Logger) *alone {
	if addr == "" {
		addr = aloneAddr
	}
	return &alone{addr: addr, stores: hosted.NewRoundStores(log)}
}

// Next implements agent.Rendezvous.
func (s *alone) Next(ctx context.Context) (rendezvous.Outcome, error) {
	s.close()
	rs, err := s.stores.Open(ctx, s.addr, 0)
	if err != nil {
		return rendezvous.Outcome{}, err
	}
	rs.Begin()
	s.open = rs
	s.round++
	s.keys = store.NewLocal(store.NewEngine(store.Limits{}))
	return rendezvous.Outcome{Round: s.round, World: 1, HostRank: -1, StoreAddr: s.addr, StorePort: rs.Port()}, nil
}

func (s *alone) close() {
	if s.open != nil {
		_ = s.open.Close()
		_ = s.keys.Close()
	}
	s.open = nil
}

// NodesWaiting implements agent.Rendezvous: there are no others.
func (s *alone) NodesWaiting() int { return 0 }

// Changed implements agent.Notifier: nothing ever does.
func (s *alone) Changed() <-chan struct{} { return nil }

// Closed implements agent.Rendezvous.
func (s *alone) Closed() bool { return false }

// Reason implements agent.Rendezvous.
func (s *alone) Reason() string { return "" }

// Keys implements agent.Rendezvous.
func (s *alone) Keys(uint64) store.Store { return s.keys }

// Finish implements agent.Rendezvous.
func (s *alone) Finish(context.Context) error { return nil }

// Shutdown implements agent.Rendezvous.
func (s *alone) Shutdown(context.Context, rendezvous.Ending, string) error {
	s.close()
	return nil
}
