package control

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	rallypoint "rallypoint"
	"rallypoint/core/rendezvous"
)

var (
	errSuperseded = errors.New("its node has opened a newer connection")
	errSilent     = errors.New("it did not say who it is within " + helloTimeout.String())
	errShed       = errors.New("it did not say who it is, and others wait for want of descriptors")
	errRefused    = errors.New("its hello was refused")
	errServed     = errors.New("it was answered")
	errTLS        = errors.New("TLS is not supported yet")
	errTCPStore   = errors.New("it is a PyTorch TCPStore client, but this port is the control plane of Rallypoint and no TCPStore: " +
		"start all nodes with --rdzv-backend=rallypoint, and point MASTER_PORT elsewhere")
)

// maxUnsent bounds what a server holds for one connection: room for a few frames
// of the largest size. A node for which there is more to say is cut off.
const maxUnsent = 4 * maxFrame

// drainTime is how long a connection that was told its end is still read, so
// that closing it does not make the peer's kernel throw that message away.
const drainTime = time.Second

// peer is one connection that a server has accepted. Its goroutine is serve, and
// once the peer has turned out to speak our protocol, the outbox's.
type peer struct {
	server *Server
	conn   net.Conn
	out    *outbox
	frames frameReader
	heard  atomic.Int64  // when bytes last came, since the server's start
	wrote  chan struct{} // closed when the outbox's goroutine has ended; nil: none runs

	silent Stopper // ends a connection that does not say who it is

	// Set by serve before its session is attached.
	version byte
	run     *run
	session rendezvous.SessionID
	node    string
	label   string

	refusedBy *rendezvous.Error // set while the hello is applied
	unstored  bool              // refused only because it cannot be stored now: the node is known
	passed    atomic.Bool       // the connection is HTTP's: nothing goes through the outbox
	stranger  atomic.Bool       // it has not said who it is or what it wants, or was refused
	since     time.Time         // when it was accepted

	// Under run.mu.
	uncommitted  int // its requests that may change something and are not applied yet
	suspect      bool
	expiring     bool // its lease has run out, or it was cut off, which is not applied yet
	waitingSince time.Time
	told         uint64 // version of the last progress text
}

// readers are the buffers of connections that have ended: strangers come and go.
var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, readBuffer) }}

func newPeer(s *Server, conn net.Conn) *peer {
	p := &peer{server: s, conn: conn, out: newOutbox(conn, maxUnsent, &s.meters.traffic, s.running), since: s.clock.Now()}
	p.frames.in = readers.Get().(*bufio.Reader)
	p.frames.in.Reset(p)
	return p
}

// Read reads from the connection and notes that the peer was heard.
func (p *peer) Read(b []byte) (int, error) {
	n, err := p.conn.Read(b)
	if n > 0 {
		p.hear()
		p.server.meters.bytesIn.Add(uint64(n))
	}
	return n, err
}

func (p *peer) hear() { p.heard.Store(int64(p.server.running())) }

func (p *peer) silence() time.Duration {
	return p.server.running() - time.Duration(p.heard.Load())
}

// serve is the connection's whole life.
func (p *peer) serve() {
	defer p.server.forgetPeer(p)
	defer func() {
		p.frames.in.Reset(nil)
		readers.Put(p.frames.in)
	}()
	p.silent = p.server.clock.AfterFunc(helloTimeout, func() { p.out.cut(errSilent) })
	defer p.silent.Stop()
	first, err := p.frames.in.Peek(1)
	if err == nil && first[0] == 'G' {
		if more, _ := p.frames.in.Peek(4); bytes.Equal(more, []byte("GET ")) {
			if err := p.serveHTTP(false); err != nil {
				p.report(err)
			}
			return
		}
	}
	if err == nil {
		err = p.greet(first[0])
	}
	if err == nil {
		err = p.readFrames()
		p.run.disconnect(p)
	}
	p.report(err)
	if !p.passed.Load() && (errors.Is(err, errRefused) || errors.Is(err, errServed)) {
		_, _ = io.Copy(io.Discard, p.frames.in)
	}
	p.out.finish()
	if p.wrote != nil {
		<-p.wrote
	}
	p.conn.Close()
}

// end makes serve return soon, after what is queued was written.
func (p *peer) end() {
	if p.passed.Load() {
		p.conn.Close()
		return
	}
	p.out.finish()
	p.conn.SetReadDeadline(time.Now())
}

// drain ends the sending side and lets serve read on for a while.
func (p *peer) drain() {
	p.estrange()
	p.out.finish()
	p.conn.SetReadDeadline(time.Now().Add(drainTime))
}

