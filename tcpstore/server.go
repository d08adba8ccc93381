package tcpstore

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"rallypoint/core/secret"
	"rallypoint/core/store"
	"rallypoint/internal/logsampler"
)

// DefaultMaxUnsent is Options.MaxUnsent if that is 0: room for a MULTI_GET of
// several values of the largest size.
const DefaultMaxUnsent = 64 << 20

// Defaults of Options.MaxUnsentSum, which lets some hundred peers be sent a large reply at
// a time, and of Options.SlowAfter, the lease of a node.
const (
	DefaultMaxUnsentSum = 256 << 20
	DefaultSlowAfter    = 10 * time.Second
)

// Options are the settings of a Server. The zero value is a server like torch's
// own, bounded in memory by MaxUnsent.
type Options struct {
	// Logger gets a line for connections that the server refuses or closes, not
	// for each of them if there are many (internal/logsampler), and for trouble with
	// accepting. It must not wait for its reader (internal/linequeue). Nil is slog.Default().
	Logger *slog.Logger

	// MaxUnsent bounds, in bytes, the replies that wait for a connection's peer
	// to read them. A connection that would exceed it is closed, so it is also
	// the largest single reply. 0 is DefaultMaxUnsent. A peer that pipelines
	// requests and reads no replies is not served on long before that.
	MaxUnsent int

	// MaxUnsentSum bounds the same over all connections, 0 is DefaultMaxUnsentSum. A
	// value that many replies have is counted once. A request whose reply has no room
	// (one of a few KiB always has) waits until others have read theirs. A connection
	// that then does not read for SlowAfter is closed. Replies that need less room may
	// come first for SlowAfter.
	MaxUnsentSum int

	// SlowAfter is how long a peer may take to read 64 KiB of its replies, or a 16th of
	// them if that is more, while others wait for the memory. 0 is DefaultSlowAfter.
	SlowAfter time.Duration

	// MaxWaitBytes bounds the memory that the pending waits of all connections to one
	// engine take. A connection that would exceed it is closed. 0 is
	// DefaultMaxWaitBytes.
	MaxWaitBytes int64

	// NormalizeAttemptKeys makes the server treat all keys that begin with
	// worker/attempt_<n>/ as if n were 0. torch 2.2-2.5 workers prefix their
	// keys by their agent's restart count, which differs between agents after
	// the loss of a node (docs/decisions/0003).
	NormalizeAttemptKeys bool

	// Accept returns the connections that may be served. Nil takes all.
	Accept Accept

	// Pass is asked before each accepted connection is served, in the goroutine that accepts: it
	// may delay it, and the ones after it, until ctx ends, and then returns an error. Nil lets it
	// pass at once.
	Pass func(ctx context.Context) error

	// Secure, if not nil, makes the listener take connections only by TLS and a proof of the
	// token that names the present round (secret.DialStore). Until BeginRound there is none,
	// and no one is let in. Nothing of what a peer says before reaches the engine.
	Secure *Secure

	// Side, if not nil, gets the connections by TLS that are for another port of this node
	// (secret.PurposeSide) and have named the present round. They are its to close; it does
	// not block. Without it they are refused.
	Side func(conn *tls.Conn, name secret.StoreName)

	// Loops is how many goroutines serve the connections, each its share of
	// them; one keeps one core busy at most. 0 is one, which carries more
	// requests than torch's server (bench/store) and leaves the other cores to
	// the program that the server lives in.
	Loops int
}

// Accept is how connections are accepted from a listener, by one goroutine. It returns the next
// one that may be served, of which no byte was read, and closes others, having told refused, which
// counts and logs them.
type Accept func(l net.Listener, refused func(from netip.AddrPort, why error)) (net.Conn, error)

// DefaultMaxWaitBytes is Options.MaxWaitBytes if that is 0: some five thousand peers can
// each wait for a key of each.
const DefaultMaxWaitBytes = 1 << 30

// Server serves a store.Engine to TCPStore clients of torch 2.2 and newer. It
// listens from the moment it exists until Close. All methods may be called from
// several goroutines at once.
//
// It looks up no names, and it has no timeouts: a silent connection stays open
// until either end closes it. Only a peer whose machine does not answer any more
// is given up (see KeepAlive). Requests that have been read are carried out and
// answered in turn, and a peer that does not read is not served on: it costs the
// server less than MaxUnsent, all of them together about MaxUnsentSum, and the others
// nothing as long as there is room.
type Server struct {
	log      *slog.Logger
	listener net.Listener
	config   sessionConfig
	numLoops int
	openings *openings // nil: connections are plain

	maxUnsentSum int // of all loops

	counters counters // of accepting; the loops have their own
	refusals *logsampler.Sampler
	stop     context.CancelFunc
	done     context.Context
	wg       sync.WaitGroup

	mu     sync.Mutex
	shard  *engineShard
	loops  []*loop // made for the first connection
	next   int     // of loops, for the next connection
	closed bool
}

// engineShard is an engine with its lock and the connections that were made to it. The
// lock also guards the sessions of these connections.
type engineShard struct {
	name   secret.StoreName // what connections that speak TLS have to name; guarded by Server.mu
	mu     sync.Mutex
	engine *store.Engine
	woken  []*conn // have new replies caused by other connections
}

// KeepAlive is how Listen finds peers that vanished without closing, such as a machine
// that lost power: after ten minutes without any answer from its kernel. An idle peer
// answers, however long it stays silent. It is for listeners that are handed to a server,
// too, and not to be changed.
var KeepAlive = net.KeepAliveConfig{
	Enable:   true,
	Idle:     5 * time.Minute,
	Interval: 30 * time.Second,
	Count:    10,
}

