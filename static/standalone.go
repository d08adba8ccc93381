package static

import (
	"cmp"
	"context"
	"log/slog"

	"rallypoint/agent"
	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/internal/promtext"
	"rallypoint/roundstore"
)

// aloneAddr is where the only node of a job serves its round store.
const aloneAddr = "127.0.0.1"

// Standalone is the rendezvous of a job of one node: each round is complete at once,
// and has an empty store of its own on a free port. It is for one goroutine, but for what it
// does as a carrier of directives and NodesWaiting, Closed and Reason.
type Standalone struct {
	directives *ownDirectives
	addr       string
	run        string
	stores     *roundstore.RoundStores
	round      uint64
	open       member.RoundStore
	keys       *store.Memory
}

var (
	_ agent.Rendezvous = (*Standalone)(nil)
	_ agent.Notifier   = (*Standalone)(nil)
	_ agent.Exposer    = (*Standalone)(nil)
)

// NewStandalone makes the rendezvous. It starts nothing: that is for Next. Of p,
// LocalAddr is announced to the workers, "" is the loopback address, and the users of
// LoopbackUsers may connect to the store.
func NewStandalone(p params.Params, log *slog.Logger) *Standalone {
	p.Max, p.Endpoint, p.TokenFile = 1, "", "" // no other machine takes part
	return &Standalone{directives: newOwnDirectives(), addr: cmp.Or(p.LocalAddr, aloneAddr), run: p.RunID, stores: roundstore.NewRoundStores(p, log)}
}

// Next implements agent.Rendezvous.
func (s *Standalone) Next(ctx context.Context) (rendezvous.Outcome, error) {
	s.close()
	if reason, requeued := s.Requeued(); requeued {
		return rendezvous.Outcome{}, rendezvous.Errorf(rendezvous.CodeClosed, "the job has ended to be queued again, %s", reason)
	}
	rs, err := s.stores.Open(ctx, s.addr, 0)
	if err != nil {
		return rendezvous.Outcome{}, err
	}
	s.open = rs
	s.round++
	s.directives.begin(s.round)
	s.keys = store.NewMemory(store.NewEngine(store.Limits{}))
	return rs.Begin(rendezvous.Outcome{Round: s.round, World: 1, HostRank: -1, StoreAddr: s.addr, StorePort: rs.Port(), AdvertisedAddr: s.addr})
}

func (s *Standalone) close() {
	if s.open != nil {
		_ = s.open.Close()
		_ = s.keys.Close()
	}
	s.open = nil
}

// Expose implements agent.Exposer.
func (s *Standalone) Expose(b *promtext.Buffer) { s.stores.Expose(b) }

// NodesWaiting implements agent.Rendezvous: there are no others, so that it tells only of the
// end of the job by a directive.
func (s *Standalone) NodesWaiting() int {
	if _, requeued := s.Requeued(); requeued {
		return 1
	}
	return 0
}

// Changed implements agent.Notifier.
func (s *Standalone) Changed() <-chan struct{} { return s.directives.news }

// Closed implements agent.Rendezvous.
func (s *Standalone) Closed() bool { _, requeued := s.Requeued(); return requeued }

// Reason implements agent.Rendezvous.
func (s *Standalone) Reason() string { reason, _ := s.Requeued(); return reason }

// Keys implements agent.Rendezvous.
func (s *Standalone) Keys(uint64) store.Store { return s.keys }

// Finish implements agent.Rendezvous.
func (s *Standalone) Finish(context.Context) error { return nil }

// Shutdown implements agent.Rendezvous.
func (s *Standalone) Shutdown(context.Context, rendezvous.Ending, string) error {
	s.directives.end()
	s.close()
	return nil
}
