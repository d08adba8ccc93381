package control

import (
	"context"
	"errors"
	"sync"
	"time"

	"rallypoint/core/control/journal"
	"rallypoint/core/control/standby"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/background"
	"rallypoint/internal/backoff"
	"rallypoint/internal/wake"
)

const (
	// A commit that failed is tried again after pauses from the one to the other.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 2 * time.Second

	// maxQueued bounds the bytes that wait for a commit, with those of the answers.
	// Meanwhile the server reads nothing from a connection that sends more.
	maxQueued = 64 << 20

	// A run's state is stored again when the events since have as many bytes as it
	// has, and at least this many.
	minSnapshotAfter = 256 << 10
)

// pendingEvent is an event that is not applied yet.
type pendingEvent struct {
	run  *run
	ev   rendezvous.Event
	conn *serverConn // hello and requests: who sent it

	logged  []byte
	answer  int           // bytes of keys and values in the answer to it, as far as is known
	forget  bool          // no event: the run's data go
	done    chan struct{} // closed when it was applied, or will not be; nil: it was applied at once
	void    bool          // the run is gone
	refused *rendezvous.Error
	replied *rendezvous.Answer // of the machine, to an administrator's request
}

// reads reports whether the event is a request that changes no key, though it may
// have to wait for one.
func (p *pendingEvent) reads() bool {
	k, ok := p.ev.(rendezvous.KeyRequest)
	return ok && k.Op.Reads()
}

// size is the event's share of the queue's bytes.
func (p *pendingEvent) size() int { return len(p.logged) + p.answer }

// beginLocked and end count the requests of a connection's node that may change something and are
// not applied yet. The node's reads come after them. The caller holds run.mu.
func (p *pendingEvent) beginLocked() { p.count(1) }
func (p *pendingEvent) end()         { p.count(-1) }

func (p *pendingEvent) count(by int) {
	if p.conn != nil && !p.reads() {
		p.conn.uncommitted += by
	}
}

// wait returns when the event has been applied or will not be, and why not.
func (p *pendingEvent) wait() *rendezvous.Error {
	if p.done != nil {
		<-p.done
	}
	return p.refused
}

// groupCommit stores the events of all runs before they are applied, on a disk or with a majority of the servers
// of a list: one commit holds the events that came while the one before was on its way.
//
// So a run's machine shows nothing that is not stored. A request that changes nothing
// (rendezvous.Machine.TryRead) is answered from it at once, even if changes wait to be stored: it
// was asked before any of those was answered, and a server that is restarted on the same data
// knows everything that the answer showed. Two kinds of reads are queued nevertheless: reads of a
// node whose own changes are not applied yet, since it has to see them, and reads that wait for a
// key, since the wait is state. Each is tried again when the commit before it is applied, and
// only then stored; see answerReads.
type groupCommit struct {
	server *Server
	write  func(ctx context.Context, reign uint64, changes []journal.WriteBatch) error

	mu      sync.Mutex
	notFull sync.Cond // fewer than maxQueued bytes wait, or closed
	queue   []*pendingEvent
	queued  int // bytes
	closed  bool

	wake wake.Signal
	stop func()

	// Of its goroutine.
	failing   bool
	cause     error // of the last failure
	snapshots []*run
}

func newGroupCommit(s *Server, write func(context.Context, uint64, []journal.WriteBatch) error) *groupCommit {
	w := &groupCommit{server: s, write: write, wake: wake.New()}
	w.notFull.L = &w.mu
	return w
}

// add queues an event; it never blocks.
func (g *groupCommit) add(e *pendingEvent) {
	e.done = make(chan struct{})
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		e.void = true
		close(e.done)
		return
	}
	g.queue = append(g.queue, e)
	g.queued += e.size()
	g.wake.Set()
}

// throttle waits until the queue is not full.
func (g *groupCommit) throttle() {
	g.mu.Lock()
	for g.queued > maxQueued && !g.closed {
		g.notFull.Wait()
	}
	g.mu.Unlock()
}

// close lets the commit that is on its way end and returns when nothing more is
// written. Events that were not stored are not applied.
func (g *groupCommit) close() {
	g.mu.Lock()
	g.closed = true
	g.notFull.Broadcast()
	g.mu.Unlock()
	g.stop()
}

// start starts the goroutine that commits.
func (g *groupCommit) start() { g.stop = background.Run(context.Background(), g.serve) }

