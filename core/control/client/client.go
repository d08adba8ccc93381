package client

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	rallypoint "rallypoint"
	"rallypoint/core/control/discovery"
	"rallypoint/core/control/wire"
	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/training"
	"rallypoint/internal/host"
)

var errClientClosed = rendezvous.Errorf(rendezvous.CodeCanceled, "the connection to the control plane was closed by this process")

// Client is a node's way to a hosted control plane: a member.ControlPlane. Connect
// finds the control plane or starts to host it; from then on one goroutine keeps
// the connection, reconnects when it breaks, and calls the Observer. The loss and
// the recovery of the control plane are the Observer's to log.
type Client struct {
	params params.Params
	obs    member.Observer
	finder Finder

	session     rendezvous.SessionID
	node        string
	incarnation uint64
	label       string

	life   context.Context // ends with Close
	cancel context.CancelFunc

	connecting sync.Mutex    // held by Connect, and by Close to wait for it
	looping    chan struct{} // closed when loop has ended; nil: it has not begun

	mu       sync.Mutex
	conn     *conn // nil: not connected
	calls    member.Calls
	last     rendezvous.LastRound
	facts    rendezvous.Facts // what the control plane told last
	seen     string
	byNode   bool                    // the control plane is in the process of a node of this run
	final    *rendezvous.Error       // nothing is answered any more
	training func() *training.Report // of CarryTraining; nil: none
	command  rendezvous.Command
}

var _ member.ControlPlane = (*Client)(nil)

// Finder finds the control plane of a node's run, or has this process host it. Find comes first, then
// Again after each connection that has ended; these and Answer are called by one goroutine at a time.
type Finder interface {
	// Find finds the control plane or starts to host it. Refusals are *rendezvous.Errors. If ctx ends
	// first, the error says what was tried, and Find may be called again.
	Find(ctx context.Context) (*discovery.Conn, error)
	// Again finds it after cause has ended a connection, by that one's Second, if there is one. told means that
	// the control plane has said why, so that its loss is no news for the observer. The error is a refusal, or
	// tells that the search has ended with ctx or for Leave.
	Again(ctx context.Context, l *discovery.Conn, cause error, told bool) (*discovery.Conn, error)
	// Answer returns the reply to a frame of the leader about those that may succeed it, or to its echo
	// of a heartbeat; nil if there is none.
	Answer(l *discovery.Conn, said wire.Frame) wire.Frame
	// Hosting reports whether the control plane runs in this process.
	Hosting() bool
	// HasVoters reports whether others may elect a leader in the place of one that is silent, and
	// LookElsewhere looks for it. It does not block.
	HasVoters() bool
	LookElsewhere(l *discovery.Conn)
	// Beside says hello on a second connection to the server of l, which is silent, as long as silent
	// says so.
	Beside(ctx context.Context, l *discovery.Conn, silent func() bool) (*discovery.Conn, error)
	// Hint adds a peculiarity of the place to what a node waits for.
	Hint(p rendezvous.Progress) rendezvous.Progress
	// Leave gives a control plane in this process to another one, or waits until no other node is
	// connected to it, at most until ctx ends.
	Leave(ctx context.Context)
	// Close ends all that the finder has started. The search must have ended.
	Close()
}

// New makes a client that is not connected yet. One goroutine at a time, Connect's or the client's own, calls the Observer's methods, which must not block and
// must not call Close. A nil log discards. The client calls start to start a control plane in
// this process. If that is nil, it never does, whatever Params.IsHost says.
func New(p params.Params, obs member.Observer, log *slog.Logger, start discovery.StartHost) *Client {
	return NewWith(p, obs, log, func(cfg discovery.Config) Finder {
		cfg.Start = start
		return discovery.New(cfg)
	})
}

// NewWith is New for a node whose control plane another finder finds, which find makes.
func NewWith(p params.Params, obs member.Observer, log *slog.Logger, find func(discovery.Config) Finder) *Client {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	c := &Client{params: p, obs: obs, session: rendezvous.SessionID(rand.Text()), label: host.Process(host.NameOf(p.HostName))}
	c.node, c.incarnation = p.Identity()
	c.finder = find(discovery.Config{Params: p, Node: c.node, Observer: obs, Log: log, Hello: c.hello})
	c.life, c.cancel = context.WithCancel(context.Background())
	return c
}

