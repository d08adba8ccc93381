package control

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	rallypoint "rallypoint"
	"rallypoint/core/control/standby"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/printable"
)

var (
	errSuperseded = errors.New("its node has opened a newer connection")
	errSilent     = errors.New("it did not say who it is within " + helloTimeout.String())
	errShed       = errors.New("it did not say who it is, and others wait for want of descriptors")
	errRefused    = errors.New("its hello was refused")
	errNoRoom     = errors.New("a frame of it was refused")
	errServed     = errors.New("it was answered")
	errTCPStore   = errors.New("it is a PyTorch TCPStore client, but this port is the control plane of Rallypoint and no TCPStore: " +
		"start all nodes with --rdzv-backend=rallypoint, and point MASTER_PORT elsewhere")
)

// maxUnsent bounds what a server holds for one connection: room for a few frames
// of the largest size. A node for which there is more to say is cut off.
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
	key      string  // fingerprint of the token that the peer has proven to know; "": none

	// Set by serve before its session is bound.
	version byte
	run     *run
	session rendezvous.SessionID
	node    string
	label   string

	arrival      standby.Arrival   // what its hello says of its part in succession
	refusedBy    *rendezvous.Error // set while the hello is applied
	unstored     bool              // refused only because it cannot be stored now: the node is known
	passed       atomic.Bool       // the connection is HTTP's: nothing goes through the outbox
	unidentified atomic.Bool       // it has not said who it is or what it wants, or was refused
	since        time.Time         // when it was accepted

	// Under run.mu.
	uncommitted  int // its requests that may change something and are not applied yet
	suspect      bool
	expiring     bool // its lease has run out, or it was cut off, which is not applied yet
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
	return p
}

// Read reads from the connection and notes that the peer was heard.
func (p *serverConn) Read(b []byte) (int, error) {
	n, err := p.conn.Read(b)
	if n > 0 {
		p.hear()
		p.server.metrics.BytesIn.Add(uint64(n))
	}
	return n, err
}

func (p *serverConn) hear() { p.heard.Store(int64(p.server.running())) }

func (p *serverConn) silence() time.Duration {
	return p.server.running() - time.Duration(p.heard.Load())
}

// serve is the connection's whole life.
func (p *serverConn) serve() {
	defer p.server.forgetConn(p)
	defer close(p.gone)
	defer func() {
		p.frames.Release()
		p.frames.In.Reset(nil)
		readers.Put(p.frames.In)
	}()
	p.silent = p.server.clock.AfterFunc(helloTimeout, func() { p.out.Cut(errSilent) })
	defer p.silent.Stop()
	first, err := p.frames.In.Peek(1)
	if err == nil && beginsHTTP(p.frames.In, first[0]) {
		if err := p.serveHTTP(false); err != nil {
			p.report(err)
		}
		return
	}
	if err == nil {
		err = p.handshake(first[0])
	}
	if err == nil {
		err = p.readFrames()
		p.run.connectionEnded(p)
	}
	p.report(err)
	if !p.passed.Load() && (errors.Is(err, errRefused) || errors.Is(err, errNoRoom) || errors.Is(err, errServed) || errors.Is(err, errRedirected)) {
		_, _ = io.Copy(io.Discard, p.frames.In)
	}
	p.out.Finish()
	<-p.out.Ended()
	p.conn.Close()
}

// end makes serve return soon, after what is queued was written.
func (p *serverConn) end() {
	if p.passed.Load() {
		p.conn.Close()
		return
	}
	p.out.Finish()
	p.conn.SetReadDeadline(time.Now())
}

// drain ends the sending side and lets serve read on for a while.
func (p *serverConn) drain() {
	p.markUnidentified()
	p.out.Finish()
	p.conn.SetReadDeadline(time.Now().Add(drainTime))
}