// greet reads the preamble and the hello; nil means that the session is
// attached.
func (p *peer) greet(first byte) error {
	switch first {
	case magic[0]:
	case 0x00:
		return errTCPStore
	case 0x16:
		return errTLS
	default:
		opening, _ := p.frames.in.Peek(p.frames.in.Buffered())
		_, err := parsePreamble(opening)
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	start, err := p.frames.in.Peek(preambleLen)
	if err != nil {
		return fmt.Errorf("it began with %s and no more: %w", hexStart(start), noEOF(err))
	}
	theirs, err := parsePreamble(start)
	if err != nil {
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	_, _ = p.frames.in.Discard(preambleLen)
	p.startWriter()
	version, ok := negotiate(theirs)
	ours := preamble{high: version, low: oldestVersion, token: p.server.cfg.Token != nil}
	p.out.hold(ours.bytes())
	if ours.token || theirs.token {
		if err := p.authenticate(opening{node: theirs, server: ours}); err != nil {
			return err
		}
	}
	if !ok {
		return p.refuse(rendezvous.Errorf(rendezvous.CodeState,
			"the control plane at %s (%s, version %s) speaks the protocol versions %d to %d, this node %d to %d: use the same release everywhere",
			p.server.Addr(), p.server.process, rallypoint.Version(), oldestVersion, ProtocolVersion, theirs.low, theirs.high))
	}
	p.version = version
	if ours.token {
		if more, _ := p.frames.in.Peek(4); bytes.Equal(more, []byte("GET ")) {
			return p.turnToHTTP()
		}
	}
	f, err := p.frames.nextFrame(maxHelloFrame)
	p.introduced()
	if err != nil {
		return noEOF(err)
	}
	switch f := f.(type) {
	case hello:
		p.server.meters.framesIn.add(kindHello)
		return p.enter(f)
	case admin:
		p.server.meters.framesIn.add(kindAdmin)
		p.out.send(p.server.administer(f, addrOf(p.conn.RemoteAddr())))
		p.drain()
		return errServed
	}
	return fmt.Errorf("%w: a %T before the hello", errMalformed, f)
}

// authenticate lets the peer prove that it knows the token, and proves it to the
// peer. Who cannot is told nothing but that.
func (p *peer) authenticate(o opening) error {
	denied := func(why string) error {
		p.out.send(refuse{errAuth})
		p.drain()
		return fmt.Errorf("%w: %w: %s", errRefused, errAuth, why)
	}
	token := p.server.cfg.Token
	switch {
	case token == nil:
		return denied("it has a token, but this control plane has none")
	case !o.node.token:
		return denied("it has no token")
	}
	first, err := p.frames.nextFrame(maxProofFrame)
	if err != nil {
		return noEOF(err)
	}
	theirs, ok := first.(challenge)
	if !ok {
		return fmt.Errorf("%w: a %T before the challenge", errMalformed, first)
	}
	p.server.meters.framesIn.add(kindChallenge)
	o.nodeNonce, o.serverNonce = theirs.Nonce, newNonce()
	p.out.send(challenge{o.serverNonce})
	second, err := p.frames.nextFrame(maxProofFrame)
	if err != nil {
		return noEOF(err)
	}
	proven, ok := second.(proof)
	if !ok {
		return fmt.Errorf("%w: a %T before the proof", errMalformed, second)
	}
	p.server.meters.framesIn.add(kindProof)
	known := o.check(proofOfNode, proven, token.Keys())
	if known == nil {
		return denied("it does not know the token")
	}
	p.out.send(o.prove(proofOfServer, [][]byte{known}))
	return nil
}

// turnToHTTP answers a request on a connection that has proven itself.
func (p *peer) turnToHTTP() error {
	p.out.finishKeeping()
	<-p.wrote
	if err := p.serveHTTP(true); err != nil {
		return err
	}
	return errServed
}

// serveHTTP reads a request and answers it. It closes the connection.
func (p *peer) serveHTTP(proven bool) error {
	head, err := readHead(p.frames.in)
	p.introduced()
	p.passed.Store(true)
	if err != nil {
		if errors.Is(err, errLongHead) {
			p.server.http.refuse(p.conn, http.StatusRequestHeaderFieldsTooLarge)
		}
		p.conn.Close()
		return err
	}
	return p.server.http.serve(p.conn, head, proven)
}

// introduced notes that the peer has said who it is, or what it wants.
func (p *peer) introduced() {
	p.silent.Stop()
	p.introduce()
}

// introduce and estrange keep count of the strangers, who make room for others where
// there is little.
func (p *peer) introduce() {
	if p.stranger.Swap(false) {
		p.server.strangers.Add(-1)
	}
}

func (p *peer) estrange() {
	if !p.stranger.Swap(true) {
		p.server.strangers.Add(1)
	}
}

func (p *peer) startWriter() {
	p.wrote = make(chan struct{})
	go func() {
		defer close(p.wrote)
		p.out.run()
	}()
}

// enter brings the node to its run.
func (p *peer) enter(h hello) error {
	if h.Session == "" || h.Node == "" {
		return p.refuse(rendezvous.Errorf(rendezvous.CodeInvalid, "a hello without a session id or node id"))
	}
	ev := rendezvous.Hello{
		Session: h.Session, Node: h.Node, Incarnation: h.Incarnation, Named: h.Named, Label: h.Label,
		Policy: h.Policy, LastRound: h.Claim, InHost: h.InHost,
		SeenAddr: addrOf(p.conn.RemoteAddr()), ServerAddr: addrOf(p.conn.LocalAddr()),
	}
	p.session, p.node, p.label = h.Session, h.Node, rendezvous.Printable(h.Label)
	for {
		r, refusal := p.server.runFor(h.RunID)
		if refusal != nil {
			return p.refuse(refusal)
		}
		if r == nil {
			return net.ErrClosed
		}
		if !r.hello(p, ev) {
			continue // the run was forgotten meanwhile: ask for it anew
		}
		if p.unstored {
			return fmt.Errorf("%w: %w", errNotStored, p.refusedBy)
		}
		if p.refusedBy != nil {
			p.server.discard(r)
			return p.refuse(p.refusedBy)
		}
		p.run = r
		return nil
	}
}

// refuse answers the hello with an error.
func (p *peer) refuse(err *rendezvous.Error) error {
	p.out.send(refuse{err})
	p.drain()
	return fmt.Errorf("%w: %w", errRefused, err)
}

// report writes the one log line about a connection's end.
func (p *peer) report(err error) {
	level, text := slog.LevelWarn, "closed a connection"
	if cause := p.out.cause(); cause != nil {
		err = cause
	}
	why := refusalOf(err, p.run != nil)
	switch {
	case errors.Is(err, errSlow), errors.Is(err, errStuck), errors.Is(err, errSilent), errors.Is(err, errShed):
	case errors.Is(err, errRefused):
		text = "refused a node"
	case err == nil, errors.Is(err, errServed), errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrDeadlineExceeded):
		level, text = slog.LevelDebug, "a connection ended"
	case p.run != nil && !errors.Is(err, errMalformed):
		level, text = slog.LevelInfo, "a node's connection broke"
	case err == io.EOF: // somebody looked whether the port is open
		level, text = slog.LevelDebug, "a connection ended without a word"
	}
	attrs := []slog.Attr{slog.String("address", p.conn.RemoteAddr().String())}
	if p.node != "" {
		attrs = append(attrs, slog.String("node", p.node))
	}
	if err != nil {
		attrs = append(attrs, slog.String("reason", err.Error()))
	}
	if why != refusedNothing && !p.server.note(why, p.conn.RemoteAddr(), p.node) {
		return
	}
	log := p.server.log
	if p.run != nil {
		log = p.run.log
	}
	log.LogAttrs(context.Background(), level, text, attrs...)
}

// welcome answers the hello; run.mu is held.
func (p *peer) welcome(w rendezvous.Welcome, lease time.Duration) {
	setUserTimeout(p.conn, lease)
	p.out.send(welcome{
		Version: uint64(p.version), Features: []string{featureEcho}, Software: rallypoint.Version(), Server: p.server.id,
		SeenAddr: addrOf(p.conn.RemoteAddr()), Lease: int64(lease), Resumed: w.Resumed, Notice: w.Update,
		Embedded: p.server.cfg.RunID != "",
	})
}

// readFrames serves the node until its connection ends. It reads nothing more
// while the node does not read what it has been answered.
func (p *peer) readFrames() error {
	for {
		if p.out.awaitRoom() {
			p.hear() // nobody listened meanwhile
		}
		f, err := p.frames.nextFrame(maxFrame)
		if err != nil {
			return err
		}
		in := &p.server.meters.framesIn
		switch f := f.(type) {
		case request:
			in.add(kindRequest)
			p.server.meters.request(f)
			p.run.request(p, f)
		case beat:
			in.add(kindBeat)
			if f.Echo {
				p.out.send(beat{})
			}
		case unknown:
			in.add(0)
		case goodbye:
			in.add(kindGoodbye)
			return nil
		default:
			return fmt.Errorf("%w: a %T from a node", errMalformed, f)
		}
	}
}
