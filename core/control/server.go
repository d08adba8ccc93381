package control

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"rallypoint/core/control/journal"
	"rallypoint/core/control/standby"
	"rallypoint/core/election"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/core/trace"
	"rallypoint/internal/httpport"
	"rallypoint/internal/logsampler"
	"rallypoint/internal/promtext"
	"rallypoint/internal/wake"
)

// Config configures a Server. The zero value serves any run.
type Config struct {
	// RunID is the one run that an embedded server takes; the hello of another is
	// refused. Empty for a server of many runs.
	RunID string
	// Node, if set, is the node that hosts the server. Its loopback listeners take
	// connections of the users of LoopbackUsers only (core/peer).
	Node *params.Params
	// Fixed tells that nodes of an earlier control plane may come back to this
	// address, so that a fresh run has to wait for them (docs/decisions/0014). False for
	// a port that the system chose.
	Fixed bool
	// Token, if set, is the token that nodes and administrators must know. HTTP then answers only
	// peers on this machine, except for /healthz and, with MetricsOpen, /metrics.
	Token       *secret.Token
	MetricsOpen bool
	// HTTPNames are further names of this server, beside the machine's own, that browsers may use
	// (internal/httpport).
	HTTPNames []string
	// Clock defaults to RealClock.
	Clock Clock
	// Quota bounds each run, and all together; a zero field is the default.
	Quota Quota
	// ForgetAfter is how long a run without nodes is remembered, with its round
	// number; 0: DefaultForgetAfter.
	ForgetAfter time.Duration
	// Data, if set, stores the runs: acknowledged events survive any end of the process. It
	// belongs to the caller, who closes it after the server.
	Data *Data
	// TakeStore, if set, gets the connections of TCPStore clients, and those of secret.DialStore
	// with the bytes of their TLS hello that were already read. It has to close them. It returns
	// when it has handed the connection on, or stop is closed. Several goroutines call it.
	TakeStore func(conn net.Conn, said []byte, stop <-chan struct{})
	// Log gets one line for each change of a run, and lines about connections that
	// are refused, few however many those are (internal/logsampler). The lines of a
	// server of many runs name the run; with RunID set they do not, for the logger
	// of one run may do so itself. Nil is none.
	Log *slog.Logger
	// Metrics, if set, adds further metrics of this process to /metrics. Several goroutines call
	// it.
	Metrics func(*promtext.Buffer)
	// Text, if set, formats the status as text, for the answer of GET / to programs that do not
	// ask for a page. Several goroutines call it.
	Text func(Status) string
	// Refused, if set, counts the connections that round stores and forwarders in this
	// process have refused, by reason, for the status. It is called by several goroutines.
	Refused func() (stores, forwarders map[string]uint64)
	// Elector, if set, says whether this process leads its runs, and confirms what they tell their
	// nodes. While it does not, the server sends nodes to the leader. Nil: it leads, alone. A Group or
	// Peers are it by themselves.
	Elector election.Elector
	// Ended, if set, is how the one run was closed before this server began.
	Ended *rendezvous.Ended
	// Group, if set, is this process's view of the servers of its run, which succeed each other
	// (docs/decisions/0041). RunID is set, too, unless there are Peers.
	Group *standby.Group
	// Peers, if set, are the servers of many runs that succeed each other, and in Group's place
	// (docs/decisions/0151). There is no Data then: what they know is in the Peers' Replica.
	Peers *standby.Peers
	// Trace, if set, gets how a run begins (its state) and every event with its
	// effects once they were executed, in the order of the run and under its
	// lock: it must return quickly and not call the server. Seconds is not set.
	Trace func(trace.Record)
	// AwaitTrace, if set, waits until Trace can take much more. It is called before each run that
	// is restored, when nothing is served yet.
	AwaitTrace func()
	// HostNode is the id of the node in whose process the server runs: no other one is in the
	// host, and a Trace names it.
	HostNode string

	maxUnidentified      int64 // see accept.go; 0: by the descriptors
	maxUnidentifiedBytes int64 // see accept.go; 0: by the quota
}

// Limits of a server.
const (
	// helloTimeout is how long a connection may take to identify itself.
	helloTimeout = 10 * time.Second
	// sweepEvery is how often runs to be forgotten are looked for, at least.
	sweepEvery = 10 * time.Second
	// maxRuns bounds the runs that a server remembers.
	maxRuns = 1 << 16
)

// DefaultForgetAfter is how long a run without nodes is remembered.
const DefaultForgetAfter = time.Hour

