package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/peer"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/core/store"
	"rallypoint/core/succession"
	"rallypoint/internal/backoff"
)

// Config says for which node a finder searches.
type Config struct {
	Params   params.Params
	Node     string          // its id
	Observer member.Observer // is told for what the search waits, and when the control plane is out of reach
	Log      *slog.Logger
	Start    StartHost // starts a control plane in this process; nil: never

	// Hello returns the node's present hello, to which the finder adds its knowledge of the
	// servers.
	Hello func() wire.Hello
}

// seeker is what the finders that search in a network have in common: the node for which they search, how it says
// hello, and the connection that it follows.
type seeker struct {
	Config
	source  source
	network network

	life    context.Context // of the helpers; ends with Close
	cancel  context.CancelFunc
	helpers sync.WaitGroup

	servers    *peer.Check      // whose control plane is believed; nil: every user's
	token      *secret.Token    // nil: none; set by openToken
	pause      *backoff.Backoff // between attempts, of the goroutine that searches
	listening  []netip.AddrPort // of the server in this process, of that goroutine, too
	unanswered atomic.Int32     // hellos in a row that a server did not answer, since the last welcome

	mu      sync.Mutex // of what else the finder shares, too
	hosting Host       // nil: this process does not host
	current *Conn      // the last connection that was found; nil: a search is under way
	left    error      // why current was ended here; nil: it was not
	leaving bool       // this node goes, and its control plane with it
}

// source is what differs between them: how the servers of a run are known.
type source interface {
	// introduce adds to a hello what this process knows of the servers.
	introduce(h *wire.Hello)
	// wrong says why this node does not follow a server that has welcomed it; nil: it does.
	wrong(l *Conn, dialled netip.AddrPort) error
	// followed notes which server this node follows.
	followed(l *Conn)
}

// begin makes a seeker. guarded has it believe only this user's processes in a job without a token.
func (s *seeker) begin(cfg Config, from source, guarded bool) {
	s.Config, s.source, s.network = cfg, from, systemNetwork()
	if p := &s.Params; guarded && p.TokenFile == "" && p.OneMachine() {
		s.servers = peer.NewCheck(p, &net.TCPAddr{})
	}
	s.pause = newBackoff(s.Params.Max)
	s.life, s.cancel = context.WithCancel(context.Background())
}

func (s *seeker) openToken() (err error) {
	if s.Params.TokenFile != "" && s.token == nil {
		s.token, err = secret.OpenToken(s.Params.TokenFile, s.Log)
	}
	return err
}

// Hosting reports whether the control plane runs in this process.
func (s *seeker) Hosting() bool { return s.host() != nil }

func (s *seeker) host() Host {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hosting
}

// follows notes which server this node is connected to.
func (s *seeker) follows(l *Conn) {
	s.mu.Lock()
	s.current = l
	s.mu.Unlock()
	s.source.followed(l)
}

// lost begins a search after cause has ended a connection, and returns why that was so. It reports false if this
// node leaves, and searches no more, or if l's second connection takes its place.
func (s *seeker) lost(l *Conn, cause error) (second *Conn, why error, searches bool) {
	s.mu.Lock()
	searches = !s.leaving
	stays := searches && s.current == l && s.left == nil
	if s.left != nil {
		cause = s.left
	}
	if s.current, s.left = nil, nil; stays {
		s.current = l.Second
	}
	s.mu.Unlock()
	switch {
	case l.Second == nil:
		return nil, cause, searches
	case !stays: // this node was told of another host meanwhile
		_ = l.Second.Close()
		return nil, cause, searches
	}
	s.source.followed(l.Second)
	s.Log.Warn(fmt.Sprintf("the connection to the control plane at %s was silent for half a lease, and a second one was answered: the network has forgotten the first, or the server was stopped for a while", l.Addr))
	return l.Second, nil, false
}

