package member_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/training"
)

// world drives a real machine for members in one process, as a hosted control
// plane would. It is used inside a synctest bubble, whose clock is fake.
type cluster struct {
	mute bool // pending calls get no answer; guarded by mu
	t    *testing.T

	mu       sync.Mutex
	m        *rendezvous.Machine
	planes   map[rendezvous.SessionID]*plane
	timers   map[rendezvous.Timer]*time.Timer
	sessions int
	down     error // why the control plane cannot be reached
	embedded bool  // it is in the process of a node
	members  []*member.Member
}

func newCluster(t *testing.T) *cluster {
	w := &cluster{
		t: t, planes: map[rendezvous.SessionID]*plane{}, timers: map[rendezvous.Timer]*time.Timer{},
		m: rendezvous.New(rendezvous.Config{RunID: "job", Generation: "g1", Uptime: -1}),
	}
	return w
}

// runCluster runs f with a fake clock and ends what f left.
func runCluster(t *testing.T, f func(t *testing.T, w *cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newCluster(t)
		defer w.end()
		f(t, w)
	})
}

func (c *cluster) end() {
	for _, m := range c.members {
		if err := m.Close(); err != nil {
			c.t.Errorf("Close: %v", err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, timer := range c.timers {
		timer.Stop()
	}
}

// setDown makes the control plane unreachable, or reachable again (nil).
func (c *cluster) setDown(err error) {
	c.mu.Lock()
	c.down = err
	var cut []*plane
	for _, p := range c.planes {
		cut = append(cut, p)
	}
	c.mu.Unlock()
	if err != nil {
		for _, p := range cut {
			p.cut(err)
		}
	}
}

// applyLocked gives the machine an event and its effects to the planes.
func (c *cluster) applyLocked(ev rendezvous.Event) {
	for _, e := range c.m.Apply(ev) {
		c.carryOut(e)
	}
	if c.mute {
		return
	}
	forming, waiting := c.m.Progress()
	for session, p := range c.planes {
		if candidate, pending := c.m.Forming(session); pending {
			progress := waiting
			if candidate {
				progress = forming
			}
			if p.progress != progress {
				p.progress = progress
				p.deliver(func() { p.observer.Progressed(progress) })
			}
		}
	}
}

func (c *cluster) carryOut(e rendezvous.Effect) {
	switch e := e.(type) {
	case rendezvous.Welcome:
		p := c.planes[e.Session]
		p.deliver(func() { p.observer.Updated(e.Update) })
	case rendezvous.Refuse:
		c.planes[e.Session].refused = e.Err
		delete(c.planes, e.Session)
	case rendezvous.Reply:
		if p := c.planes[e.Session]; p != nil {
			p.answer(e)
		}
	case rendezvous.Notify:
		if p := c.planes[e.Session]; p != nil {
			p.deliver(func() { p.observer.Updated(e.Update) })
		}
	case rendezvous.Drop:
		if p := c.planes[e.Session]; p != nil {
			delete(c.planes, e.Session)
			p.droppedLocked(e.Err)
		}
	case rendezvous.SetTimer:
		timer := e.Timer
		c.timers[timer] = time.AfterFunc(e.After, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			delete(c.timers, timer)
			c.applyLocked(rendezvous.TimerFired{Timer: timer})
		})
	case rendezvous.StopTimer:
		if timer := c.timers[e.Timer]; timer != nil {
			timer.Stop()
			delete(c.timers, e.Timer)
		}
	}
}

// lose takes a node out as if its lease had run out.
func (c *cluster) lose(n *node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.applyLocked(rendezvous.LeaseExpired{Session: n.plane.session})
}

// pending reports whether the control plane holds a join of the node.
func (c *cluster) pending(n *node) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, pending := c.m.Forming(n.plane.session)
	return pending
}

// plane is a Plane to a world. Its goroutine hands over answers and news in the
// order in which the machine made them.
type plane struct {
	w        *cluster
	p        params.Params
	observer member.Observer
	host     bool
	seen     string

	failCalls bool                   // a drop ends the calls there are; else they are sent again
	starts    func(rendezvous.Event) // is told of each request before it is sent; nil: nothing is

	// guarded by w.mu
	session   rendezvous.SessionID
	progress  rendezvous.Progress
	refused   *rendezvous.Error
	number    uint64
	calls     map[uint64]*request
	claims    []rendezvous.LastRound
	connects  int
	connected bool
	broken    bool
	closed    bool
	closeCtx  error // of the context given to Close

	queue   chan func()
	closing chan struct{}
	held    chan struct{} // closed unless news are held back
	wg      sync.WaitGroup
}

type request struct {
	event rendezvous.Event
	call  *member.Call
}

func newPlane(w *cluster, p params.Params, o member.Observer) *plane {
	open := make(chan struct{})
	close(open)
	return &plane{
		w: w, p: p, observer: o, seen: "10.0.0.7", calls: map[uint64]*request{},
		queue: make(chan func(), 1024), closing: make(chan struct{}), held: open,
	}
}

func (p *plane) deliver(f func()) {
	if !p.closed {
		p.queue <- f
	}
}

// hold keeps answers and news back until the returned function is called.
func (p *plane) hold() (release func()) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	gate := make(chan struct{})
	p.held = gate
	return func() { close(gate) }
}