// Server hosts the control plane of one run or many. Its methods are safe for
// concurrent use.
type Server struct {
	cfg     Config
	clock   Clock
	log     *slog.Logger
	id      string // drawn at random
	host    string // name of this machine; "" if it has none
	process string // "host h, pid 1", for users on other machines
	started time.Time
	addr    net.Addr

	mu        sync.Mutex
	closed    bool
	listeners []net.Listener
	runs      map[string]*run
	runSeq    uint64
	reign     uint64             // in which this one of several servers leads, or has led; 0: no other can
	runsOf    map[netip.Addr]int // how many of them were begun by nodes of an address
	conns     map[*serverConn]struct{}
	sweeper   Stopper

	strangers  unidentified // connections that have not said who they are
	kept       atomic.Int64 // bytes that the runs keep; see run.account
	unsent     atomic.Int64 // bytes that wait to be sent
	arriving   atomic.Int64 // bytes of long frames that have not come whole
	awaited    atomic.Int64 // nodes that the next rounds of all runs may have
	short      atomic.Bool  // it has warned that their connections will not fit
	runCount   atomic.Int64 // runs that are not gone
	handshakes *handshakes  // nil: there is no token

	commits  *groupCommit // nil: nothing is stored
	metrics  metrics
	refusals *logsampler.Sampler
	handover transfer
	sending  sync.Mutex  // held while all nodes are sent on, or a reign begins
	left     wake.Signal // a node's connection has ended, for WaitIdle

	gate    shutdownGate
	http    *httpport.Port
	asking  context.Context // of requests of HTTP; ends with Close
	endHTTP context.CancelFunc
	stop    chan struct{}
	wg      sync.WaitGroup
}

// Start serves the listeners, which belong to the server from now on. It returns
// at once; Close ends it.
func Start(cfg Config, listeners ...net.Listener) *Server {
	cfg.Clock = cmp.Or[Clock](cfg.Clock, RealClock{})
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	cfg.maxUnidentified = cmp.Or(cfg.maxUnidentified, maxUnidentified())
	cfg.ForgetAfter = cmp.Or(cfg.ForgetAfter, DefaultForgetAfter)
	cfg.Quota = cfg.Quota.withDefaults()
	cfg.maxUnidentifiedBytes = cmp.Or(cfg.maxUnidentifiedBytes, max(cfg.Quota.TotalBytes/unidentifiedShare, leastUnidentified))
	switch {
	case cfg.Peers != nil:
		cfg.Group, cfg.Elector = cfg.Peers.Group, cfg.Peers
	case cfg.Group != nil:
		cfg.Elector = cfg.Group
	}
	hostname, _ := os.Hostname()
	if cfg.Node != nil {
		hostname = cmp.Or(cfg.Node.HostName, hostname)
	}
	s := &Server{
		cfg: cfg, clock: cfg.Clock, log: cfg.Log,
		id: rand.Text(), host: hostname, process: fmt.Sprintf("host %s, pid %d", cmp.Or(hostname, "unknown"), os.Getpid()), started: cfg.Clock.Now(),
		listeners: slices.Clone(listeners),
		runs:      map[string]*run{},
		runsOf:    map[netip.Addr]int{},
		conns:     map[*serverConn]struct{}{},
		left:      wake.New(),
		stop:      make(chan struct{}),
	}
	s.http = httpport.New(newPages(s), maxHTTPConns, s.log)
	s.asking, s.endHTTP = context.WithCancel(context.Background())
	if cfg.Token != nil {
		s.handshakes = newHandshakes()
	}
	s.refusals = logsampler.New(func(d time.Duration, f func()) func() bool { return s.clock.AfterFunc(d, f).Stop }, s.logSummary)
	if cfg.Data != nil {
		s.commits = newGroupCommit(s, func(_ context.Context, _ uint64, changes []journal.WriteBatch) error {
			return cfg.Data.write(changes)
		})
		if runs := cfg.Data.runs; len(runs) > 0 {
			s.log.Info("restored what was stored", "runs", len(runs), "file", cfg.Data.Path())
			s.restoreLocked(runs, false)
			cfg.Data.runs = nil
		}
		s.commits.start()
	}
	if cfg.Peers != nil {
		s.commits = newGroupCommit(s, func(ctx context.Context, reign uint64, changes []journal.WriteBatch) error {
			return cfg.Peers.Commit(ctx, reign, journal.Entries(changes))
		})
		s.commits.start()
	}
	s.mu.Lock()
	s.sweepLaterLocked()
	s.mu.Unlock()
	for _, l := range listeners {
		s.addr = cmp.Or(s.addr, l.Addr())
		s.wg.Go(func() { s.accept(l) })
	}
	return s
}

// Listen serves one more listener, which belongs to the server from now on.
func (s *Server) Listen(l net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		l.Close()
		return
	}
	s.listeners = append(s.listeners, l)
	s.wg.Go(func() { s.accept(l) })
}

// Addr returns the address of the first listener of Start.
func (s *Server) Addr() net.Addr { return s.addr }

// Close ends all connections, after writing their queued frames for at most a second, and returns
// when every goroutine has ended. Another call only waits.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		s.wg.Wait()
		return nil
	}
	s.closed = true
	close(s.stop)
	s.sweeper.Stop()
	runs := slices.Collect(maps.Values(s.runs))
	peers := slices.Collect(maps.Keys(s.conns))
	listeners := s.listeners
	s.mu.Unlock()

	for _, l := range listeners {
		l.Close()
	}
	for _, r := range runs {
		r.close()
	}
	s.endHTTP()
	for _, p := range peers {
		p.end()
	}
	if s.commits != nil {
		s.commits.close()
	}
	s.gate.close()
	s.wg.Wait()
	s.refusals.Close()
	return nil
}