// reconnect tries until an attempt finds the control plane again. The observer hears of the loss at once, or, if it was
// told the cause or the server has sent this node on, only if the first attempt fails. The error is a refusal, or that
// of ctx; an authentication that fails is tried on, since this node was let in before. wait waits for the next
// attempt, and reports false once ctx has ended.
func (s *seeker) reconnect(ctx context.Context, cause error, told bool, attempt func(context.Context) (*Conn, error), wait func(context.Context) bool) (*Conn, error) {
	report := func(err error) {
		s.Observer.ConnectionChanged(rendezvous.Errorf(rendezvous.CodeConnection, "run %q: %v", s.Params.RunID, err))
	}
	reported, denied := !told, false
	if reported {
		report(cause)
	}
	for {
		l, err := attempt(ctx)
		if err == nil {
			if reported {
				s.Observer.ConnectionChanged(nil)
			}
			return l, nil
		}
		refusal, ok := errors.AsType[*rendezvous.Error](err)
		switch {
		case ok && refusal.Code != rendezvous.CodeAuth:
			return nil, refusal
		case ok && !denied: // the token is being changed, perhaps
			denied = true
			s.Log.Warn(refusal.Text + "; trying on")
		}
		if !reported && ctx.Err() == nil {
			reported = true
			report(err)
		}
		if !wait(ctx) {
			return nil, ctx.Err()
		}
	}
}

// leave ends a connection, if it is the current one. Again gets the reason.
func (s *seeker) leave(l *Conn, why error) {
	s.mu.Lock()
	current := l != nil && s.current == l && s.left == nil
	if current {
		s.left = why
	}
	s.mu.Unlock()
	if current {
		l.Close()
	}
}

// noStandbys is what a client.Finder says where no node stands by for the leader, which asks its nodes nothing, and
// nobody votes.
type noStandbys struct{}

func (noStandbys) Answer(*Conn, wire.Frame) wire.Frame            { return nil }
func (noStandbys) HasVoters() bool                                { return false }
func (noStandbys) LookElsewhere(*Conn)                            {}
func (noStandbys) Hint(p rendezvous.Progress) rendezvous.Progress { return p }

// besideParts is the part of a lease over which the nodes of a job spread their second connections to
// a server that is silent to all of them.
const besideParts = 12

// errNotBeside is why no second connection was opened, and ErrUnanswered why one was given up.
var (
	errNotBeside  = errors.New("there is no need of a second connection")
	ErrUnanswered = errors.New("the hello on a second connection was not answered in time")
)

// Beside implements client.Finder: it says hello on a second connection to the server of l, which is silent: the
// network may have forgotten the first connection. It asks silent before each step that costs the server
// something. Once the server has the hello it serves the second connection and ends the first.
func (s *seeker) Beside(ctx context.Context, l *Conn, silent func() bool) (*Conn, error) {
	if s.Hosting() || !l.Addr.IsValid() || !s.network.sleep(ctx, backoff.Below(time.Duration(l.Welcome.Lease)/besideParts)) || !silent() {
		return nil, errNotBeside
	}
	dialCtx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := s.network.dial(dialCtx, l.Addr)
	if err != nil {
		return nil, err
	}
	if !silent() {
		_ = conn.Close()
		return nil, errNotBeside
	}
	next, unanswered, err := s.helloOn(ctx, conn, l.Addr, l.unanswered)
	if unanswered {
		l.unanswered++
		err = ErrUnanswered
	}
	return next, err
}

// openConn says hello on a new connection. A refusal is a *rendezvous.Error; the
// connection is closed on any error.
func (s *seeker) openConn(ctx context.Context, raw net.Conn) (*Conn, error) {
	h := s.Hello()
	s.source.introduce(&h)
	return openConn(ctx, raw, h, s.token, s.believe)
}

