package static

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"rallypoint/agent"
	"rallypoint/core/params"
	"rallypoint/core/peer"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/core/store"
	"rallypoint/internal/printable"
	"rallypoint/internal/wake"
	"rallypoint/roundstore"
	"rallypoint/tcpstore"
)

// Scheme begins the endpoint of a static job: static://HOST:PORT of node 0.
const Scheme = "static://"

// Durations of a static job.
const (
	linger     = 5 * time.Second // of node 0 at the end, for nodes that still read their last answers
	lingering  = 2 * linger      // how long a node waits for an earlier run's store to go
	retryPause = 200 * time.Millisecond
	lookEvery  = time.Second // at who is missing
	firstLook  = 2 * time.Second
)

// Static is the rendezvous of a fixed set of nodes, torch's static backend: node
// 0 serves one store at a known port, which the agents and the workers share. It is
// safe for concurrent use; one Next runs at a time.
//
// What it does better than torch's (docs/deviations.md): each round has keys of its
// own, so that no node reads what an earlier round left (docs/spec/rendezvous.md
// R112); a round is complete when all its nodes are there; and a node that starts
// over or gives up tells the others. No node hears of one that is lost.
type Static struct {
	p    params.Params
	host string
	port int
	log  *slog.Logger
	self string // this node, unlike any other

	protection *roundstore.Protection // nil: the store is plain

	joining chan struct{} // holds a token while Next or the end runs
	life    context.Context
	endLife context.CancelFunc
	news    wake.Signal
	watch   sync.WaitGroup

	mu      sync.Mutex
	server  *tcpstore.Server // of node 0
	sides   *roundstore.Sides
	local   netip.AddrPort // where this node finds a protected store
	way     io.Closer      // to a protected store on another machine; nil: none
	client  *tcpstore.Client
	round   uint64
	over    bool   // another node has ended the round
	closed  bool   // for good
	reason  string // of over and closed
	stop    rendezvous.RoundStop
	unwatch context.CancelFunc // ends the watch of the round; nil: there is none
	stopped bool
}

var _ agent.Rendezvous = (*Static)(nil)

// ErrNoEndpoint is the error of a static job without an endpoint.
var ErrNoEndpoint error = rendezvous.Errorf(rendezvous.CodeInvalid, "the endpoint of a static job is host:port of its node 0, and it is missing")

// NewStatic makes the rendezvous of one node: p.Max nodes in all, of which this is
// number NodeRank, or RankHint if there is none. The endpoint is host and port of
// node 0, with or without Scheme; a job of one node may have port 0, which is any.
// It starts nothing: that is for Next. Errors are ErrInvalid.
func NewStatic(p params.Params, log *slog.Logger) (*Static, error) {
	if p.NodeRank < 0 {
		p.NodeRank = p.RankHint
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if p.Min != p.Max {
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "a static job has a fixed number of nodes, not %d to %d", p.Min, p.Max)
	}
	if p.NodeRank < 0 && p.Max == 1 {
		p.NodeRank = 0
	}
	if p.NodeRank < 0 || p.NodeRank >= p.Max {
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid,
			"a static job needs the rank of each node, 0 to %d (0 is the node at the endpoint): give the option node_rank (--rdzv-conf=node_rank=N) or the variable %s=N. "+
				"rallypoint run also takes --node-rank=N, which torchrun keeps from this backend", p.Max-1, params.EnvNodeRank)
	}
	place := strings.TrimPrefix(p.Endpoint, Scheme)
	if place == "" {
		return nil, ErrNoEndpoint
	}
	host, port, err := params.ParseEndpoint(place, -1)
	if err != nil {
		return nil, err
	}
	if port == 0 && p.Max > 1 || port > math.MaxUint16 {
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "the port of node 0 is %d, it must be between 1 and %d", port, math.MaxUint16)
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	warning, err := p.CheckSecurity(Scheme+net.JoinHostPort(host, strconv.Itoa(port)), false)
	if err != nil {
		return nil, err
	}
	if warning != "" {
		log.Warn(warning)
	}
	protection, err := roundstore.NewProtection(&p, log)
	if err != nil {
		return nil, err
	}
	name, _ := os.Hostname()
	s := &Static{
		p: p, host: host, port: port, log: log, protection: protection,
		self:    fmt.Sprintf("%s pid %d (%s)", name, os.Getpid(), rand.Text()),
		joining: make(chan struct{}, 1), news: wake.New(),
	}
	s.life, s.endLife = context.WithCancel(context.Background())
	return s, nil
}

// Params are those that the rendezvous was made with.
func (s *Static) Params() params.Params { return s.p }