// handshake reads the preamble and the hello; nil means that the session is
// bound.
func (p *serverConn) handshake(first byte) error {
	defer p.endProof()
	first, err := p.secure(first)
	if err != nil {
		return err
	}
	switch first {
	case wire.Magic[0]:
	case 0x00:
		return errTCPStore
	case wire.TLSByte:
		return p.refuseTLS()
	default:
		opening, _ := p.frames.In.Peek(p.frames.In.Buffered())
		_, err := wire.ParsePreamble(opening)
		return fmt.Errorf("%w: %w", wire.ErrMalformed, err)
	}
	start, err := p.frames.In.Peek(wire.PreambleLen)
	if err != nil {
		return fmt.Errorf("it began with %s and no more: %w", wire.HexStart(start), wire.NoEOF(err))
	}
	theirs, err := wire.ParsePreamble(start)
	if err != nil {
		return fmt.Errorf("%w: %w", wire.ErrMalformed, err)
	}
	_, _ = p.frames.In.Discard(wire.PreambleLen)
	version, ok := wire.Negotiate(theirs)
	ours := wire.Preamble{High: version, Low: wire.OldestVersion, Token: p.server.cfg.Token != nil}
	p.out.Hold(ours.Bytes())
	if ours.Token || theirs.Token {
		if err := p.authenticate(theirs, ours); err != nil {
			return err
		}
	}
	if !ok {
		return p.refuse(rendezvous.Errorf(rendezvous.CodeState,
			"the control plane at %s (%s, version %s) speaks the protocol versions %d to %d, this node %d to %d: use the same release everywhere",
			p.server.Addr(), p.server.process, rallypoint.Version(), wire.OldestVersion, wire.ProtocolVersion, theirs.Low, theirs.High))
	}
	p.version = version
	if ours.Token {
		if next, _ := p.frames.In.Peek(1); len(next) == 1 && beginsHTTP(p.frames.In, next[0]) {
			return p.turnToHTTP()
		}
	}
	f, err := p.frames.NextFrame(wire.MaxHelloFrame)
	p.identified()
	if err != nil {
		return wire.NoEOF(err)
	}
	return p.dispatch(f)
}

// dispatch serves a connection by its first frame.
func (p *serverConn) dispatch(f wire.Frame) error {
	switch f := f.(type) {
	case wire.Hello:
		p.server.metrics.FramesIn.Add(wire.KindHello)
		if err := p.foreign(f.RunID); err != nil {
			return p.refuse(err)
		}
		return p.enter(f)
	case wire.Admin:
		p.server.metrics.FramesIn.Add(wire.KindAdmin)
		to, waits := p.server.waitsFor(f.RunID)
		switch err := p.foreign(f.RunID); {
		case err != nil:
			p.out.Send(wire.AdminAnswer{Err: err})
		case waits:
			p.out.Send(to)
		default:
			p.out.Send(p.server.executeAdmin(f, wire.AddrOf(p.conn.RemoteAddr())))
		}
		p.drain()
		return errServed
	case wire.Probe:
		p.server.metrics.FramesIn.Add(wire.KindProbe)
		if err := p.foreign(f.RunID); err != nil {
			return p.refuse(err)
		}
		return p.probed(f)
	case wire.Liveness:
		p.server.metrics.FramesIn.Add(wire.KindLiveness)
		if err := p.foreign(f.RunID); err != nil {
			return p.refuse(err)
		}
		return p.liveness(f)
	}
	return fmt.Errorf("%w: a frame %q before the hello", wire.ErrMalformed, wire.NameOf(f))
}

// foreign refuses what a peer wants of another run than the one that its token opens.
func (p *serverConn) foreign(run string) *rendezvous.Error {
	if p.only == "" || run == p.only {
		return nil
	}
	return rendezvous.Errorf(rendezvous.CodeAuth, "authentication failed: the token opens run %q only, not %q", printable.Text(p.only), printable.Text(run))
}

// turnToHTTP answers a request on a connection that has proven itself.
func (p *serverConn) turnToHTTP() error {
	p.out.FinishKeeping()
	<-p.out.Ended()
	if err := p.serveHTTP(true); err != nil {
		return err
	}
	return errServed
}

