package control

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rallypoint "rallypoint"
	"rallypoint/core/control/standby"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/internal/httpport"
	"rallypoint/internal/printable"
)

var (
	errSuperseded = errors.New("its node has opened a newer connection")
	errSilent     = errors.New("it did not say who it is within " + helloTimeout.String())
	errShed       = errors.New("it did not say who it is, and others wait for its descriptor or its memory")
	errRefused    = errors.New("its hello was refused")
	errNoRoom     = errors.New("a frame of it was refused")
	errServed     = errors.New("it was answered")
	errTCPStore   = errors.New("it is a PyTorch TCPStore client, but this port is the control plane of Rallypoint and no TCPStore: " +
		"start all nodes with --rdzv-backend=rallypoint, and point MASTER_PORT elsewhere")
)

// tcpStoreByte is the first byte of a TCPStore client's connection.
const tcpStoreByte = 0x00

// maxUnsent is the most that a server queues for one connection: room for a few frames of the
// largest size. A node with a longer queue is cut off.
const maxUnsent = 4 * wire.MaxFrame

// drainTime is how long the server still reads from a connection whose end it has announced, so
// that closing it does not make the peer's kernel throw that message away.
const drainTime = time.Second

// serverConn is one connection that a server has accepted. Its goroutine is serve, and
// the outbox's while there is something to write.
type serverConn struct {
	server *Server
	conn   *wire.Conn
	out    *wire.Outbox
	frames wire.FrameReader
	heard  atomic.Int64  // when bytes last came, since the server's start
	sentOn atomic.Bool   // it ends because another server hosts
	gone   chan struct{} // closed when serve has ended; forgetConn comes after that

	silent Stopper // ends a connection that does not say who it is

	// Of serve, while the peer speaks TLS.
	unproven Stopper // ends a connection that does not prove itself; nil: it has
	counted  bool    // among the handshakes' unproven ones
	only     string  // the run that the peer's token opens; "": all
	asked    string  // the run of its hello
	key      string  // fingerprint of the token that the peer has proven to know; "": none

	// Set by serve before its session is bound.
	version byte
	run     *run
	session rendezvous.SessionID
	node    string
	label   string

	arrival   standby.Arrival   // what its hello says of its part in succession
	refusedBy *rendezvous.Error // set while the hello is applied
	unstored  bool              // refused only because it cannot be stored now: the node is known
	passed    atomic.Bool       // the connection is HTTP's: nothing goes through the outbox
	since     time.Time         // when it was accepted

	// Under run.mu.
	uncommitted  int // its requests that may change something and are not applied yet
	suspect      bool
	expiring     bool          // its lease has run out, or it was cut off, which is not applied yet
	proven       time.Duration // when its process was proven dead, unless it was heard since; as heard
	waitingSince time.Time
	lastSent     uint64 // version of the last progress text

	training atomic.Pointer[received] // nil: its node has reported no step
}

// readers are the buffers of connections that have ended.
var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, wire.ReadBuffer) }}

func newServerConn(s *Server, accepted net.Conn) *serverConn {
	conn := wire.NewConn(accepted)
	p := &serverConn{server: s, conn: conn, out: wire.NewOutbox(conn, maxUnsent, &s.metrics.Traffic, s.running), since: s.clock.Now(), gone: make(chan struct{})}
	p.out.CountIn(&s.unsent)
	p.frames.In = readers.Get().(*bufio.Reader)
	p.frames.In.Reset(p)
	p.frames.Short, p.frames.Reserve = wire.FirstChunk, p.reserveUnidentified
	return p
}

// Read reads from the connection and notes that the peer was heard.
func (sc *serverConn) Read(b []byte) (int, error) {
	n, err := sc.conn.Read(b)
	if n > 0 {
		sc.hear()
		sc.server.metrics.BytesIn.Add(uint64(n))
	}
	return n, err
}

func (sc *serverConn) hear() { sc.heard.Store(int64(sc.server.running())) }

func (sc *serverConn) silence() time.Duration {
	return sc.server.running() - time.Duration(sc.heard.Load())
}

