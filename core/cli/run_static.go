package cli

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"rallypoint/core/agent"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/tcpstore"
)

// staticLinger is how long node 0 of a static job serves on at the end for nodes
// that still read their last answers.
const staticLinger = 5 * time.Second

// departedKey counts the nodes that do not need the store any more.
const departedKey = "rallypoint/departed"

// static is the rendezvous of a fixed set of nodes, torch's static backend: node
// 0 serves one store at a known port, which the agents and the workers share.
// Nobody hears of a node that is lost, and the store is never emptied (W22). It
// is for one goroutine.
type static struct {
	m      *meeting
	log    *slog.Logger
	server *tcpstore.Server // of node 0
	client *tcpstore.Client
	keys   store.Store
	round  uint64
}

var (
	_ agent.Rendezvous = (*static)(nil)
	_ agent.Notifier   = (*static)(nil)
)

func newStatic(m *meeting, log *slog.Logger) *static { return &static{m: m, log: log} }

// Next implements agent.Rendezvous: it returns as soon as the store is there.
func (s *static) Next(ctx context.Context) (rendezvous.Outcome, error) {
	if s.client == nil {
		if err := s.connect(ctx); err != nil {
			return rendezvous.Outcome{}, err
		}
	}
	s.round++
	return rendezvous.Outcome{
		Round: s.round, Rank: s.m.rank, World: s.m.params.Max, HostRank: -1, StoreAddr: s.m.host, StorePort: s.m.port,
	}, nil
}

func (s *static) connect(ctx context.Context) error {
	addr := net.JoinHostPort(s.m.host, strconv.Itoa(s.m.port))
	if s.m.rank == 0 {
		server, err := tcpstore.Listen(":"+strconv.Itoa(s.m.port), store.NewEngine(store.Limits{}), tcpstore.Options{Logger: s.log})
		if err != nil {
			return fmt.Errorf("node 0 cannot serve its store: %w; give another --master-port", err)
		}
		s.server = server
		if _, port, err := net.SplitHostPort(server.Addr().String()); err == nil {
			s.m.port, _ = strconv.Atoi(port)
			addr = net.JoinHostPort("127.0.0.1", port)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.m.params.JoinTimeout)
	defer cancel()
	client, err := tcpstore.Dial(ctx, addr, tcpstore.ClientOptions{Logger: s.log})
	if err != nil {
		return fmt.Errorf("cannot reach node 0: %w", err)
	}
	s.client = client
	s.keys = store.NewPrefix(s.m.params.RunID, client)
	return nil
}

// NodesWaiting implements agent.Rendezvous: nobody can join.
func (s *static) NodesWaiting() int { return 0 }

// Changed implements agent.Notifier: nothing ever does.
func (s *static) Changed() <-chan struct{} { return nil }

// Closed implements agent.Rendezvous.
func (s *static) Closed() bool { return false }

// Reason implements agent.Rendezvous.
func (s *static) Reason() string { return "" }

// Keys implements agent.Rendezvous: all rounds share their keys.
func (s *static) Keys(uint64) store.Store { return s.keys }

// Finish implements agent.Rendezvous.
func (s *static) Finish(context.Context) error { return nil }

// Shutdown implements agent.Rendezvous.
func (s *static) Shutdown(ctx context.Context, ending rendezvous.Ending, _ string) error {
	if s.client != nil {
		ctx, cancel := context.WithTimeout(ctx, staticLinger)
		s.depart(ctx, ending)
		cancel()
		_ = s.client.Close()
	}
	if s.server != nil {
		return s.server.Close()
	}
	return nil
}

// depart tells node 0 that this node is done; node 0 waits for the others after a
// success, as long as it is given.
func (s *static) depart(ctx context.Context, ending rendezvous.Ending) {
	others := int64(s.m.params.Max - 1)
	if others == 0 || ending != rendezvous.EndSuccess {
		return
	}
	if s.m.rank == 0 {
		_ = s.keys.Wait(ctx, []string{departedKey + "/all"})
		return
	}
	if n, err := s.keys.Add(ctx, departedKey, 1); err == nil && n == others {
		_ = s.keys.Set(ctx, departedKey+"/all", []byte("1"))
	}
}