// Listen returns a server of e at addr, an IP address (or nothing) with a port,
// 0 for any free one. ":29500" and "[::]:29500" listen on all addresses of both
// families, or of IPv4 only on a machine without IPv6. A host name is an error,
// for it would have to be looked up. The engine belongs to the server from now
// on.
func Listen(addr string, e *store.Engine, opts Options) (*Server, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("tcpstore: listen: %w", err)
	}
	network := "tcp"
	if host != "" {
		ip, err := netip.ParseAddr(host)
		if err != nil {
			return nil, fmt.Errorf("tcpstore: listen on %s: the host is not an IP address", addr)
		}
		if ip.Is4() {
			network = "tcp4" // Go takes 0.0.0.0 for both families otherwise
		}
	}
	config := net.ListenConfig{KeepAliveConfig: KeepAlive}
	config.SetMultipathTCP(false) // clients are plain TCP
	l, err := config.Listen(context.Background(), network, addr)
	if err != nil {
		return nil, fmt.Errorf("tcpstore: listen on %s: %w", addr, store.PlainNetError(err))
	}
	return Serve(l, e, opts), nil
}

// Serve returns a server of e which accepts from l, whose connections must be
// sockets (syscall.Conn): they are taken out of the Go runtime's poller. Both l
// and e belong to the server from now on.
func Serve(l net.Listener, e *store.Engine, opts Options) *Server {
	s := &Server{
		log:      cmp.Or(opts.Logger, slog.Default()),
		listener: l,
		shard:    &engineShard{engine: e},
		numLoops: max(1, opts.Loops),
	}
	if opts.Secure != nil {
		s.openings = newOpenings(*opts.Secure, opts.Side)
	}
	s.config = sessionConfig{
		normalizeAttemptKeys: opts.NormalizeAttemptKeys,
		maxUnsent:            cmp.Or(opts.MaxUnsent, DefaultMaxUnsent),
		slowAfter:            cmp.Or(opts.SlowAfter, DefaultSlowAfter),
		maxWaitBytes:         cmp.Or(opts.MaxWaitBytes, DefaultMaxWaitBytes),
	}
	s.maxUnsentSum = cmp.Or(opts.MaxUnsentSum, DefaultMaxUnsentSum)
	s.refusals = logsampler.New(func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }, s.sumUp)
	s.done, s.stop = context.WithCancel(context.Background())
	a := &acceptor{Server: s, listener: l, accept: opts.Accept, pass: opts.Pass, secure: opts.Secure != nil, done: s.done}
	s.wg.Go(a.run)
	return s
}

// AlsoAccept serves plain connections from l, too, on the same loops and engine: from those
// workers of this machine that Options.Accept lets in, at a server whose own listener takes
// TLS. It serves until stop is called, which closes l and may be called again, or until Close;
// both wait until nothing is accepted any more. Accepted connections stay open.
func (s *Server) AlsoAccept(l net.Listener, accept Accept) (stop func()) {
	done, cancel := context.WithCancel(s.done)
	a := &acceptor{Server: s, listener: l, accept: accept, done: done}
	ended := make(chan struct{})
	stop = func() {
		cancel()
		l.Close()
		<-ended
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		cancel()
		l.Close()
		close(ended)
		return stop
	}
	release := context.AfterFunc(done, func() { l.Close() }) // when done has ended: by that a.run knows who closes l
	s.wg.Go(func() {
		defer close(ended)
		defer release()
		a.run()
	})
	return stop
}

// Addr returns the address the server listens on.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Stats returns the server's numbers.
func (s *Server) Stats() Stats {
	stats := snapshot(s.allCounters())
	h := s.current()
	h.mu.Lock()
	defer h.mu.Unlock()
	stats.Keys, stats.Bytes, stats.Waiters = h.engine.NumKeys(), h.engine.Bytes(), h.engine.NumWaiters()
	return stats
}

// SwapEngine makes e the engine of all connections accepted from now on; it
// belongs to the server. The connections there are keep the engine they have,
// with its keys and waits, until they end. A connection which the kernel has
// established but the server has not accepted yet gets e.
func (s *Server) SwapEngine(e *store.Engine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shard = &engineShard{engine: e, name: s.shard.name}
}

// BeginRound is SwapEngine, and gives the new engine the name of the round that connections
// which speak TLS have to be for. A nil e is the present engine, which keeps its connections
// and gets the name.
func (s *Server) BeginRound(e *store.Engine, name secret.StoreName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e != nil {
		s.shard = &engineShard{engine: e}
	}
	s.shard.name = name
}

// Close stops listening, closes all connections and waits until nothing of the
// server runs any more. Requests that have not been answered by then are lost.
// Closing again does nothing but wait too.
func (s *Server) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.stop()
	loops := s.loops
	s.mu.Unlock()
	if !first {
		s.wg.Wait()
		return nil
	}
	err := s.listener.Close()
	for _, l := range loops {
		l.events.Put(func(in *inbox) { in.stop = true })
	}
	s.wg.Wait()
	closeLoops(loops)
	s.refusals.Close()
	return err
}

// sumUp logs refusals that were not logged one by one.
func (s *Server) sumUp(sum logsampler.Summary) {
	s.log.Warn("tcpstore: more connections were closed for the same reason",
		"reason", sum.Reason, "count", sum.Count, "last", sum.Last, "listen", s.Addr().String())
}

func (s *Server) current() *engineShard {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shard
}

func (s *Server) allCounters() []*counters {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []*counters{&s.counters}
	for _, l := range s.loops {
		all = append(all, &l.counters)
	}
	return all
}