func (p *plane) run() {
	for f := range p.queue {
		p.w.mu.Lock()
		held := p.held
		p.w.mu.Unlock()
		<-held
		f()
	}
}

func (p *plane) Connect(ctx context.Context) error {
	p.w.mu.Lock()
	p.connects++
	first := p.connects == 1
	p.w.mu.Unlock()
	if first {
		p.wg.Go(p.run)
	}
	for {
		p.w.mu.Lock()
		down := p.w.down
		if down == nil {
			err := p.helloLocked()
			p.w.mu.Unlock()
			return err
		}
		p.w.mu.Unlock()
		p.observer.Progressed(rendezvous.Progress{Headline: "looking for the control plane", Detail: down.Error()})
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return rendezvous.Errorf(rendezvous.CodeConnection, `run "job": no control plane found: %v`, down)
		}
	}
}

// helloLocked says hello on the session there is, or on a new one.
func (p *plane) helloLocked() error {
	if p.session == "" {
		p.w.sessions++
		p.session = rendezvous.SessionID(fmt.Sprintf("s%d", p.w.sessions))
	}
	var claim rendezvous.LastRound
	if len(p.claims) > 0 {
		claim = p.claims[len(p.claims)-1]
	}
	p.w.planes[p.session] = p
	p.w.embedded = p.w.embedded || p.host
	p.refused = nil
	p.w.applyLocked(rendezvous.Hello{
		Session: p.session, Node: p.p.NodeID, Policy: p.p.Policy, LastRound: claim, InHost: p.host,
		Incarnation: uint64(p.w.sessions), SeenAddr: p.seen, ServerAddr: "10.0.0.1",
	})
	if p.refused != nil {
		p.session = ""
		return p.refused
	}
	p.connected, p.broken = true, false
	return nil
}

// cut breaks the connection; the control plane reconnects once the world is up again.
func (p *plane) cut(err error) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if !p.connected || p.broken {
		return
	}
	p.broken = true
	p.w.applyLocked(rendezvous.Disconnect{Session: p.session})
	p.deliver(func() { p.observer.ConnectionChanged(err) })
	p.wg.Go(func() { p.reconnect(false) })
}

func (p *plane) reconnect(told bool) {
	for {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-p.closing:
		}
		p.w.mu.Lock()
		if p.closed || p.w.down == nil {
			break
		}
		p.w.mu.Unlock()
	}
	defer p.w.mu.Unlock()
	if p.closed {
		return
	}
	if fresh := p.session == ""; fresh && !told && len(p.claims) > 0 {
		p.deliver(func() { p.observer.Dropped(rendezvous.ErrEvicted) })
	}
	if p.helloLocked() != nil {
		return
	}
	if !told {
		p.deliver(func() { p.observer.ConnectionChanged(nil) })
	}
	for number := range p.number {
		if r := p.calls[number+1]; r != nil {
			p.w.applyLocked(rendezvous.Stamp(r.event, rendezvous.Request{Session: p.session, Number: number + 1}))
		}
	}
}

// droppedLocked ends the session: its node was taken out. A node that is connected
// learns it at once, another one when it comes back.
func (p *plane) droppedLocked(err *rendezvous.Error) {
	p.session = ""
	if p.broken {
		return
	}
	p.broken = true
	p.deliver(func() { p.observer.Dropped(err) })
	for number, r := range p.calls {
		if p.failCalls {
			delete(p.calls, number)
			p.deliver(func() { r.call.Finish(nil, err) })
		}
	}
	p.wg.Go(func() { p.reconnect(true) })
}

func (p *plane) answer(r rendezvous.Reply) {
	req := p.calls[r.Number]
	if req == nil || p.broken {
		return
	}
	delete(p.calls, r.Number)
	p.deliver(func() {
		if r.Err != nil {
			req.call.Finish(nil, r.Err)
		} else {
			req.call.Finish(r.Result, nil)
		}
	})
}

func (p *plane) Start(ev rendezvous.Event) *member.Call {
	if p.starts != nil {
		p.starts(ev)
	}
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.number++
	call := &member.Call{Number: p.number, Done: make(chan struct{})}
	if p.closed {
		call.Finish(nil, rendezvous.ErrCanceled)
		return call
	}
	p.calls[p.number] = &request{ev, call}
	if !p.broken {
		p.w.applyLocked(rendezvous.Stamp(ev, rendezvous.Request{Session: p.session, Number: p.number}))
	}
	return call
}