// Next implements agent.Rendezvous: it leaves the present round, which tells the
// others to do so, and waits until every node has. It takes at most JoinTimeout.
func (s *Static) Next(ctx context.Context) (rendezvous.Outcome, error) {
	select {
	case s.joining <- struct{}{}:
		defer func() { <-s.joining }()
	case <-s.life.Done():
		return rendezvous.Outcome{}, rendezvous.Errorf(rendezvous.CodeCanceled, "run %q: this node has ended its part", s.p.RunID)
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, s.p.JoinTimeout)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	o, err := s.next(ctx, start)
	if err == nil || rendezvous.CodeOf(err) != rendezvous.CodeInternal {
		return o, err
	}
	took := time.Since(start).Round(100 * time.Millisecond)
	text := fmt.Sprintf("run %q, node %d of %d: node 0 at %s, tried for %v: %v", s.p.RunID, s.p.NodeRank, s.p.Max, s.place(), took, s.whyAway(err))
	switch {
	case s.life.Err() != nil || errors.Is(err, context.Canceled):
		return o, rendezvous.Errorf(rendezvous.CodeCanceled, "%s", text)
	case ctx.Err() != nil:
		return o, rendezvous.Errorf(rendezvous.CodeTimeout, "timed out: %s; start all nodes with the same endpoint, run id and number of nodes", text)
	}
	return o, rendezvous.Errorf(rendezvous.CodeConnection, "%s", text)
}

func (s *Static) next(ctx context.Context, start time.Time) (rendezvous.Outcome, error) {
	s.mu.Lock()
	last, client, unwatch := s.round, s.client, s.unwatch
	closed, reason := s.closed, s.reason
	s.mu.Unlock()
	if last > 0 && !closed {
		_, _ = s.tell(ctx, client, last, tellRegroup+"node "+strconv.Itoa(s.p.NodeRank)+" starts over")
		unwatch()
		s.watch.Wait()
		s.mu.Lock()
		closed, reason = s.closed, s.reason
		s.mu.Unlock()
	}
	if closed {
		return rendezvous.Outcome{}, s.closedError(reason)
	}
	if err := s.serve(ctx); err != nil {
		return rendezvous.Outcome{}, err
	}
	if err := s.reach(ctx); err != nil {
		return rendezvous.Outcome{}, err
	}
	client, err := s.enter(ctx, client, last+1, start)
	if err != nil {
		return rendezvous.Outcome{}, err
	}
	s.mu.Lock()
	s.client, s.round, s.over, s.reason, s.stop = client, last+1, false, "", rendezvous.RoundStop{}
	watching, unwatch := context.WithCancel(s.life)
	s.unwatch = unwatch
	addr, port := s.host, s.port
	if s.local.IsValid() {
		addr, port = s.local.Addr().String(), int(s.local.Port())
	}
	s.mu.Unlock()
	s.watch.Go(func() {
		defer unwatch()
		s.listen(watching, client, last+1)
	})
	return rendezvous.Outcome{
		Round: last + 1, Rank: s.p.NodeRank, World: s.p.Max, HostRank: -1, StoreAddr: addr, StorePort: port, AdvertisedAddr: s.host,
	}, nil
}