// Connect implements member.ControlPlane. It returns refusals (ErrInvalid, ErrMismatch,
// ErrTenant, ErrNodeInUse, ErrAuth, ErrState for an incompatible release) at once. If ctx ends
// first, the error is ErrConnection after its deadline, else ErrCanceled. It says what was tried,
// and Connect may be called again. After a success another call does nothing.
func (c *Client) Connect(ctx context.Context) error {
	c.connecting.Lock()
	defer c.connecting.Unlock()
	if c.life.Err() != nil {
		return errClientClosed
	}
	if c.looping != nil {
		return nil
	}
	if err := c.params.Validate(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(c.life, cancel)
	defer stop()
	found, err := c.finder.Find(ctx)
	if err != nil {
		return err
	}
	l := c.adopt(found)
	c.obs.Updated(l.Welcome.Notice)
	c.looping = make(chan struct{})
	go func() {
		defer close(c.looping)
		c.loop(l)
	}()
	return nil
}

// Start is member.ControlPlane's. Calls before Connect are kept for it; after Close
// or a refusal they fail at once.
func (c *Client) Start(ev rendezvous.Event) *member.Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.calls.Add(ev)
	f, ok := wire.NewRequest(ev, 0, 0)
	err := c.final
	if err == nil && !ok {
		err = rendezvous.Errorf(rendezvous.CodeInternal, "a %T is no request", ev)
	}
	if err == nil {
		err = f.CheckSize()
	}
	if err != nil {
		c.calls.Take(p.Call.Number)
		p.Call.Finish(nil, err)
		return p.Call
	}
	if c.conn != nil {
		c.conn.out.Send(c.frameLocked(p))
	}
	return p.Call
}

// frameLocked is the pending request as it is sent now.
func (c *Client) frameLocked(p *member.PendingCall) wire.Request {
	f, _ := wire.NewRequest(p.Event, p.Call.Number, c.calls.Acked())
	return f
}

func (c *Client) SetLastRound(last rendezvous.LastRound) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = last
}

func (c *Client) SetCommand(command rendezvous.Command) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.command = command
}

func (c *Client) CarryTraining(report func() *training.Report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.training = report
	if c.conn != nil {
		c.conn.carryTraining(report)
	}
}

func (c *Client) SeenAddr() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen
}

func (c *Client) Hosting() bool { return c.finder.Hosting() }

func (c *Client) HostedByNode() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.byNode
}

// Node returns this node's id, drawn at random if Params has none.
func (c *Client) Node() string { return c.node }

// Session returns the id of this client's session, drawn at random.
func (c *Client) Session() rendezvous.SessionID { return c.session }

// Close is member.ControlPlane's. It returns nil, after ctx has ended at the latest
// within a second.
func (c *Client) Close(ctx context.Context) error {
	c.finder.Leave(ctx)
	c.fail(errClientClosed)
	c.mu.Lock()
	l := c.conn
	c.mu.Unlock()
	if l != nil {
		l.sayGoodbye(ctx)
	}
	c.cancel()
	c.connecting.Lock()
	defer c.connecting.Unlock()
	if c.looping != nil {
		<-c.looping
	}
	c.finder.Close()
	return nil
}

// fail ends all calls, now and later; the first reason is kept.
func (c *Client) fail(err *rendezvous.Error) {
	c.mu.Lock()
	if c.final == nil {
		c.final = err
	}
	pending := c.calls.Clear()
	c.mu.Unlock()
	for _, p := range pending {
		p.Call.Finish(nil, c.final)
	}
}

// hello returns this node's present hello.
func (c *Client) hello() wire.Hello {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.last
	last.Facts = c.facts
	return wire.Hello{
		Version: wire.ProtocolVersion, Features: []string{wire.FeatureEcho}, Software: rallypoint.Version(),
		RunID: c.params.RunID, Session: c.session, Node: c.node, Named: c.params.NodeID != "",
		Incarnation: c.incarnation, Label: c.label, HostName: c.params.Machine(), Topology: c.params.Topology, Command: c.command, Policy: c.params.Policy, LastRound: last,
		BeginAgain: c.params.BeginAgain,
	}
}

