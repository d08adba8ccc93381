package control

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"rallypoint/core/control/standby"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/core/training"
	"rallypoint/internal/printable"
)

// run drives the machine of one run: it applies events one at a time and carries
// out their effects, both under mu. Nothing that it does blocks.
type run struct {
	server *Server
	id     string
	seq    uint64     // order of creation
	reign  uint64     // the server's when it was made
	begun  netip.Addr // whose node began it, as countedAs has it; invalid: it was restored
	log    *slog.Logger

	mu       sync.Mutex
	machine  *rendezvous.Machine
	gone     bool              // forgotten or closed: apply nothing more
	broken   *rendezvous.Error // its machine has panicked: it is not used any more
	used     bool              // a hello was accepted once
	kept     int64             // bytes, as the server's sum has them
	awaited  int64             // nodes of its next round, as the server's sum has them
	unsent   atomic.Int64      // bytes that wait to be sent to its nodes
	arriving atomic.Int64      // bytes of long frames that have not come whole
	refused  []refusedNode     // since the last round; the last one is the latest
	replaces bool              // it has warned that this process may be in the place of a server
	conns    map[rendezvous.SessionID]*serverConn
	latest   map[rendezvous.SessionID]*serverConn // the last connection to say hello; that may not be applied yet
	hellos   int                                  // that are not applied yet
	greeted  *serverConn                          // whose hello is being applied
	asked    *pendingEvent                        // that is being applied
	reports  *serverConn                          // whose report of a directive is being applied
	timers   map[rendezvous.Timer]runTimer
	stored   stored
	applied  uint64 // events, those before a restart too

	leases  leases
	waiting progressNotifier
	notices noticeFrame
	stats   stats

	standbys    *standby.Registry // nil: the server has no successors
	uncommitted uncommitted

	training training.Job

	idleSince time.Time // zero while a node is alive or connected
	changes   []string  // to be logged when mu is free: a log may block
	warnings  []string  // likewise
	failure   *failure  // the same
}

// The reply to a report of a directive goes with the notice of what all have reported, unless
// that takes longer than their reports do.
const (
	lateReplyPerNode = 100 * time.Microsecond
	lateReply        = time.Second
)

// noticeFrame is the last notice, ready to be sent: a change of a run tells many nodes the same.
type noticeFrame struct {
	update rendezvous.MembershipUpdate
	frame  []byte // nil: there was none yet
}

// frameOf returns the frame, which is good until the next call.
func (n *noticeFrame) frameOf(u *rendezvous.MembershipUpdate) []byte {
	if n.frame == nil || !n.update.Equal(u) {
		n.update, n.frame = *u, wire.AppendFrame(n.frame[:0], wire.Notice{Notice: *u})
	}
	return n.frame
}

// runTimer is a running timer of the machine, kept under its name (Seq zero).
type runTimer struct {
	seq  uint64
	stop Stopper
	set  time.Time
}

// newRun makes a run. The log of a server of many runs names the run in each
// line; that of a single one belongs to the caller of Start (Config.Log).
func newRun(s *Server, id string, seq uint64) *run {
	log := s.log
	if s.cfg.RunID == "" {
		log = log.With("run", id)
	}
	r := &run{
		server: s, id: id, seq: seq, reign: s.reign, log: log,
		machine: rendezvous.New(rendezvous.Config{RunID: id, Generation: rand.Text(), Uptime: s.uptime(), Succession: s.succession(), Limits: s.cfg.Quota.limits()}),
		stats:   stats{joins: map[rendezvous.SessionID]pendingJoin{}, census: rendezvous.Census{Phase: rendezvous.PhaseEmpty}},
		conns:   map[rendezvous.SessionID]*serverConn{},
		latest:  map[rendezvous.SessionID]*serverConn{},
		timers:  map[rendezvous.Timer]runTimer{},
		waiting: progressNotifier{conns: map[*serverConn]struct{}{}},
	}
	if s.cfg.Group != nil && s.cfg.Peers == nil {
		r.standbys = standby.NewRegistry(s.cfg.Group)
	}
	if s.commits != nil {
		r.takeSnapshotLocked()
	}
	s.runCount.Add(1)
	r.accountLocked()
	return r
}