// WaitIdle returns nil once no node is connected except those with the given sessions, or the
// error of ctx. It is called once at a time.
func (s *Server) WaitIdle(ctx context.Context, except ...rendezvous.SessionID) error {
	for !s.idle(except) {
		select {
		case <-s.left:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (s *Server) idle(except []rendezvous.SessionID) bool {
	others := 0
	for _, r := range s.allRuns() {
		r.mu.Lock()
		others += len(r.conns)
		for _, session := range except {
			if r.conns[session] != nil {
				others--
			}
		}
		r.mu.Unlock()
	}
	return others == 0
}

func (s *Server) allRuns() []*run {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.runs))
}

// runFor returns the run that a hello from an address asks for, made if need be; nil if the
// server is closed.
func (s *Server) runFor(id string, from netip.Addr) (*run, *rendezvous.Error) {
	if id == "" {
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "the run id is empty; give one with --rdzv-id")
	}
	if s.cfg.RunID != "" && s.cfg.RunID != id {
		return nil, rendezvous.Errorf(rendezvous.CodeTenant,
			"the control plane at %s (%s) serves run %q and cannot take run %q: give each run its own port, or start one `rallypoint serve` for all",
			s.Addr(), s.process, s.cfg.RunID, id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil
	}
	if e := s.cfg.Elector; e != nil && !e.Hosting() {
		return nil, nil
	}
	if r := s.runs[id]; r != nil {
		return r, nil
	}
	if len(s.runs) >= maxRuns {
		return nil, rendezvous.Errorf(rendezvous.CodeTooLarge, "the control plane at %s remembers %d runs already, which is the most; those without nodes are forgotten after %v (--forget-after)",
			s.Addr(), len(s.runs), s.cfg.ForgetAfter)
	}
	from = countedAs(from)
	if n := s.runsOf[from]; n >= s.cfg.Quota.RunsPerAddress {
		return nil, rendezvous.Errorf(rendezvous.CodeTooLarge, "run %q cannot begin: nodes at %v have begun %d runs that the control plane at %s remembers, which is the most for one address; "+
			"end jobs there, wait until those without nodes are forgotten (after %v: --forget-after), or start `rallypoint serve` with a higher --max-runs-per-address",
			id, from, n, s.Addr(), s.cfg.ForgetAfter)
	}
	s.runSeq++
	r := newRun(s, id, s.runSeq)
	r.begun = from
	r.traceBegin()
	if s.cfg.Ended != nil {
		r.endedBefore(*s.cfg.Ended)
	}
	s.runs[id] = r
	s.runsOf[from]++
	return r, nil
}

// countedAs is the address to which a run is counted: the owner of an IPv6 address mostly has all
// of its /64.
func countedAs(a netip.Addr) netip.Addr {
	if a = a.Unmap().WithZone(""); a.Is6() {
		p, _ := a.Prefix(64)
		return p.Addr()
	}
	return a
}

// removeLocked takes a retired run out of those that are remembered.
func (s *Server) removeLocked(r *run) {
	delete(s.runs, r.id)
	if s.runsOf[r.begun]--; s.runsOf[r.begun] <= 0 {
		delete(s.runsOf, r.begun)
	}
	if s.commits != nil {
		s.commits.add(&pendingEvent{run: r, forget: true})
	}
}

// sweepLaterLocked arranges for idle runs to be forgotten.
func (s *Server) sweepLaterLocked() {
	s.sweeper = s.clock.AfterFunc(min(sweepEvery, s.cfg.ForgetAfter), func() {
		if !s.gate.enter() {
			return
		}
		defer s.gate.leave()
		for _, r := range s.sweep() {
			r.log.Info("forgot a run that has been idle")
		}
	})
}

// sweep forgets idle runs and returns them.
func (s *Server) sweep() (forgotten []*run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	for _, r := range s.runs {
		if r.forgettable() {
			s.removeLocked(r)
			forgotten = append(forgotten, r)
		}
	}
	s.sweepLaterLocked()
	return forgotten
}

// discard removes a run whose first hello was refused.
func (s *Server) discard(r *run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runs[r.id] == r && r.retireUnused() {
		s.removeLocked(r)
	}
}

// running is how long the server has run.
func (s *Server) running() time.Duration { return s.clock.Now().Sub(s.started) }

// uptime implements rendezvous.Config.Uptime.
func (s *Server) uptime() time.Duration {
	switch e := s.cfg.Elector; {
	case !s.cfg.Fixed || s.cfg.Data != nil && !s.cfg.Data.Fresh():
		return -1
	case e != nil:
		_, since, _ := e.Began()
		return time.Since(since)
	}
	return s.running()
}
