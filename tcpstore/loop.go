package tcpstore

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/store"
)

const (
	// keptReplies bounds the memory that a loop keeps for collecting replies.
	keptReplies = 2 * pauseUnsent

	// maxAdded is how many new connections an iteration takes up. More of them can
	// come than one loop serves, and those that are there must have their turn.
	maxAdded = 64

	// keptParsers bounds how many parsers, of keptBuffer each at most, a loop
	// keeps for messages that arrive in parts.
	keptParsers = 64
)

// loop serves some of a server's connections, all in one goroutine. Nothing in
// there blocks, except waiting for events.
type loop struct {
	server   *Server
	poller   *poller
	config   sessionConfig
	counters counters
	all      []*loop // of the server
	number   int     // in all

	added    []*conn   // accepted, and not yet taken up
	conns    []*conn   // by descriptor
	parser   *parser   // lent to connections at rest
	out      []byte    // lent to each connection that is being served
	parsers  []*parser // free
	ready    []*conn   // have something to do without an event
	spare    []*conn   // memory for ready
	woken    [][]*conn // have replies that others caused, by number of their loop
	ending   []*conn   // by deadline
	parts    []part    // lent like out
	segments []segment // of a reply that is being sent
	budget   budget
	starved  []*conn // wait for room in the budget

	checkSlow time.Time // when slow readers are looked for, while there are starved
	stopping  bool
	turns     atomic.Uint64 // iterations, for tests

	mail mailbox
}

// mailbox is what other goroutines have for a loop.
type mailbox struct {
	mu     sync.Mutex
	rung   bool // the loop was told and has not looked yet
	closed bool // nobody looks any more
	stop   bool
	added  []*conn
	woken  []*conn
}

// newLoops makes the loops of a server.
func newLoops(s *Server, n int) (loops []*loop, err error) {
	for number := range n {
		poller, err := newPoller()
		if err != nil {
			closeLoops(loops)
			return nil, err
		}
		l := &loop{
			server: s,
			poller: poller,
			config: s.config,
			number: number,
			parser: &parser{buf: make([]byte, 0, keptBuffer)},
			woken:  make([][]*conn, n),
		}
		l.config.counters, l.config.budget = &l.counters, &l.budget
		l.budget = budget{limit: max(1, s.maxUnsentSum/n), shared: map[*store.Buffer]*sharedValue{}}
		loops = append(loops, l)
	}
	for _, l := range loops {
		l.all = loops
	}
	return loops, nil
}

// closeLoops gives back the descriptors of loops that do not run any more.
func closeLoops(loops []*loop) {
	for _, l := range loops {
		l.poller.close()
	}
}

// run serves until it is told to stop. An iteration serves the connections that
// there is news of, then those that had more to do before, then takes up new ones,
// and then sends the replies which all that caused for others.
func (l *loop) run() {
	for !l.stopping {
		events, err := l.poller.wait(len(l.ready)+len(l.added) == 0, l.deadline())
		if err != nil { // somebody has closed a descriptor that is not theirs
			l.log(slog.LevelError, "tcpstore: connections are not served any more", "error", err)
			break
		}
		l.turns.Add(1)
		before := l.ready
		l.ready = l.spare
		for i := range events {
			l.serve(&events[i])
		}
		for _, c := range before {
			c.queued = false
			c.step()
		}
		clear(before)
		l.spare = before[:0]
		l.takeUp(maxAdded)
		l.tell()
		l.cutSlow()
		l.feed()
		l.expire()
	}
	l.close()
}

// deadline is when something is to be done even if nothing happens; zero: never.
func (l *loop) deadline() time.Time {
	var next time.Time
	if len(l.ending) > 0 {
		next = l.ending[0].deadline
	}
	if len(l.starved) > 0 && (next.IsZero() || l.checkSlow.Before(next)) {
		next = l.checkSlow
	}
	return next
}

func (l *loop) serve(event *unix.EpollEvent) {
	if int(event.Fd) == l.poller.bell {
		l.read()
	} else if c := l.conns[event.Fd]; c != nil {
		c.event(event.Events)
	}
}