// adopt makes a connection the current one and repeats the requests that have no answer yet.
func (c *Client) adopt(found *discovery.Conn) *conn {
	l := newConn(c.life, found, c.finder)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn, c.seen, c.byNode = l, l.Welcome.SeenAddr, l.Welcome.Embedded
	c.facts = l.Welcome.Notice.Facts
	l.carryTraining(c.training)
	for _, p := range c.calls.Pending() {
		l.out.Send(c.frameLocked(p))
	}
	return l
}

// loop keeps the connection until Close or a refusal.
func (c *Client) loop(l *conn) {
	for {
		dropped, err := c.read(l)
		c.mu.Lock()
		c.conn = nil
		c.mu.Unlock()
		err = l.brokenBy(err)
		l.Second = l.replacement(err)
		l.WasSilent = l.wasSilent()
		l.close()
		if c.ended() {
			if l.Second != nil {
				l.Second.Close()
			}
			return
		}
		found, err := c.finder.Again(c.life, l.Conn, err, dropped)
		if err != nil {
			c.giveUp(err)
			return
		}
		last := l
		l = c.adopt(found)
		c.resumed(l.Welcome, last, dropped)
	}
}

// ended reports whether no request will be answered any more.
func (c *Client) ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.final != nil
}

// resumed tells the observer what the welcome of a reconnect means.
func (c *Client) resumed(w wire.Welcome, before *conn, dropped bool) {
	c.mu.Lock()
	round := c.last.Round
	c.mu.Unlock()
	last := before.Welcome
	succeeded := w.Group != "" && w.Group == last.Group && w.Term > last.Term // it knows the round from those who come
	same := w.Server == last.Server && w.Group == last.Group                  // and not one that has forgotten its runs and leads again
	lost := !succeeded && (same || w.Notice.Waiting > 0)
	if !w.Resumed && round > 0 && lost && !dropped {
		reason := cmp.Or(w.Notice.Reason, "it was away for too long")
		c.obs.Dropped(before.explain(rendezvous.Errorf(rendezvous.CodeEvicted, "run %q: node %s is not in round %d any more: %s",
			c.params.RunID, c.node, round, reason)))
	}
	c.obs.Updated(w.Notice)
}

// giveUp ends a client that cannot come back.
func (c *Client) giveUp(err error) {
	var refusal *rendezvous.Error
	if c.life.Err() != nil || !errors.As(err, &refusal) {
		return
	}
	c.fail(refusal)
	c.obs.Dropped(refusal)
}

// read serves one connection until it breaks; dropped tells that the control
// plane has said why.
func (c *Client) read(l *conn) (dropped bool, err error) {
	stop := context.AfterFunc(c.life, func() { l.Close() })
	defer stop()
	for {
		f, err := l.frames.NextFrame(wire.MaxFrame)
		if err != nil {
			return dropped, err
		}
		switch f := f.(type) {
		case wire.Reply:
			c.answered(f)
		case wire.Notice:
			c.mu.Lock()
			c.facts = f.Notice.Facts
			c.mu.Unlock()
			c.obs.Updated(f.Notice)
		case wire.Progress:
			c.obs.Progressed(c.finder.Hint(f.Progress))
		case wire.Drop:
			dropped = true
			if f.Err == nil {
				f.Err = rendezvous.ErrEvicted
			}
			c.obs.Dropped(l.explain(f.Err))
		case wire.Goodbye:
			return dropped, errors.New("the control plane said goodbye")
		case wire.Beat, wire.Standbys, wire.Transfer:
			if answer := c.finder.Answer(l.Conn, f); answer != nil {
				l.out.Send(answer)
			}
		case wire.Redirect:
			return dropped, &wire.Redirected{To: f}
		case wire.Unknown:
		default:
			return dropped, fmt.Errorf("%w: a frame %q from the control plane", wire.ErrMalformed, wire.NameOf(f))
		}
	}
}

func (c *Client) answered(f wire.Reply) {
	c.mu.Lock()
	p := c.calls.Take(f.Number)
	if o, ok := f.Result.(rendezvous.Outcome); ok && p != nil {
		c.last, c.facts = o.LastRound(), o.Facts() // this node may have to say hello before it has returned it
	}
	c.mu.Unlock()
	switch {
	case p == nil: // answered before, on another connection
	case f.Err != nil:
		p.Call.Finish(nil, f.Err)
	default:
		p.Call.Finish(f.Result, nil)
	}
}