func (g *groupCommit) serve(ctx context.Context) {
	pauses := backoff.New(firstRetry, lastRetry)
	var retry []*pendingEvent
	for {
		select {
		case <-ctx.Done():
			g.drop(retry)
			return
		case <-g.wake:
		}
		batch := append(retry, g.takeQueue()...)
		retry = g.commit(ctx, g.ofReign(batch))
		if !g.failing {
			pauses.Reset()
			continue
		}
		retry = g.pause(ctx, pauses.Next(), retry)
		if len(retry) > 0 || len(g.snapshots) > 0 {
			g.wake.Set()
		}
	}
}

// pause waits until it is time to retry a failed commit. Meanwhile it refuses new events that may
// be refused, whose senders may not want to wait that long. It returns the events to try then, in
// order.
func (g *groupCommit) pause(ctx context.Context, d time.Duration, retry []*pendingEvent) []*pendingEvent {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return retry
		case <-ctx.Done():
			return retry
		case <-g.wake:
			retry = append(retry, g.refuse(g.takeQueue())...)
		}
	}
}

// takeQueue empties the queue. Events that will be retried stay counted.
func (g *groupCommit) takeQueue() []*pendingEvent {
	g.mu.Lock()
	defer g.mu.Unlock()
	queue := g.queue
	g.queue = nil
	return queue
}

// drop ends events that will not be applied. Runs that they would forget are forgotten, unless the next leader of
// several servers does that.
func (g *groupCommit) drop(retry []*pendingEvent) {
	var changes []journal.WriteBatch
	for _, e := range append(retry, g.takeQueue()...) {
		if e.forget {
			changes = append(changes, journal.WriteBatch{Run: e.run.seq, Forget: true})
		}
		e.void = true
		close(e.done)
	}
	if len(changes) > 0 && g.server.cfg.Peers == nil {
		if err := g.write(context.Background(), 0, changes); err != nil {
			g.server.log.Warn("runs that had ended are still in the data directory, and are forgotten later", "error", err)
		}
	}
}

// ofReign ends the events of runs that this process, one of several servers, does not lead any more.
func (g *groupCommit) ofReign(batch []*pendingEvent) (rest []*pendingEvent) {
	now := g.server.reigns()
	return g.void(batch, func(e *pendingEvent) bool { return e.run.reign != now })
}

// void ends events that will not be applied, and returns the others.
func (g *groupCommit) void(batch []*pendingEvent, which func(*pendingEvent) bool) (rest []*pendingEvent) {
	size := 0
	for _, e := range batch {
		if !which(e) {
			rest = append(rest, e)
			continue
		}
		size += e.size()
		e.void = true
		close(e.done)
	}
	g.release(size)
	return rest
}

// release subtracts bytes from queued.
func (g *groupCommit) release(size int) {
	g.mu.Lock()
	g.queued -= size
	g.notFull.Broadcast()
	g.mu.Unlock()
}

// commit stores a batch and applies it. It returns the beginning of the next batch: reads, and
// after a failure the events to try again.
func (g *groupCommit) commit(ctx context.Context, batch []*pendingEvent) (retry []*pendingEvent) {
	batch, after := g.answerReads(batch)
	order, byRun := byRuns(batch)
	changes := g.changes(order, byRun)
	if len(changes) == 0 {
		return nil
	}
	began := g.server.clock.Now()
	reign := uint64(0)
	if len(order) > 0 {
		reign = order[0].reign
	}
	err := g.write(ctx, reign, changes)
	g.server.metrics.commits.observe(g.server.clock.Now().Sub(began), &commitBuckets)
	if errors.Is(err, standby.ErrDeposed) {
		g.void(append(batch, after...), func(*pendingEvent) bool { return true })
		return nil
	}
	if err != nil {
		return append(g.failed(batch, err), after...)
	}
	g.server.metrics.committed.Add(uint64(len(batch)))
	if g.failing {
		g.failing = false
		g.server.log.Info("the data directory can be written again")
	}
	for _, r := range append(g.snapshots, order...) {
		r.stored.snapshot = nil
	}
	g.snapshots = nil
	size := 0
	for _, r := range order {
		for _, e := range byRun[r] {
			size += e.size()
		}
		g.apply(r, byRun[r])
	}
	g.release(size)
	if len(g.snapshots)+len(after) > 0 {
		g.wake.Set()
	}
	return after
}

// answerReads answers the reads of a batch that the commits so far have made answerable, and parts
// the others: rest is stored now. A read that is left for after that follows a change of its own
// node, and shows it or waits. If another change of that node follows the read, however, the read
// has its place between them, stored as it is.
func (g *groupCommit) answerReads(batch []*pendingEvent) (rest, after []*pendingEvent) {
	toCome := map[*serverConn]int{} // changes
	for _, e := range batch {
		if !e.reads() {
			toCome[e.conn]++
		}
	}
	changed := map[*serverConn]bool{}
	size := 0
	for _, e := range batch {
		switch {
		case !e.reads():
			toCome[e.conn]--
			changed[e.conn] = true
		case !changed[e.conn]:
			if e.run.answerLater(e) {
				size += e.size()
				close(e.done)
				continue
			}
		case toCome[e.conn] == 0:
			after = append(after, e)
			continue
		}
		rest = append(rest, e)
	}
	g.release(size)
	return rest, after
}