// hello applies a hello that came in on p and returns when that is done. It
// reports false if the run was forgotten meanwhile.
func (r *run) hello(p *serverConn, h rendezvous.Hello) bool {
	r.mu.Lock()
	if r.gone {
		r.mu.Unlock()
		return false
	}
	if p.refusedBy = r.overQuotaLocked(h); p.refusedBy != nil {
		r.mu.Unlock()
		return true
	}
	r.latest[h.Session] = p
	r.hellos++
	e := r.submitLocked(h, p)
	r.unlock()
	err := e.wait()
	r.mu.Lock()
	defer r.unlock()
	if err != nil || e.void {
		r.hellos--
	}
	if err != nil {
		p.refusedBy = err
		p.unstored = r.machine.Has(h.Session)
	}
	if p.refusedBy != nil && r.quietLocked() {
		p.refusedBy = r.server.noMajority() // what it was refused for may never have been
	}
	if p.refusedBy != nil {
		r.rollbackHello(p, h.Session)
	} else if !e.void {
		r.admittedLocked(rendezvous.MachineOf(h.Node), p.from().String())
		r.noteOriginLocked(h)
	}
	return !e.void
}

// noteOriginLocked warns once if this process hosts where `rallypoint serve` may be meant to:
// the reported round's control plane was on none of its nodes.
func (r *run) noteOriginLocked(h rendezvous.Hello) {
	c := h.LastRound
	if e := r.server.cfg.Elector; e != nil && e.Current().Term > 1 {
		return // it succeeds another one
	}
	if r.server.cfg.RunID == "" || r.replaces || c.Round == 0 || c.HostRank >= 0 || r.broken != nil || c.Generation == r.machine.Generation() {
		return
	}
	r.replaces = true
	r.warnings = append(r.warnings, fmt.Sprintf("this process hosts the control plane, but node %s comes from round %d, whose control plane was on none of that round's nodes; "+
		"if the endpoint is meant for `rallypoint serve`, start all nodes with is_host=0, so that none of them takes its place while it is down",
		printable.Text(h.Node), c.Round))
}

// rollbackHello undoes p's hello, which was refused. A connection that
// the session had before may have ended meanwhile.
func (r *run) rollbackHello(p *serverConn, session rendezvous.SessionID) {
	if r.latest[session] != p {
		return
	}
	delete(r.latest, session)
	if old := r.conns[session]; old != nil {
		r.latest[session] = old
	} else if !r.gone && r.broken == nil && r.machine.Has(session) {
		r.submitLocked(rendezvous.Disconnect{Session: session}, nil)
	}
}

// request applies a request that came in on p, unless a newer connection has
// taken the session over.
func (r *run) request(p *serverConn, f wire.Request) {
	queued := false
	r.mu.Lock()
	switch {
	case r.gone || r.conns[p.session] != p:
	case f.Event == nil:
		r.server.metrics.refused[refusedRequest].Add(1)
		p.out.Send(wire.Reply{Number: f.Number, Err: rendezvous.Errorf(rendezvous.CodeInvalid,
			"the control plane at %s does not know request %d: it is older than this node", r.server.Addr(), f.Op)})
	default:
		ev := r.withinQuotaLocked(f.Stamped(p.session))
		if p.uncommitted == 0 && r.answerLocked(ev) {
			break
		}
		e := r.submitLocked(ev, p)
		if e.done == nil && e.refused != nil {
			p.out.SendReply(wire.Reply{Number: f.Number, Err: e.refused})
		}
		queued = e.done != nil
	}
	r.unlock()
	if queued {
		r.server.commits.throttle()
	}
}

// answerLocked answers a request that changes nothing, at once: the state in the answer is on the
// disk, if there is one, and the request itself need not be stored (see groupCommit). It reports
// false if the request has to be applied.
func (r *run) answerLocked(ev rendezvous.Event) (done bool) {
	if r.gone || r.broken != nil {
		return true
	}
	if r.server.cfg.Peers != nil && !r.server.cfg.Elector.Committed(0) {
		return false // another server may lead, which knows more
	}
	defer r.recoverRunLocked()
	effects, done := r.machine.TryRead(ev)
	if !done {
		return false
	}
	for _, e := range effects {
		r.execute(e)
	}
	r.traceEventLocked(r.server.clock.Now(), ev, effects, true)
	return true
}

// connectionEnded tells the machine that a session's connection has ended.
func (r *run) connectionEnded(p *serverConn) {
	r.mu.Lock()
	defer r.unlock()
	if r.conns[p.session] == p {
		r.unbind(p)
	}
	if r.latest[p.session] != p {
		return // dropped, or a newer connection has said hello
	}
	delete(r.latest, p.session)
	if !r.gone {
		r.submitLocked(rendezvous.Disconnect{Session: p.session, Dead: p.proven > time.Duration(p.heard.Load())}, nil)
	}
}

// submitLocked brings an event into the run: at once, or when it is stored.
func (r *run) submitLocked(ev rendezvous.Event, p *serverConn) *pendingEvent {
	e := &pendingEvent{run: r, ev: ev, conn: p}
	w := r.server.commits
	if w == nil {
		r.applyEntryLocked(e)
		return e
	}
	if e.logged, e.refused = encode(ev); e.refused == nil {
		e.answer = r.answerBytesLocked(ev)
		e.beginLocked()
		w.add(e)
	}
	return e
}