func (p *plane) SetLastRound(c rendezvous.LastRound) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.claims = append(p.claims, c)
}

func (p *plane) lastClaim() rendezvous.LastRound {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if len(p.claims) == 0 {
		return rendezvous.LastRound{}
	}
	return p.claims[len(p.claims)-1]
}

func (p *plane) SetCommand(rendezvous.Command)         {}
func (p *plane) CarryTraining(func() *training.Report) {}

func (p *plane) SeenAddr() string { return p.seen }
func (p *plane) Hosting() bool    { return p.host }

func (p *plane) HostedByNode() bool {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	return p.w.embedded
}

func (p *plane) Close(ctx context.Context) error {
	p.w.mu.Lock()
	p.closeCtx = ctx.Err()
	if p.connected && !p.broken {
		p.w.applyLocked(rendezvous.Disconnect{Session: p.session})
	}
	for _, r := range p.calls {
		p.deliver(func() { r.call.Finish(nil, rendezvous.ErrCanceled) })
	}
	delete(p.w.planes, p.session)
	p.closed = true
	close(p.queue)
	close(p.closing)
	p.w.mu.Unlock()
	p.wg.Wait()
	return nil
}

// lines is a slog.Handler that keeps the messages.
type lines struct {
	mu   sync.Mutex
	list []string
}

func (l *lines) Enabled(context.Context, slog.Level) bool { return true }
func (l *lines) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *lines) WithGroup(string) slog.Handler            { return l }
func (l *lines) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, r.Message)
	return nil
}

// take returns the lines since the last take.
func (l *lines) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.list
	l.list = nil
	return list
}

// node is a member with what it was given.
type node struct {
	*member.Member
	w      *cluster
	plane  *plane
	stores *stores
	log    *lines
}

// nodeParams are those of a node of a min:max run.
func nodeParams(name string, min, max int) params.Params {
	p := params.Default()
	p.RunID, p.Endpoint, p.NodeID = "job", "host0:29400", name
	p.Min, p.Max = min, max
	return p
}

func (c *cluster) node(p params.Params) *node {
	n := &node{w: c, stores: &stores{}, log: &lines{}}
	n.Member = member.New(p, func(o member.Observer) member.ControlPlane {
		n.plane = newPlane(c, p, o)
		return n.plane
	}, n.stores, slog.New(n.log))
	c.members = append(c.members, n.Member)
	return n
}

// nodes makes count nodes a, b, c, ... of a min:max run.
func (c *cluster) nodes(count, min, max int) []*node {
	list := make([]*node, count)
	for i := range list {
		list[i] = c.node(nodeParams(string(rune('a'+i)), min, max))
	}
	return list
}

// joining is a Next that runs in a goroutine of its own.
type joining struct {
	cancel  context.CancelFunc
	done    chan struct{}
	outcome rendezvous.Outcome
	err     error
	took    time.Duration
}

func (n *node) join() *joining {
	ctx, cancel := context.WithCancel(context.Background())
	j := &joining{cancel: cancel, done: make(chan struct{})}
	began := time.Now()
	go func() {
		defer close(j.done)
		defer cancel()
		j.outcome, j.err = n.Next(ctx)
		j.took = time.Since(began)
	}()
	return j
}

func (j *joining) ended() bool {
	select {
	case <-j.done:
		return true
	default:
		return false
	}
}

// round waits for the outcome of all joins and checks that it is one round.
func round(t *testing.T, joins ...*joining) rendezvous.Outcome {
	t.Helper()
	var first rendezvous.Outcome
	for i, j := range joins {
		<-j.done
		if j.err != nil {
			t.Fatalf("join %d: %v", i, j.err)
		}
		if i == 0 {
			first = j.outcome
		}
		if j.outcome.Round != first.Round || j.outcome.World != len(joins) || j.outcome.StorePort != first.StorePort {
			t.Fatalf("join %d: %+v beside %+v", i, j.outcome, first)
		}
	}
	return first
}

// form brings the nodes together in one round.
func form(t *testing.T, list []*node) rendezvous.Outcome {
	t.Helper()
	joins := make([]*joining, len(list))
	for i, n := range list {
		joins[i] = n.join()
		synctest.Wait() // so that ranks follow the list
	}
	return round(t, joins...)
}

// refuses checks an error's code and what its text says.
func refuses(t *testing.T, err error, want *rendezvous.Error, says ...string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got error %v; want one like %v", err, want)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("the error does not say %q: %v", s, err)
		}
	}
}

// wait lets d pass and everything that it sets off come to rest.
func wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