// serve is the connection's whole life.
func (sc *serverConn) serve() {
	defer sc.server.forgetConn(sc)
	defer close(sc.gone)
	defer func() {
		sc.frames.Release()
		sc.frames.In.Reset(nil)
		readers.Put(sc.frames.In)
	}()
	sc.silent = sc.server.clock.AfterFunc(helloTimeout, func() { sc.out.Cut(errSilent) })
	defer sc.silent.Stop()
	if said, is := sc.storeClient(); is {
		sc.silent.Stop()
		sc.passed.Store(true)
		sc.server.cfg.TakeStore(sc.conn.NetConn(), said, sc.server.stop)
		return
	}
	first, err := sc.frames.In.Peek(1)
	if err == nil && httpport.BeginsHTTP(sc.frames.In, first[0]) {
		if err := sc.serveHTTP(false); err != nil {
			sc.report(err)
		}
		return
	}
	if err == nil {
		err = sc.handshake(first[0])
	}
	if err == nil {
		err = sc.readFrames()
		sc.run.connectionEnded(sc)
	}
	sc.report(err)
	if !sc.passed.Load() && (errors.Is(err, errRefused) || errors.Is(err, errNoRoom) || errors.Is(err, errServed) || errors.Is(err, errRedirected)) {
		_, _ = io.Copy(io.Discard, sc.frames.In)
	}
	sc.out.Finish()
	<-sc.out.Ended()
	sc.conn.Close()
}

// storeClient reports whether the peer is a client of a round store that shares this port, and
// the bytes that were already read from it; none from a plain connection.
func (sc *serverConn) storeClient() (said []byte, is bool) {
	if sc.server.cfg.TakeStore == nil {
		return nil, false
	}
	first, err := wire.PeekFirst(sc.conn.NetConn())
	switch {
	case err != nil: // as the next read finds
		return nil, false
	case first == tcpStoreByte:
		return nil, true
	case first != wire.TLSByte || sc.server.handshakes == nil || sc.awaitHello() != nil:
		return nil, false
	}
	hello, _ := sc.frames.In.Peek(sc.frames.In.Buffered())
	if !secret.AsksForStore(hello) {
		return nil, false
	}
	return bytes.Clone(hello), true
}

// end makes serve return soon, after the queue was written.
func (sc *serverConn) end() {
	if sc.passed.Load() {
		sc.conn.Close()
		return
	}
	sc.out.Finish()
	sc.conn.SetReadDeadline(time.Now())
}

// drain ends the sending side and lets serve read on for a while.
func (sc *serverConn) drain() {
	sc.server.strangers.add(sc)
	sc.out.Finish()
	sc.conn.SetReadDeadline(time.Now().Add(drainTime))
}

// handshake reads the preamble and the hello; nil means that the session is
// bound.
func (sc *serverConn) handshake(first byte) error {
	defer sc.endProof()
	first, err := sc.secure(first)
	if err != nil {
		return err
	}
	switch first {
	case secret.Magic[0]:
	case tcpStoreByte:
		return errTCPStore
	case wire.TLSByte:
		return sc.refuseTLS()
	default:
		opening, _ := sc.frames.In.Peek(sc.frames.In.Buffered())
		_, err := secret.ParsePreamble(opening)
		return fmt.Errorf("%w: %w", wire.ErrMalformed, err)
	}
	start, err := sc.frames.In.Peek(wire.PreambleLen)
	if err != nil {
		return fmt.Errorf("it began with %s and no more: %w", secret.HexStart(start), wire.NoEOF(err))
	}
	theirs, err := secret.ParsePreamble(start)
	if err != nil {
		return fmt.Errorf("%w: %w", wire.ErrMalformed, err)
	}
	_, _ = sc.frames.In.Discard(wire.PreambleLen)
	version, ok := wire.Negotiate(theirs)
	ours := wire.Preamble{High: version, Low: wire.OldestVersion, Token: sc.server.cfg.Token != nil}
	sc.out.Hold(ours.Bytes())
	if ours.Token || theirs.Token {
		if err := sc.authenticate(theirs, ours); err != nil {
			return err
		}
	}
	if !ok {
		return sc.refuse(rendezvous.Errorf(rendezvous.CodeState,
			"the control plane at %s (%s, version %s) speaks the protocol versions %d to %d, this node %d to %d: use the same release everywhere",
			sc.server.Addr(), sc.server.process, rallypoint.Version(), wire.OldestVersion, wire.ProtocolVersion, theirs.Low, theirs.High))
	}
	sc.version = version
	if ours.Token {
		if next, _ := sc.frames.In.Peek(1); len(next) == 1 && httpport.BeginsHTTP(sc.frames.In, next[0]) {
			return sc.turnToHTTP()
		}
	}
	f, err := sc.frames.NextFrame(wire.MaxHelloFrame)
	sc.silent.Stop()
	sc.server.strangers.drop(sc)
	if err != nil {
		return wire.NoEOF(err)
	}
	return sc.dispatch(f)
}

