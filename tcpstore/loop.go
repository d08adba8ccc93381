package tcpstore

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/store"
	"rallypoint/internal/eventloop"
)

const (
	// keptReplies bounds the memory that a loop keeps for collecting replies.
	keptReplies = 2 * pauseUnsent

	// maxAdmitted is how many new connections an iteration admits. More can come than
	// one loop serves, and those that it serves must have their turn.
	maxAdmitted = 64

	// keptParsers bounds how many parsers, of keptBuffer each at most, a loop
	// keeps for messages that arrive in parts.
	keptParsers = 64
)

// loop serves some of a server's connections, all in one goroutine, which blocks only to
// wait for events.
type loop struct {
	server   *Server
	events   *eventloop.Loop[*conn, inbox]
	config   sessionConfig
	counters counters
	all      []*loop // of the server
	number   int     // in all

	added    []*conn      // accepted, and not yet admitted
	parser   *parser      // borrowed by connections at rest
	out      []byte       // borrowed by each connection that is being served
	parsers  []*parser    // free
	woken    [][]*conn    // have replies that others caused, by number of their loop
	ending   []endingConn // by deadline
	parts    []part       // borrowed like out
	segments []segment    // of a reply that is being sent
	tls      tlsBuffers   // borrowed like out by connections that speak TLS
	budget   budget
	starved  []starvedConn // wait for room in the budget

	checkSlow time.Time // when slow readers are looked for, while there are starved
	stopping  bool
	turns     atomic.Uint64 // iterations, for tests
}

// inbox has the messages of other goroutines to a loop.
type inbox struct {
	stop  bool
	added []*conn
	woken []*conn
}

func newLoops(s *Server, n int) (loops []*loop, err error) {
	for number := range n {
		events, err := eventloop.NewLoop[*conn, inbox]()
		if err != nil {
			closeLoops(loops)
			return nil, err
		}
		l := &loop{
			server: s,
			events: events,
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

func closeLoops(loops []*loop) {
	for _, l := range loops {
		l.events.Close()
	}
}

// run serves until the inbox says stop. An iteration serves the connections that have
// events, then those that had more to do before, then admits new ones, and then sends the
// replies which all that caused for other connections.
func (l *loop) run() {
	for !l.stopping {
		err := l.events.Turn(len(l.added) == 0, l.deadline(), l.readInbox)
		if err != nil { // another part of the process has closed our descriptor
			l.server.log.Error("tcpstore: connections are no longer served", "error", err)
			break
		}
		l.turns.Add(1)
		l.admitNew(maxAdmitted)
		l.flushWoken()
		l.cutSlow()
		l.feed()
		l.expire()
	}
	l.close()
}

// deadline returns the time of the next timer; zero: none runs.
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

func (l *loop) readInbox(in inbox) {
	l.stopping = in.stop
	l.added = append(l.added, in.added...)
	l.woken[l.number] = append(l.woken[l.number], in.woken...)
}

// admitNew begins to serve some of the new connections.
func (l *loop) admitNew(most int) {
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

func (l *loop) add(c *conn) {
	if err := l.events.Add(c.fd, c); err != nil {
		l.server.log.Warn("tcpstore: connection closed: it cannot be served", "peer", c.peer.String(), "error", err)
		c.close()
		return
	}
	if c.tls != nil { // what came with its proof makes no event
		c.readable = true
		l.queue(c)
	}
}

// queue makes a connection take part in the next iteration.
func (l *loop) queue(c *conn) {
	if !c.queued {
		c.queued = true
		l.events.Queue(c)
	}
}

// takeWokenLocked sorts the connections with new replies by loop. The shard's
func (l *loop) takeWokenLocked(s *engineShard) {
	for i, c := range s.woken {
		l.woken[c.loop.number] = append(l.woken[c.loop.number], c)
		s.woken[i] = nil
	}
	s.woken = s.woken[:0]
}

// flushWoken sends the replies that other connections have caused, or has their loops
// send them.
func (l *loop) flushWoken() {
	for number, woken := range l.woken {
		if len(woken) == 0 {
			continue
		}
		if number == l.number {
			for _, c := range woken {
				c.flush()
			}
		} else {
			l.all[number].events.Put(func(in *inbox) { in.woken = append(in.woken, woken...) })
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
		l.ending[0] = endingConn{}
		l.ending = l.ending[1:]
	}
}

func (l *loop) forget(c *conn) {
	l.events.Remove(c.fd)
	unix.Close(int(c.fd))
	l.server.counters.open.Add(-1)
}

// borrowBuffer returns memory to collect replies in; returnBuffer takes it back.
func (l *loop) borrowBuffer() []byte { return l.out[:0] }

func (l *loop) returnBuffer(out []byte) {
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

func (l *loop) close() {
	l.readInbox(l.events.Shut())
	l.admitNew(len(l.added))
	for c := range l.events.All() {
		if c.unsent == nil {
			c.end()
		} else {
			c.close()
		}
	}
}