// believe checks which user's process has answered. A job on one machine without a token is safe
// from other users only if it neither serves them nor follows a server of theirs that was the
// first to listen.
func (s *seeker) believe(conn net.Conn) error {
	if err := s.servers.AdmitServer(conn); err != nil {
		return fmt.Errorf("what answers at %s may be another user's: %w; is_host=0 is for a control plane that users share, a token for all else",
			conn.RemoteAddr(), err)
	}
	return nil
}

// greet is wire.Greet on a new connection to another process of the run.
func (s *seeker) greet(ctx context.Context, raw net.Conn, first wire.Frame) (*wire.Call, error) {
	c, err := wire.Greet(ctx, raw, s.token, s.Params.LeaseTimeout, first)
	if err == nil {
		if err = s.believe(c.Conn); err != nil {
			c.Close()
		}
	}
	return c, err
}

// sayHello says hello to the server at one of its addresses, and follows it unless it is the wrong one.
func (s *seeker) sayHello(ctx context.Context, to ...netip.AddrPort) (*Conn, error) {
	conn, err := s.network.dialAny(ctx, to)
	if err != nil {
		return nil, err
	}
	l, silent, err := s.helloOn(ctx, conn, to[0], int(s.unanswered.Load()))
	switch {
	case silent:
		s.unanswered.Add(1)
	case l != nil:
		s.unanswered.Store(0)
	}
	return l, err
}

// firstAnswer is about how long a server that is found again may take to answer a hello, in
// addition to the time for all nodes of the job. It doubles with each unanswered hello, up to
// handshakeTimeout.
const firstAnswer = 2 * time.Second

// helloOn is sayHello on a new connection, which it closes on any error, after so many hellos in a
// row without an answer. silent tells that this one had none either.
func (s *seeker) helloOn(ctx context.Context, conn net.Conn, addr netip.AddrPort, unanswered int) (l *Conn, silent bool, err error) {
	// A kernel whose queue of new connections is full drops them, including those that are open
	// for this side, whose retries coincide with those of all other nodes. A new connection after
	// a random time is accepted sooner.
	patience := backoff.Jitter((firstAnswer + min(crowdTime(s.Params.Max), handshakeTimeout)) << min(unanswered, 8))
	helloCtx, cancel := context.WithTimeout(ctx, min(patience, handshakeTimeout))
	defer cancel()
	if l, err = s.openConn(helloCtx, conn); err != nil {
		return nil, helloCtx.Err() != nil && ctx.Err() == nil, err
	}
	if err = s.source.wrong(l, addr); err != nil {
		l.Close()
		return nil, false, err
	}
	return l, false, nil
}

// errAnotherJob is why the process at a leader's address is not followed.
var errAnotherJob = errors.New("what answers there is the control plane of another job with this run id")

// dialOf says what the end of a dial, or of a hello, tells about the process at the address.
func dialOf(err error) succession.Dial {
	switch {
	case err == nil, isRefusal(err), errors.As(err, new(*wire.Redirected)), errors.Is(err, errAnotherJob):
		return succession.DialAnswered
	case errors.Is(err, syscall.ECONNREFUSED):
		return succession.DialRefused
	case store.EndedByPeer(err):
		return succession.DialBroken
	}
	return succession.DialSilent
}

func isRefusal(err error) bool {
	return errors.As(err, new(*rendezvous.Error))
}

func isAuth(err error) bool {
	return rendezvous.CodeOf(err) == rendezvous.CodeAuth
}

// progress tells the observer for what a search waits, at the intervals of a server's progress.
type progress struct {
	observer member.Observer
	headline string
	start    time.Time
	last     time.Time
	told     rendezvous.Progress
}

func (p *progress) tell(err error) {
	now, text := time.Now(), rendezvous.Progress{Headline: p.headline, Detail: err.Error()}
	if now.Sub(p.start) < wire.ProgressFirst || now.Sub(p.last) < wire.ProgressEvery || text == p.told {
		return
	}
	p.last, p.told = now, text
	p.observer.Progressed(text)
}