// answerLater answers a read that has waited for a commit.
func (r *run) answerLater(e *pendingEvent) (done bool) {
	r.mu.Lock()
	defer r.unlock()
	return r.answerLocked(e.ev)
}

// byRuns sorts a batch by run; the order within a run stays.
func byRuns(batch []*pendingEvent) (order []*run, byRun map[*run][]*pendingEvent) {
	byRun = map[*run][]*pendingEvent{}
	for _, e := range batch {
		if byRun[e.run] == nil {
			order = append(order, e.run)
		}
		byRun[e.run] = append(byRun[e.run], e)
	}
	return order, byRun
}

// changes returns the writes of a batch and of the snapshots that are due.
func (g *groupCommit) changes(order []*run, byRun map[*run][]*pendingEvent) []journal.WriteBatch {
	var changes []journal.WriteBatch
	for _, r := range g.snapshots {
		if byRun[r] == nil {
			changes = append(changes, journal.WriteBatch{Run: r.seq, Snapshot: r.stored.snapshot})
		}
	}
	for _, r := range order {
		c := journal.WriteBatch{Run: r.seq, Snapshot: r.stored.snapshot, First: r.stored.last + 1}
		for _, e := range byRun[r] {
			if e.forget {
				c.Forget = true
			} else {
				c.Events = append(c.Events, e.logged)
			}
		}
		changes = append(changes, c)
	}
	return changes
}

// apply applies a run's events, which are stored.
func (g *groupCommit) apply(r *run, entries []*pendingEvent) {
	r.mu.Lock()
	for _, e := range entries {
		if e.forget {
			continue
		}
		r.stored.last++
		r.stored.since += len(e.logged)
		e.end()
		if e.void = r.gone; !e.void {
			r.applyEntryLocked(e)
		}
	}
	if !r.gone && r.broken == nil && r.server.cfg.Peers == nil && r.stored.since > max(minSnapshotAfter, r.stored.size) {
		r.takeSnapshotLocked()
		g.snapshots = append(g.snapshots, r)
	}
	r.unlock()
	for _, e := range entries {
		close(e.done)
	}
}

// failed refuses the events that can be refused, and returns the rest for another try. None of
// the batch was applied.
func (g *groupCommit) failed(batch []*pendingEvent, cause error) (retry []*pendingEvent) {
	g.server.metrics.commitFailures.Add(1)
	if !g.failing {
		g.failing = true
		g.server.log.Error("the data directory cannot be written: nodes that want to join are refused, other changes wait until it can", "error", cause)
	}
	g.cause = cause
	return g.refuse(batch)
}

// refuse refuses of events those that may be, and returns the others.
func (g *groupCommit) refuse(events []*pendingEvent) (others []*pendingEvent) {
	size := 0
	for _, e := range events {
		if !e.refusable() {
			others = append(others, e)
			continue
		}
		size += e.size()
		e.refuse(g.cause)
	}
	g.release(size)
	return others
}

// refusable reports whether the event may be refused:
// hellos, requests for a place, and administrators. Other requests belong to
// rounds that run.
func (p *pendingEvent) refusable() bool {
	switch ev := p.ev.(type) {
	case rendezvous.Hello, rendezvous.Join, rendezvous.Evict, rendezvous.Direct, rendezvous.CancelDirective, rendezvous.Cordon, rendezvous.Undrain, rendezvous.Forget:
		return true
	case rendezvous.CloseRun:
		return ev.Session == ""
	}
	return false
}

// errNotStored ends the connection of a node that is known: it comes back.
var errNotStored = errors.New("its hello could not be stored")

// refuse answers an event that could not be stored.
func (p *pendingEvent) refuse(cause error) {
	r := p.run
	p.refused = rendezvous.Errorf(rendezvous.CodeConnection,
		"run %q: the control plane at %s takes no nodes and no orders, because it cannot store what it would promise: %v; make room there, or start it on another --data-dir",
		r.id, r.server.Addr(), cause)
	r.mu.Lock()
	p.end()
	if j, ok := p.ev.(rendezvous.Join); ok && r.conns[p.conn.session] == p.conn {
		p.conn.out.SendReply(wire.Reply{Number: j.Number, Err: p.refused})
	}
	r.mu.Unlock()
	close(p.done)
}