// serveHTTP reads a request and answers it. It closes the connection. Who has proven nothing
// stays among those that have not said who they are: each request would keep a descriptor for
// drainTime otherwise, and nothing bounds how many there are.
func (p *serverConn) serveHTTP(proven bool) error {
	head, err := readHead(p.frames.In)
	p.silent.Stop()
	if proven {
		p.markIdentified()
	}
	p.passed.Store(true)
	if err != nil {
		if errors.Is(err, errLongHead) {
			p.server.http.refuse(p.conn, http.StatusRequestHeaderFieldsTooLarge)
		}
		p.conn.Close()
		return err
	}
	return p.server.http.serve(p.conn, head, proven, p.only)
}

// identified notes that the peer has said who it is, or what it wants.
func (p *serverConn) identified() {
	p.silent.Stop()
	p.markIdentified()
}

// markIdentified and markUnidentified count the connections whose peer has not said who
// it is; shed ends those first.
func (p *serverConn) markIdentified() {
	if p.unidentified.Swap(false) {
		p.server.unidentified.Add(-1)
	}
}

func (p *serverConn) markUnidentified() {
	if !p.unidentified.Swap(true) {
		p.server.unidentified.Add(1)
	}
}

// enter brings the node to its run.
func (p *serverConn) enter(h wire.Hello) error {
	if h.Session == "" || h.Node == "" {
		return p.refuse(rendezvous.Errorf(rendezvous.CodeInvalid, "a hello without a session id or node id"))
	}
	ev := rendezvous.Hello{
		Session: h.Session, Node: h.Node, Incarnation: h.Incarnation, Named: h.Named, Label: h.Label,
		Policy: h.Policy, LastRound: h.Claim, InHost: h.InHost && (p.server.cfg.HostNode == "" || h.Node == p.server.cfg.HostNode),
		SeenAddr: wire.AddrOf(p.conn.RemoteAddr()), ServerAddr: wire.AddrOf(p.conn.LocalAddr()), BeginAgain: h.BeginAgain,
	}
	p.session, p.node, p.label = h.Session, h.Node, printable.Text(h.Label)
	p.noteFollows(h)
	for {
		if err := p.admit(h); err != nil {
			return err
		}
		r, refusal := p.server.runFor(h.RunID, p.from())
		if refusal != nil {
			return p.refuse(refusal)
		}
		if r == nil && p.server.ending() {
			return net.ErrClosed
		}
		if r == nil {
			continue // it stepped down meanwhile
		}
		if !r.hello(p, ev) {
			continue // the run was forgotten meanwhile: ask for it again
		}
		if p.unstored {
			return fmt.Errorf("%w: %w", errNotStored, p.refusedBy)
		}
		if p.refusedBy != nil {
			p.server.discard(r)
			return p.refuse(p.refusedBy)
		}
		p.run = r
		p.frames.Reserve = p.reserve
		return nil
	}
}

// reserve counts what a frame takes that is coming in. A node that its run has no room for is
// cut off.
func (p *serverConn) reserve(by int) error {
	r := p.run
	if by > 0 {
		r.mu.Lock()
		text := r.overBytes(int64(by))
		r.mu.Unlock()
		if text != "" {
			err := rendezvous.Errorf(rendezvous.CodeTooLarge, "%s", text)
			p.out.Send(wire.Drop{Err: err})
			p.drain()
			return fmt.Errorf("%w: %w", errNoRoom, err)
		}
	}
	r.arriving.Add(int64(by))
	r.server.arriving.Add(int64(by))
	return nil
}

// from is the peer's address; the zero one if it has none.
func (p *serverConn) from() netip.Addr {
	if a, ok := p.conn.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr()
	}
	return netip.Addr{}
}

