package fixed

import (
	"context"
	"fmt"
	"log/slog"
	"math"
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

// Static is the rendezvous of a fixed set of nodes, torch's static backend: node
// 0 serves one store at a known port, which the agents and the workers share.
// Nobody hears of a node that is lost, and the store is never emptied (W22). It
// is for one goroutine.
type Static struct {
	p      StaticParams
	log    *slog.Logger
	server *tcpstore.Server // of node 0
	client *tcpstore.Client
	keys   store.Store
	round  uint64
}

var (
	_ agent.Rendezvous = (*Static)(nil)
	_ agent.Notifier   = (*Static)(nil)
)

// StaticParams is what the nodes of a static job know beforehand.
type StaticParams struct {
	RunID string
	Nodes int           // how many there are, > 0
	Rank  int           // of this one
	Host  string        // of node 0, as the others reach it
	Port  int           // of its store; 0 is any, for a job of one node
	Limit time.Duration // for reaching node 0
}

// Validate reports the first thing that is wrong; it is ErrInvalid.
func (p *StaticParams) Validate() error {
	switch {
	case p.RunID == "":
		return rendezvous.Errorf(rendezvous.CodeInvalid, "the run id is missing")
	case p.Nodes < 1 || p.Nodes > rendezvous.MaxNodes:
		return rendezvous.Errorf(rendezvous.CodeInvalid, "the number of nodes is %d, it must be between 1 and %d", p.Nodes, rendezvous.MaxNodes)
	case p.Rank < 0 || p.Rank >= p.Nodes:
		return rendezvous.Errorf(rendezvous.CodeInvalid, "the rank of this node is %d, it must be 0 or more and below the number of nodes (%d)", p.Rank, p.Nodes)
	case p.Host == "":
		return rendezvous.Errorf(rendezvous.CodeInvalid, "the host of node 0 is missing")
	case p.Port < 0 || p.Port > math.MaxUint16 || p.Port == 0 && p.Nodes > 1:
		return rendezvous.Errorf(rendezvous.CodeInvalid, "the port of node 0 is %d, it must be between 1 and %d (0, any, only for one node)", p.Port, math.MaxUint16)
	}
	return nil
}

// NewStatic makes the rendezvous, or tells what is wrong with the parameters. It
// starts nothing: that is for Next.
func NewStatic(p StaticParams, log *slog.Logger) (*Static, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return &Static{p: p, log: log}, nil
}

// Next implements agent.Rendezvous: it returns as soon as the store is there.
func (s *Static) Next(ctx context.Context) (rendezvous.Outcome, error) {
	if s.client == nil {
		if err := s.connect(ctx); err != nil {
			return rendezvous.Outcome{}, err
		}
	}
	s.round++
	return rendezvous.Outcome{
		Round: s.round, Rank: s.p.Rank, World: s.p.Nodes, HostRank: -1, StoreAddr: s.p.Host, StorePort: s.p.Port,
	}, nil
}

func (s *Static) connect(ctx context.Context) error {
	addr := net.JoinHostPort(s.p.Host, strconv.Itoa(s.p.Port))
	if s.p.Rank == 0 {
		server, err := tcpstore.Listen(":"+strconv.Itoa(s.p.Port), store.NewEngine(store.Limits{}), tcpstore.Options{Logger: s.log})
		if err != nil {
			return fmt.Errorf("node 0 cannot serve its store: %w; give another --master-port", err)
		}
		s.server = server
		if _, port, err := net.SplitHostPort(server.Addr().String()); err == nil {
			s.p.Port, _ = strconv.Atoi(port)
			addr = net.JoinHostPort("127.0.0.1", port)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.p.Limit)
	defer cancel()
	client, err := tcpstore.Dial(ctx, addr, tcpstore.ClientOptions{Logger: s.log})
	if err != nil {
		return fmt.Errorf("cannot reach node 0: %w", err)
	}
	s.client = client
	s.keys = store.NewPrefix(s.p.RunID, client)
	return nil
}

// NodesWaiting implements agent.Rendezvous: nobody can join.
func (s *Static) NodesWaiting() int { return 0 }

// Changed implements agent.Notifier: nothing ever does.
func (s *Static) Changed() <-chan struct{} { return nil }

// Closed implements agent.Rendezvous.
func (s *Static) Closed() bool { return false }

// Reason implements agent.Rendezvous.
func (s *Static) Reason() string { return "" }

// Keys implements agent.Rendezvous: all rounds share their keys.
func (s *Static) Keys(uint64) store.Store { return s.keys }

// Finish implements agent.Rendezvous.
func (s *Static) Finish(context.Context) error { return nil }

// Shutdown implements agent.Rendezvous.
func (s *Static) Shutdown(ctx context.Context, ending rendezvous.Ending, _ string) error {
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
func (s *Static) depart(ctx context.Context, ending rendezvous.Ending) {
	others := int64(s.p.Nodes - 1)
	if others == 0 || ending != rendezvous.EndSuccess {
		return
	}
	if s.p.Rank == 0 {
		_ = s.keys.Wait(ctx, []string{departedKey + "/all"})
		return
	}
	if n, err := s.keys.Add(ctx, departedKey, 1); err == nil && n == others {
		_ = s.keys.Set(ctx, departedKey+"/all", []byte("1"))
	}
}