// read takes the mail.
func (l *loop) read() {
	m := &l.mail
	m.mu.Lock()
	added, woken := m.added, m.woken
	m.added, m.woken, m.rung = nil, nil, false
	l.stopping = m.stop
	m.mu.Unlock()
	l.added = append(l.added, added...)
	l.woken[l.number] = append(l.woken[l.number], woken...)
}

// takeUp begins to serve some of the new connections.
func (l *loop) takeUp(most int) {
	n := min(most, len(l.added))
	for i, c := range l.added[:n] {
		l.add(c)
		l.added[i] = nil
	}
	l.added = l.added[n:]
	if len(l.added) == 0 {
		l.added = nil
	}
}

// post leaves mail and reports whether somebody is going to read it.
func (l *loop) post(leave func(*mailbox)) bool {
	m := &l.mail
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	leave(m)
	if !m.rung {
		m.rung = true
		l.poller.wake()
	}
	return true
}

// add begins to serve a connection.
func (l *loop) add(c *conn) {
	if c.fd >= len(l.conns) {
		conns := make([]*conn, max(c.fd+1, 2*len(l.conns)))
		copy(conns, l.conns)
		l.conns = conns
	}
	l.conns[c.fd] = c
	if err := l.poller.add(c.fd); err != nil {
		l.log(slog.LevelWarn, "tcpstore: connection closed: it cannot be served", "peer", c.peer.String(), "error", err)
		c.close()
	}
}

// queue makes a connection take part in the next iteration.
func (l *loop) queue(c *conn) {
	if !c.queued {
		c.queued = true
		l.ready = append(l.ready, c)
	}
}

// takeWoken sorts the connections with new replies by loop. hub.mu is held.
func (l *loop) takeWoken(h *hub) {
	for i, c := range h.woken {
		l.woken[c.loop.number] = append(l.woken[c.loop.number], c)
		h.woken[i] = nil
	}
	h.woken = h.woken[:0]
}

// tell sends the replies that others have caused.
func (l *loop) tell() {
	for number, woken := range l.woken {
		if len(woken) == 0 {
			continue
		}
		if number == l.number {
			for _, c := range woken {
				c.flush()
			}
		} else {
			l.all[number].post(func(m *mailbox) { m.woken = append(m.woken, woken...) })
		}
		clear(woken)
		l.woken[number] = woken[:0]
	}
}

// expire closes refused connections whose peers do not read.
func (l *loop) expire() {
	if len(l.ending) == 0 {
		return
	}
	now := time.Now()
	for len(l.ending) > 0 && !now.Before(l.ending[0].deadline) {
		l.ending[0].close()
		l.ending[0] = nil
		l.ending = l.ending[1:]
	}
}

// forget is the end of a connection.
func (l *loop) forget(c *conn) {
	l.poller.remove(c.fd)
	l.conns[c.fd] = nil // before another connection can have that number
	unix.Close(c.fd)
	l.server.counters.open.Add(-1)
}

// log writes a line in a goroutine of its own, for all connections would wait
// while its reader does not read.
func (l *loop) log(level slog.Level, text string, args ...any) {
	s := l.server
	if s.log.Enabled(context.Background(), level) {
		s.wg.Go(func() { s.log.Log(context.Background(), level, text, args...) })
	}
}

// lendOut returns memory to collect replies in; keepOut takes it back.
func (l *loop) lendOut() []byte { return l.out[:0] }

func (l *loop) keepOut(out []byte) {
	if cap(out) <= keptReplies {
		l.out = out
	} else {
		l.out = nil
	}
}

func (l *loop) newParser() *parser {
	n := len(l.parsers)
	if n == 0 {
		return &parser{}
	}
	p := l.parsers[n-1]
	l.parsers[n-1] = nil
	l.parsers = l.parsers[:n-1]
	return p
}

func (l *loop) freeParser(p *parser) {
	if len(l.parsers) < keptParsers && cap(p.buf) <= keptBuffer && cap(p.spans) <= 2*keptFields {
		l.parsers = append(l.parsers, p)
	}
}

// close closes all connections.
func (l *loop) close() {
	l.mail.mu.Lock()
	l.mail.closed = true
	l.mail.mu.Unlock()
	l.read() // what came before that
	l.takeUp(len(l.added))
	for _, c := range l.conns {
		if c != nil {
			c.close()
		}
	}
}