// refuse answers the hello with an error.
func (p *serverConn) refuse(err *rendezvous.Error) error {
	p.out.Send(wire.Refuse{Err: err})
	p.drain()
	return fmt.Errorf("%w: %w", errRefused, err)
}

// report writes the one log line about a connection's end.
func (p *serverConn) report(err error) {
	level, text := slog.LevelWarn, "closed a connection"
	if cause := p.out.Cause(); cause != nil {
		err = cause
	}
	why := refusalOf(err, p.run != nil)
	switch {
	case errors.Is(err, wire.ErrSlow), errors.Is(err, wire.ErrStuck), errors.Is(err, errSilent), errors.Is(err, errShed), errors.Is(err, errUnproven), errors.Is(err, errTLS):
	case errors.Is(err, errRefused):
		text = "refused a node"
	case err == nil, errors.Is(err, errServed), errors.Is(err, errRedirected), errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrDeadlineExceeded):
		level, text = slog.LevelDebug, "a connection ended"
	case p.run != nil && !errors.Is(err, wire.ErrMalformed):
		level, text = slog.LevelInfo, "a node's connection broke"
	case err == io.EOF: // a probe of the port
		level, text = slog.LevelDebug, "a connection ended without a word"
	}
	attrs := []slog.Attr{slog.String("address", p.conn.RemoteAddr().String())}
	if p.node != "" {
		attrs = append(attrs, slog.String("node", p.node))
	}
	if err != nil {
		attrs = append(attrs, slog.String("reason", err.Error()))
	}
	if why != refusedNothing && !p.server.sampleRefusal(why, p.conn.RemoteAddr(), p.node) {
		return
	}
	log := p.server.log
	if p.run != nil {
		log = p.run.log
	}
	log.LogAttrs(context.Background(), level, text, attrs...)
}

// welcome answers the hello; run.mu is held.
func (p *serverConn) welcome(w rendezvous.Welcome, lease time.Duration) {
	wire.SetUserTimeout(p.conn, lease)
	answer := wire.Welcome{
		Version: uint64(p.version), Features: []string{wire.FeatureEcho}, Software: rallypoint.Version(), Server: p.server.id,
		SeenAddr: wire.AddrOf(p.conn.RemoteAddr()), Lease: int64(lease), Resumed: w.Resumed, Notice: w.Update,
		Embedded: p.server.cfg.RunID != "",
	}
	if g := p.server.cfg.Group; g != nil {
		to := g.Current()
		answer.Features = append(answer.Features, wire.FeatureSuccession)
		answer.Group, answer.Term, answer.HostNode, answer.Servers = to.Group, to.Term, to.Node, to.Servers
		answer.Addr = localAddr(p.conn)
	}
	p.out.Send(answer)
}

// readFrames serves the node until its connection ends. It reads nothing more
// while the node does not read what it has been answered.
func (p *serverConn) readFrames() error {
	for {
		if p.out.AwaitDrained() {
			p.hear() // the server did not read meanwhile
		}
		f, err := p.frames.NextFrame(wire.MaxFrame)
		if err != nil {
			return err
		}
		in := &p.server.metrics.FramesIn
		switch f := f.(type) {
		case wire.Request:
			in.Add(wire.KindRequest)
			p.server.metrics.request(f)
			p.run.request(p, f)
		case wire.Beat:
			in.Add(wire.KindBeat)
			if f.Training != nil {
				p.run.reportTraining(p, f.Training)
			}
			if f.Echo {
				p.out.Send(wire.Beat{})
			}
		case wire.Standby:
			in.Add(wire.KindStandby)
			p.run.standbyListens(p, f)
		case wire.Transfer:
			in.Add(wire.KindTransfer)
			p.server.transferred(p, f)
		case wire.Unknown:
			in.Add(0)
		case wire.Goodbye:
			in.Add(wire.KindGoodbye)
			return nil
		default:
			return fmt.Errorf("%w: a frame %q from a node", wire.ErrMalformed, wire.NameOf(f))
		}
	}
}