// serve makes node 0 serve the store.
func (s *Static) serve(ctx context.Context) error {
	s.mu.Lock()
	serving := s.server != nil
	s.mu.Unlock()
	if s.p.NodeRank != 0 || serving {
		return nil
	}
	listen, bind := "", netip.IPv6Unspecified()
	if addr, err := netip.ParseAddr(s.host); err == nil && addr.IsLoopback() {
		listen, bind = s.host, addr
	}
	opts := tcpstore.Options{Logger: s.log, Accept: peer.NewCheck(&s.p, &net.TCPAddr{IP: net.IP(bind.AsSlice())}).Accept}
	server, sides, err := s.listenStore(ctx, listen, opts)
	if err != nil {
		return rendezvous.Errorf(rendezvous.CodeConnection, "node 0 cannot serve its store: %v; give another --master-port, or end the program that has this one", err)
	}
	var local netip.AddrPort
	if s.protection != nil {
		server.BeginRound(nil, s.storeName())
		if local, _, err = s.protection.Serve(server, sides, s.storeName()); err != nil {
			_ = server.Close()
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server, s.sides, s.local = server, sides, local
	s.port = server.Addr().(*net.TCPAddr).Port
	return nil
}

// listenStore opens the store's server, and takes what other nodes bring for other ports.
func (s *Static) listenStore(ctx context.Context, host string, opts tcpstore.Options) (*tcpstore.Server, *roundstore.Sides, error) {
	engine := store.NewEngine(store.Limits{})
	if s.protection == nil {
		server, err := tcpstore.Listen(net.JoinHostPort(host, strconv.Itoa(s.port)), engine, opts)
		return server, nil, err
	}
	l, err := s.protection.Listen(ctx, host, s.port)
	if err != nil {
		return nil, nil, err
	}
	sides := s.protection.Sides()
	sides.Protect(&opts)
	return tcpstore.Serve(l, engine, opts), sides, nil
}

// storeName is the name of the one store that all rounds of the job share.
func (s *Static) storeName() secret.StoreName { return secret.StoreName{Run: s.p.RunID} }

// reach opens this node's way to a protected store of node 0.
func (s *Static) reach(ctx context.Context) error {
	s.mu.Lock()
	there := s.protection == nil || s.p.NodeRank == 0 || s.local.IsValid()
	s.mu.Unlock()
	if there {
		return nil
	}
	at, way, err := s.protection.Reach(ctx, s.host, s.port, s.storeName())
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.local = at
	if way != nil {
		s.way = way
	}
	return nil
}

// whyAway adds to the error of the client why the way to the store does not lead there.
func (s *Static) whyAway(err error) error {
	s.mu.Lock()
	open := s.way
	s.mu.Unlock()
	if way, ok := open.(interface{ Err() error }); ok && way.Err() != nil {
		return fmt.Errorf("%w: %w", err, way.Err())
	}
	return err
}

// place is where the store is, for logs and errors.
func (s *Static) place() string {
	if s.protection == nil {
		return s.addr()
	}
	return net.JoinHostPort(s.host, strconv.Itoa(s.port))
}

// addr is where this node finds the store.
func (s *Static) addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.local.IsValid():
		return s.local.String()
	case s.server != nil: // its own address need not be reachable from here
		a := s.server.Addr().(*net.TCPAddr)
		if a.IP.IsUnspecified() {
			return net.JoinHostPort("127.0.0.1", strconv.Itoa(a.Port))
		}
		return a.String()
	}
	return net.JoinHostPort(s.host, strconv.Itoa(s.port))
}

// key is a key of one round.
func (s *Static) key(round uint64, name string) string {
	return "rallypoint/static/" + s.p.RunID + "/" + strconv.FormatUint(round, 10) + "/" + name
}

// enter takes this node's place in a round, and waits until all places are taken.
// client is nil before the first round.
func (s *Static) enter(ctx context.Context, client *tcpstore.Client, round uint64, start time.Time) (*tcpstore.Client, error) {
	patience := time.Now().Add(lingering)
	warned := false
	for {
		if client == nil {
			c, err := tcpstore.Dial(ctx, s.addr(), tcpstore.ClientOptions{Logger: s.log})
			if err != nil {
				return nil, err
			}
			client = c
		}
		holder, err := s.claim(ctx, client, round)
		switch {
		case err == nil && holder == "":
			if err = s.assemble(ctx, client, round, start); err == nil || rendezvous.CodeOf(err) == rendezvous.CodeClosed {
				return client, err
			}
		case err == nil && time.Now().After(patience):
			err = rendezvous.Errorf(rendezvous.CodeNodeInUse, "run %q at %s: %s; each node needs a node_rank of its own, and a static job does not take a node back: start all its nodes again",
				s.p.RunID, s.place(), holder)
			_ = client.Close()
			return nil, err
		case err == nil && !warned:
			warned = true
			s.log.Warn(fmt.Sprintf("run %q at %s: %s; waiting %v for an earlier run to end", s.p.RunID, s.place(), holder, lingering))
		}
		_ = client.Close()
		client = nil
		if ctx.Err() != nil || round > 1 && err != nil { // the store is gone, and with it the job
			return nil, errors.Join(err, ctx.Err())
		}
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
		}
	}
}

// claim takes this node's place; it returns who has it or why there is none.
func (s *Static) claim(ctx context.Context, client *tcpstore.Client, round uint64) (holder string, err error) {
	nodes := strconv.Itoa(s.p.Max)
	got, err := client.CompareSet(ctx, s.key(round, "nodes"), nil, []byte(nodes))
	if err != nil {
		return "", err
	}
	if string(got) != nodes {
		return fmt.Sprintf("the job has %.20q nodes there, and %s here", got, nodes), nil
	}
	rank := strconv.Itoa(s.p.NodeRank)
	got, err = client.CompareSet(ctx, s.key(round, "node/"+rank), nil, []byte(s.self))
	if err != nil {
		return "", err
	}
	if string(got) != s.self {
		return fmt.Sprintf("node rank %s is taken by %.200q", rank, got), nil
	}
	return "", nil
}