// applyEntryLocked applies an event that is stored, if need be.
func (r *run) applyEntryLocked(e *pendingEvent) {
	switch ev := e.ev.(type) {
	case rendezvous.Hello:
		r.hellos--
		r.greeted = e.conn
		defer func() { r.greeted = nil }()
	case rendezvous.Join:
		if r.conns[ev.Session] == e.conn {
			r.startWaiting(e.conn)
		}
	case rendezvous.ReportDirective:
		r.reports = e.conn
		defer func() { r.reports = nil }()
	}
	r.asked = e
	defer func() { r.asked = nil }()
	r.applyLocked(e.ev)
}

// applyLocked applies one event and carries out its effects.
func (r *run) applyLocked(ev rendezvous.Event) {
	if r.broken != nil {
		if r.greeted != nil {
			r.greeted.refusedBy = r.broken
		}
		return
	}
	defer r.recoverRunLocked()
	now := r.server.clock.Now()
	effects := r.machine.Apply(ev)
	r.proposeLocked()
	for _, e := range effects {
		r.execute(e)
	}
	r.observe(ev, effects)
	r.noteStandbys(ev)
	r.traceEventLocked(now, ev, effects, false)
	r.accountLocked()
}

func (r *run) execute(e rendezvous.Effect) {
	switch e := e.(type) {
	case rendezvous.Welcome:
		r.bind(r.greeted, e)
	case rendezvous.Refuse:
		r.greeted.refusedBy = e.Err
	case rendezvous.Reply:
		p, f := r.conns[e.Session], wire.Reply{Number: e.Number, Err: e.Err, Result: e.Result}
		switch {
		case p == nil:
		case p == r.reports && e.Err == nil:
			late := min(time.Duration(len(r.conns))*lateReplyPerNode, lateReply)
			r.sayLocked(func() { p.out.SendReplyLate(f, late) })
		default:
			r.sayLocked(func() { p.out.SendReply(f) })
		}
	case rendezvous.Notify:
		if p := r.conns[e.Session]; p != nil {
			r.sayLocked(func() { p.out.SendBytes(r.notices.frameOf(&e.Update), wire.KindNotice) })
		}
	case rendezvous.Drop:
		if r.standbys != nil {
			r.standbys.Gone(e.Session)
		}
		if p := r.conns[e.Session]; p != nil {
			r.disconnect(p, e.Err)
		}
	case rendezvous.SetTimer:
		r.setTimer(e.Timer, e.After)
	case rendezvous.StopTimer:
		r.stopTimer(e.Timer)
	case rendezvous.HistoryEntry:
		r.noteChange(e.Text)
	case rendezvous.Answer:
		if r.asked != nil {
			r.asked.replied = &e
		}
	}
}

// unlock releases mu and logs the changes.
func (r *run) unlock() {
	changes, warnings, failure := r.changes, r.warnings, r.failure
	r.changes, r.warnings, r.failure = nil, nil, nil
	r.mu.Unlock()
	if failure != nil {
		r.log.Error("this run is broken by a defect of Rallypoint and is no longer served; other runs continue",
			"defect", failure.what, "stack", string(failure.stack))
	}
	for _, text := range warnings {
		r.log.Warn(text)
	}
	for _, text := range changes {
		r.log.Log(context.Background(), r.server.cfg.Node.EventLevel(), text)
	}
}

// bind binds a session to the connection whose hello was accepted.
func (r *run) bind(p *serverConn, w rendezvous.Welcome) {
	if old := r.conns[w.Session]; old != nil {
		r.unbind(old)
		old.out.Cut(errSuperseded)
	}
	if !r.used && r.server.cfg.RunID == "" && r.id == "none" {
		r.warnings = append(r.warnings, `this run uses the id "none", torchrun's default: other jobs that use it too would meet it; give each its own --rdzv-id`)
	}
	r.used, r.idleSince = true, time.Time{}
	r.conns[w.Session] = p
	p.out.CountIn(&r.unsent)
	lease := r.machine.Policy().LeaseTimeout
	r.startLease(p, lease)
	if _, pending := r.machine.Forming(w.Session); pending {
		r.startWaiting(p)
	}
	if !w.Resumed {
		r.stats.changelog.arrive(r.server.clock.Now(), r.lastRound(), r.machine.NameOf(p.node))
	}
	r.sayLocked(func() {
		p.welcomeLocked(w, lease)
		switch {
		case r.conns[w.Session] != p:
		case r.standbys != nil:
			r.standbys.Arrive(p.arrival)
		case r.server.cfg.Peers != nil && p.arrival.Follows:
			p.out.Send(wire.Standbys{List: p.peers()})
		}
	})
}