// dispatch serves a connection by its first frame.
func (sc *serverConn) dispatch(f wire.Frame) error {
	sc.server.metrics.FramesIn.Count(f)
	switch f := f.(type) {
	case wire.Hello:
		if err := sc.foreign(f.RunID); err != nil {
			return sc.refuse(err)
		}
		return sc.enter(f)
	case wire.Admin:
		if err := sc.foreign(f.RunID); err != nil {
			sc.out.Send(wire.AdminAnswer{Err: err})
			sc.drain()
			return errServed
		}
		switch to, hosts, err := sc.server.awaitHost(context.Background(), f.RunID); {
		case err != nil:
			return err
		case !hosts:
			sc.out.Send(to)
		default:
			sc.out.Send(sc.server.executeAdmin(f, wire.AddrOf(sc.conn.RemoteAddr())))
		}
		sc.drain()
		return errServed
	case wire.Probe:
		if err := sc.foreign(f.RunID); err != nil {
			return sc.refuse(err)
		}
		return sc.probed(f)
	case wire.Liveness:
		run := f.RunID
		if sc.server.cfg.Peers != nil { // it is for all runs, though a run may be called like that
			run = ""
		}
		if err := sc.foreign(run); err != nil {
			return sc.refuse(err)
		}
		return sc.liveness(f)
	}
	return fmt.Errorf("%w: a frame %q before the hello", wire.ErrMalformed, wire.NameOf(f))
}

// foreign refuses a request about another run than the one that the peer's token opens.
func (sc *serverConn) foreign(run string) *rendezvous.Error {
	if sc.only == "" || run == sc.only {
		return nil
	}
	return rendezvous.Errorf(rendezvous.CodeAuth, "authentication failed: the token opens run %q only, not %q", printable.Text(sc.only), printable.Text(run))
}

// turnToHTTP answers a request on a connection that has proven itself.
func (sc *serverConn) turnToHTTP() error {
	sc.out.FinishKeeping()
	<-sc.out.Ended()
	if err := sc.serveHTTP(true); err != nil {
		return err
	}
	return errServed
}

// serveHTTP reads a request and answers it. It closes the connection. A peer that has proven
// nothing stays among those that have not identified themselves: each request would keep a
// descriptor for drainTime otherwise, and nothing bounds how many there are.
func (sc *serverConn) serveHTTP(proven bool) error {
	head, err := httpport.ReadHead(sc.frames.In)
	sc.silent.Stop()
	if proven {
		sc.server.strangers.drop(sc)
	}
	sc.passed.Store(true)
	if err != nil {
		if errors.Is(err, httpport.ErrLongHead) {
			sc.server.http.Refuse(sc.conn, http.StatusRequestHeaderFieldsTooLarge)
		}
		sc.conn.Close()
		return wire.NoEOF(err)
	}
	ctx := context.WithValue(sc.server.asking, requesterKey{}, requester{sc.conn, proven, sc.only})
	if err = sc.server.http.Serve(ctx, sc.conn, head); errors.Is(err, os.ErrDeadlineExceeded) {
		return wire.ErrStuck
	}
	return err
}

// reserveUnidentified counts the memory of a frame that comes before the peer is known.
func (sc *serverConn) reserveUnidentified(by int) error {
	if s := sc.server; s.strangers.hold(sc, int64(by)) > s.cfg.maxUnidentifiedBytes {
		for _, p := range s.strangers.oldest(s.cfg.maxUnidentifiedBytes / 2) {
			p.out.Cut(errShed)
		}
	}
	return nil
}