// assemble waits until all nodes have taken their places.
func (s *Static) assemble(ctx context.Context, client *tcpstore.Client, round uint64, start time.Time) error {
	n, err := client.Add(ctx, s.key(round, "count"), 1)
	if err != nil {
		return err
	}
	complete := s.key(round, "complete")
	if n == int64(s.p.Max) {
		return client.Set(ctx, complete, []byte("1"))
	}
	pause := firstLook
	var shown string
	for {
		look, cancel := context.WithTimeout(ctx, pause)
		err := client.Wait(look, []string{complete})
		cancel()
		if err == nil {
			return s.assembled(ctx, client, round)
		}
		if !errors.Is(err, store.ErrTimeout) {
			return err
		}
		missing := s.missing(ctx, client, round)
		if ctx.Err() != nil {
			return fmt.Errorf("%w%s", err, missing)
		}
		if missing != "" && missing != shown {
			s.log.Info(fmt.Sprintf("run %q, round %d, %d s of %d s%s", s.p.RunID, round,
				int(time.Since(start).Seconds()), int(s.p.JoinTimeout.Seconds()), missing))
			shown = missing
		}
		pause = lookEvery
	}
}

// assembled tells a complete round from one that another node has ended.
func (s *Static) assembled(ctx context.Context, client *tcpstore.Client, round uint64) error {
	text, err := client.Get(ctx, s.key(round, "complete"))
	if err != nil {
		return err
	}
	return s.ended(string(text))
}

// missing names the nodes that have not taken their places, for an error's text.
func (s *Static) missing(ctx context.Context, client *tcpstore.Client, round uint64) string {
	const most = 16
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	var ranks []string
	for rank := range s.p.Max {
		here, err := client.Check(ctx, []string{s.key(round, "node/"+strconv.Itoa(rank))})
		if err != nil {
			return ""
		}
		if here {
			continue
		}
		if len(ranks) == most {
			ranks = append(ranks, "...")
			break
		}
		ranks = append(ranks, strconv.Itoa(rank))
	}
	if len(ranks) == 0 {
		return ""
	}
	return "; missing: node rank " + strings.Join(ranks, ", ")
}

// maxTold bounds what nodes tell each other, in bytes.
const maxTold = rendezvous.MaxNameLen

// What the value under overKey begins with.
const (
	overKey     = "over"
	tellRegroup = "regroup: "
	tellFailed  = "failed: "
)

// tell ends a round for all its nodes, and returns what was told first.
func (s *Static) tell(ctx context.Context, client *tcpstore.Client, round uint64, what string) (first string, err error) {
	got, err := client.CompareSet(ctx, s.key(round, overKey), nil, []byte(cutTold(what)))
	return string(got), err
}

// listen waits until a node ends the round.
func (s *Static) listen(ctx context.Context, client *tcpstore.Client, round uint64) {
	text, err := client.Get(ctx, s.key(round, overKey))
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		s.log.Warn(fmt.Sprintf("run %q: the store of node 0 at %s is gone: %v", s.p.RunID, s.place(), err))
		return
	}
	why := cutTold(string(text))
	if s.ended(why) != nil {
		return
	}
	stop, announced := s.parseStop(why, round)
	why = printable.Text(strings.TrimPrefix(why, tellRegroup))
	if announced {
		why = fmt.Sprintf("node %d failed: %s", stop.Rank, stop.Reason)
	}
	s.mu.Lock()
	s.over, s.stop, s.reason = true, stop, why
	s.mu.Unlock()
	s.news.Set()
	s.awaitNextRound(ctx, client, round)
}

// NodesWaiting implements agent.Rendezvous: more than 0 once another node has
// started over or given up.
func (s *Static) NodesWaiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return 1
	}
	return 0
}

// OnlyLost implements agent.Rendezvous: nobody sees a node of such a job being lost.
func (s *Static) OnlyLost() bool { return false }

// Changed implements agent.Rendezvous.
func (s *Static) Changed() <-chan struct{} { return s.news }

// Closed implements agent.Rendezvous.
func (s *Static) Closed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Reason implements agent.Rendezvous.
func (s *Static) Reason() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reason
}

// Keys implements agent.Rendezvous: a part of the one store for each round.
func (s *Static) Keys(round uint64) store.Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	return store.NewPrefix(s.p.RunID, store.NewPrefix(strconv.FormatUint(round, 10), shared{s.client}))
}

// shared is a store that lives as long as the rendezvous.
type shared struct{ store.Store }

// Close does nothing.
func (shared) Close() error { return nil }

// Finish implements agent.Rendezvous: no other node waits for it.
func (s *Static) Finish(context.Context) error { return nil }