func (r *run) unbind(p *serverConn) {
	delete(r.conns, p.session)
	r.stopWaiting(p)
	r.server.left.Set()
}

// disconnect ends a connection after telling its node why.
func (r *run) disconnect(p *serverConn, err *rendezvous.Error) {
	r.unbind(p)
	if r.latest[p.session] == p {
		delete(r.latest, p.session)
	}
	r.sayLocked(func() {
		p.out.Send(wire.Drop{Err: err})
		p.drain()
	})
}

func (r *run) setTimer(t rendezvous.Timer, after time.Duration) {
	r.stopTimer(t)
	name := t
	name.Seq = 0
	stop := r.server.clock.AfterFunc(after, func() { r.fired(t) })
	r.timers[name] = runTimer{t.Seq, stop, r.server.clock.Now()}
}

func (r *run) stopTimer(t rendezvous.Timer) {
	t.Seq = 0
	if running, ok := r.timers[t]; ok {
		running.stop.Stop()
		delete(r.timers, t)
	}
}

func (r *run) fired(t rendezvous.Timer) {
	r.callback(func() {
		name := t
		name.Seq = 0
		if r.timers[name].seq == t.Seq {
			delete(r.timers, name)
		}
		r.submitLocked(rendezvous.TimerFired{Timer: t}, nil)
	})
}

// callback runs a function of a timer under mu, unless the run has ended.
func (r *run) callback(f func()) {
	if !r.server.gate.enter() {
		return
	}
	defer r.server.gate.leave()
	r.mu.Lock()
	defer r.unlock()
	if !r.gone && r.broken == nil {
		f()
	}
}

// close stops everything that a clock would start.
func (r *run) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.retire()
}

func (r *run) retire() {
	if !r.gone {
		r.server.runCount.Add(-1)
	}
	r.gone = true
	r.dropUncommittedLocked()
	r.accountLocked()
	r.stopClocks()
}

// stopClocks stops everything that a clock would start.
func (r *run) stopClocks() {
	for _, t := range r.timers {
		t.stop.Stop()
	}
	clear(r.timers)
	r.leases.stop()
	r.waiting.stop()
}

// forgettable reports whether the run has been without a node for long enough to be forgotten,
// and if so retires it.
func (r *run) forgettable() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.server.clock.Now()
	switch {
	case len(r.conns) > 0 || r.hellos > 0 || r.broken == nil && r.machine.Begun() && r.machine.Live() > 0:
		r.idleSince = time.Time{}
		return false
	case r.idleSince.IsZero():
		r.idleSince = now
		return false
	case now.Sub(r.idleSince) < r.forgetAfterLocked():
		return false
	}
	if _, kept := r.machine.Kept(); kept && r.broken == nil {
		return false // a node that comes late has yet to learn that it has ended
	}
	r.retire()
	return true
}

// forgetAfterLocked is how long the run is remembered without nodes: one that never had a round has
// nothing that a node could miss.
func (r *run) forgetAfterLocked() time.Duration {
	whole := r.server.cfg.ForgetAfter
	if r.broken != nil || r.machine.Begun() || r.machine.Succession().Term > 1 {
		return whole
	}
	p := r.machine.Policy()
	return min(whole, max(p.LeaseTimeout, p.ReconnectGrace))
}

// retireUnused retires a run that no node was ever accepted to.
func (r *run) retireUnused() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.used || r.gone || r.hellos > 0 {
		return false
	}
	r.retire()
	return true
}

// failure is a panic of a run's machine, to be logged.
type failure struct {
	what  any
	stack []byte
}

// recoverRunLocked is deferred where a run's machine is used: a panic of it ends the run and
// nothing else.
func (r *run) recoverRunLocked() {
	if v := recover(); v != nil {
		r.failLocked(v, debug.Stack())
	}
}

// failLocked stops serving a run whose machine has panicked, since its state is no longer
// reliable. Other runs are not affected.
func (r *run) failLocked(what any, stack []byte) {
	r.failure = &failure{what, stack}
	err, known := what.(*rendezvous.Error)
	if !known {
		err = brokenRun(r.id, what)
	}
	r.broken = err
	r.stopClocks()
	for _, p := range r.conns {
		r.disconnect(p, err)
	}
	if r.greeted != nil {
		r.greeted.refusedBy = err
	}
	r.stats.census = rendezvous.Census{Phase: rendezvous.PhaseClosed, Round: r.stats.census.Round, Ended: "failed"}
	clear(r.stats.joins)
	r.noteChange(err.Text)
}