// enter brings the node to its run.
func (sc *serverConn) enter(h wire.Hello) error {
	if h.Session == "" || h.Node == "" {
		return sc.refuse(rendezvous.Errorf(rendezvous.CodeInvalid, "a hello without a session id or node id"))
	}
	ev := rendezvous.Hello{
		Session: h.Session, Node: h.Node, Incarnation: h.Incarnation, Named: h.Named, Label: h.Label, HostName: h.HostName, Topology: h.Topology, Command: h.Command,
		Policy: h.Policy, LastRound: h.LastRound, InHost: h.InHost && (sc.server.cfg.HostNode == "" || h.Node == sc.server.cfg.HostNode),
		SeenAddr: wire.AddrOf(sc.conn.RemoteAddr()), ServerAddr: wire.AddrOf(sc.conn.LocalAddr()), BeginAgain: h.BeginAgain,
	}
	sc.asked, sc.session, sc.node, sc.label = h.RunID, h.Session, h.Node, printable.Text(h.Label)
	sc.noteFollows(h)
	for {
		if err := sc.admit(h); err != nil {
			return err
		}
		if wire.EndedByPeer(sc.conn) {
			return errServed // it has waited for too long, and its node has another connection by now
		}
		r, refusal := sc.server.runFor(h.RunID, sc.from())
		if refusal != nil {
			return sc.refuse(refusal)
		}
		if r == nil && sc.server.ending() {
			return net.ErrClosed
		}
		if r == nil {
			continue // it stepped down meanwhile
		}
		if !r.hello(sc, ev) {
			continue // the run was forgotten meanwhile: ask for it again
		}
		if sc.unstored {
			return fmt.Errorf("%w: %w", errNotStored, sc.refusedBy)
		}
		if sc.refusedBy != nil {
			sc.server.discard(r)
			return sc.refuse(sc.refusedBy)
		}
		sc.run = r
		sc.frames.Short, sc.frames.Reserve = 0, sc.reserve
		return nil
	}
}

// reserve counts the memory of an incoming frame. A node for which its run has no room is cut
// off.
func (sc *serverConn) reserve(by int) error {
	r := sc.run
	if by > 0 {
		r.mu.Lock()
		text := r.overBytesLocked(int64(by))
		r.mu.Unlock()
		if text != "" {
			err := rendezvous.Errorf(rendezvous.CodeTooLarge, "%s", text)
			sc.out.Send(wire.Drop{Err: err})
			sc.drain()
			return fmt.Errorf("%w: %w", errNoRoom, err)
		}
	}
	r.arriving.Add(int64(by))
	r.server.arriving.Add(int64(by))
	return nil
}

// from is the peer's address; the zero one if it has none.
func (sc *serverConn) from() netip.Addr {
	if a, ok := sc.conn.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr()
	}
	return netip.Addr{}
}

// refuse answers the hello with an error.
func (sc *serverConn) refuse(err *rendezvous.Error) error {
	f := wire.Refuse{Err: err}
	if e := sc.server.cfg.Elector; e != nil {
		f.Group = e.Current().Group
	}
	sc.out.Send(f)
	sc.drain()
	return fmt.Errorf("%w: %w", errRefused, err)
}

// report writes the one log line about a connection's end.
func (sc *serverConn) report(err error) {
	level, text := slog.LevelWarn, "closed a connection"
	err = cmp.Or(sc.out.Cause(), err)
	why, reason := refusalOf(err, sc.run != nil), err
	switch {
	case errors.Is(err, wire.ErrSlow), errors.Is(err, wire.ErrStuck), errors.Is(err, errSilent), errors.Is(err, errShed), errors.Is(err, errUnproven), errors.Is(err, errTLS):
	case errors.Is(err, errRefused):
		sc.noteRefused(err)
		text, reason = "refused a node: "+strings.TrimPrefix(err.Error(), errRefused.Error()+": "), nil
	case err == nil, errors.Is(err, errServed), errors.Is(err, errRedirected), errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrDeadlineExceeded):
		level, text = slog.LevelDebug, "a connection ended"
	case sc.run != nil && !errors.Is(err, wire.ErrMalformed):
		level, text = slog.LevelInfo, "a node's connection broke"
		if sc.server.cfg.Node != nil { // that node logs it once the other is lost
			level = slog.LevelDebug
		}
	case err == io.EOF: // a probe of the port
		level, text = slog.LevelDebug, "a connection ended without a word"
	}
	attrs := []slog.Attr{slog.String("address", sc.conn.RemoteAddr().String())}
	if sc.node != "" {
		attrs = append(attrs, slog.String("node", sc.node))
	}
	if reason != nil {
		attrs = append(attrs, slog.String("reason", reason.Error()))
	}
	if why != refusedNothing && !sc.server.sampleRefusal(why, sc.conn.RemoteAddr(), sc.node) {
		return
	}
	log := sc.server.log
	if sc.run != nil {
		log = sc.run.log
	}
	log.LogAttrs(context.Background(), level, text, attrs...)
}

// welcomeLocked answers the hello.
func (sc *serverConn) welcomeLocked(w rendezvous.Welcome, lease time.Duration) {
	wire.SetUserTimeout(sc.conn, lease)
	answer := wire.Welcome{
		Version: uint64(sc.version), Features: []string{wire.FeatureEcho, wire.FeatureSegments}, Software: rallypoint.Version(), Server: sc.server.id,
		SeenAddr: wire.AddrOf(sc.conn.RemoteAddr()), Lease: int64(lease), Resumed: w.Resumed, Notice: w.Update,
		Embedded: sc.server.cfg.RunID != "",
	}
	if e := sc.server.cfg.Elector; e != nil {
		to := e.Current()
		answer.Features = append(answer.Features, wire.FeatureSuccession)
		answer.Group, answer.Term, answer.HostNode, answer.Servers = to.Group, to.Term, to.Node, to.Servers
		answer.Addr = localAddr(sc.conn)
		if sc.server.cfg.Peers != nil {
			answer.Servers = append(answer.Servers, answer.Addr)
		}
	}
	sc.out.Send(answer)
}

// readFrames serves the node until its connection ends. It stops reading while the node does not
// read its answers.
func (sc *serverConn) readFrames() error {
	for {
		if sc.out.AwaitDrained() {
			sc.hear() // the server did not read meanwhile
		}
		f, err := sc.frames.NextFrame(wire.MaxFrame)
		if err != nil {
			return err
		}
		sc.server.metrics.FramesIn.Count(f)
		switch f := f.(type) {
		case wire.Request:
			sc.server.metrics.request(f)
			sc.run.request(sc, f)
		case wire.Beat:
			sc.run.reportTraining(sc, f.Training)
			if f.Echo {
				sc.out.Send(wire.Beat{})
			}
		case wire.Standby:
			sc.run.standbyListens(sc, f)
		case wire.Transfer:
			sc.server.transferred(sc, f)
		case wire.Unknown:
		case wire.Goodbye:
			return nil
		default:
			return fmt.Errorf("%w: a frame %q from a node", wire.ErrMalformed, wire.NameOf(f))
		}
	}
}

// refusalOf tells why a connection that has ended with err was refused; greeted
// tells that its hello was accepted. A peer that breaks off before that
// has not said enough to be let in.
func refusalOf(err error, greeted bool) refusal {
	var e *rendezvous.Error
	switch {
	case err == nil, err == io.EOF:
		return refusedNothing
	case errors.Is(err, errTCPStore):
		return refusedTCPStore
	case errors.Is(err, errTLS):
		return refusedTLS
	case errors.Is(err, errHandshakes):
		return refusedHandshakes
	case errors.Is(err, secret.ErrForeign):
		return refusedForeign
	case errors.Is(err, wire.ErrMalformed):
		return refusedMalformed
	case errors.Is(err, errSilent), errors.Is(err, errShed), errors.Is(err, errUnproven):
		return refusedSilent
	case errors.Is(err, errHandshake):
		return refusedHandshake
	case errors.Is(err, errNoRoom):
		return refusedQuota
	case errors.Is(err, wire.ErrSlow), errors.Is(err, wire.ErrStuck):
		return refusedSlow
	case errors.Is(err, httpport.ErrCrowded):
		return refusedHTTP
	case errors.Is(err, errNotStored):
		return refusedUnstored
	case errors.Is(err, errRefused) && errors.As(err, &e):
		return cmp.Or(refusalsOfHello[e.Code], refusedHello)
	case greeted, errors.Is(err, errRefused), errors.Is(err, errServed), errors.Is(err, errRedirected), errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrDeadlineExceeded):
		return refusedNothing
	}
	return refusedIncomplete
}

// refusalsOfHello are why hellos are refused, by the code of the answer; of any other code it is
// refusedHello.
var refusalsOfHello = map[rendezvous.Code]refusal{
	rendezvous.CodeAuth:       refusedAuth,
	rendezvous.CodeState:      refusedVersion,
	rendezvous.CodeMismatch:   refusedMismatch,
	rendezvous.CodeTenant:     refusedOtherRun,
	rendezvous.CodeNodeInUse:  refusedNodeInUse,
	rendezvous.CodeTooLarge:   refusedQuota,
	rendezvous.CodeConnection: refusedUnstored,
	rendezvous.CodeGraceful:   refusedDrained,
	rendezvous.CodeUnfit:      refusedDrained,
}

func (s *Server) forgetConn(p *serverConn) {
	s.strangers.drop(p)
	s.mu.Lock()
	delete(s.conns, p)
	s.mu.Unlock()
}
