package control

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"rallypoint/conformance"
	"rallypoint/core/control/wire"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/core/trace"
	"rallypoint/internal/testkit"
	"rallypoint/internal/wake"
)

// wireNode is a node by hand: it sends what a test says, and no beats.
type wireNode struct {
	t      *testing.T
	conn   net.Conn
	frames wire.FrameReader
}

func dialNode(t *testing.T, addr string) *wireNode {
	t.Helper()
	return dialNodeFrom(t, "", addr)
}

// dialNodeFrom is dialNode from an address of this machine; "": any.
func dialNodeFrom(t *testing.T, from, addr string) *wireNode {
	t.Helper()
	var dialer net.Dialer
	if from != "" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	conn, err := dialer.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(testkit.Patience))
	n := &wireNode{t: t, conn: conn}
	n.frames.In = bufio.NewReader(conn)
	return n
}

func testHello(node string, session string, p params.Params) wire.Hello {
	return wire.Hello{
		Version: wire.ProtocolVersion, RunID: p.RunID, Session: rendezvous.SessionID(session), Node: node,
		Incarnation: 1, Label: node, Policy: p.Policy,
	}
}

// greet sends the preamble and a first frame, and returns the answer.
func (wn *wireNode) greet(first wire.Frame) wire.Frame {
	wn.t.Helper()
	wn.write(wire.AppendFrame(wire.Preamble{High: wire.ProtocolVersion, Low: wire.OldestVersion}.Bytes(), first))
	var answer [wire.PreambleLen]byte
	if _, err := io.ReadFull(wn.frames.In, answer[:]); err != nil {
		wn.t.Fatal(err)
	}
	if _, err := secret.ParsePreamble(answer[:]); err != nil {
		wn.t.Fatal(err)
	}
	return wn.next()
}

// enter says hello and wants a welcome.
func (wn *wireNode) enter(h wire.Hello) wire.Welcome {
	wn.t.Helper()
	f := wn.greet(h)
	w, ok := f.(wire.Welcome)
	if !ok {
		wn.t.Fatalf("the answer to the hello is %+v", f)
	}
	return w
}

func (wn *wireNode) write(b []byte) {
	wn.t.Helper()
	if _, err := wn.conn.Write(b); err != nil {
		wn.t.Fatal(err)
	}
}

func (wn *wireNode) send(f wire.Frame) {
	wn.t.Helper()
	wn.write(wire.AppendFrame(nil, f))
}

// ask sends a request.
func (wn *wireNode) ask(number uint64, ev rendezvous.Event) {
	wn.t.Helper()
	f, ok := wire.NewRequest(ev, number, 0)
	if !ok {
		wn.t.Fatalf("%T is no request", ev)
	}
	wn.send(f)
}

func (wn *wireNode) next() wire.Frame {
	wn.t.Helper()
	f, err := wn.frames.NextFrame(wire.MaxFrame)
	if err != nil {
		wn.t.Fatal(err)
	}
	return f
}

// pipes is a listener without a network.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv6loopback, Port: 1} }

// dial connects a node.
func (p *pipes) dial(t *testing.T) *wireNode {
	ours, theirs := net.Pipe()
	p.conns <- theirs
	ours.SetDeadline(time.Now().Add(testkit.Patience))
	return &wireNode{t: t, conn: ours, frames: wire.FrameReader{In: bufio.NewReader(ours)}}
}

// awaitEnd wants the server to end the connection, after frames that do not
// matter.
func (wn *wireNode) awaitEnd() {
	wn.t.Helper()
	if _, err := io.Copy(io.Discard, wn.frames.In); err != nil {
		if e, ok := err.(net.Error); ok && e.Timeout() {
			wn.t.Fatal("the server did not end the connection")
		}
	}
}

// wantReply wants the next frame to be the reply to a number.
func (wn *wireNode) wantReply(number uint64) wire.Reply {
	wn.t.Helper()
	r := wn.nextReply()
	if r.Number != number {
		wn.t.Fatalf("got %+v, want the reply to %d", r, number)
	}
	return r
}

// nextReply wants the next frame to be a reply.
func (wn *wireNode) nextReply() wire.Reply {
	wn.t.Helper()
	f := wn.next()
	for wire.NameOf(f) == wire.KindNames[wire.KindProgress] { // of a join that took a while
		f = wn.next()
	}
	r, ok := f.(wire.Reply)
	if !ok {
		wn.t.Fatalf("got %+v, want a reply", f)
	}
	return r
}

// recorder keeps a server's events.
type recorder struct {
	mu        sync.Mutex
	events    []recorded
	audit     conformance.Audit
	unchecked bool
	more      wake.Signal
}

type recorded struct {
	run     string
	event   rendezvous.Event
	effects []rendezvous.Effect
}

// newRecorder makes a recorder whose history is checked at the end of the test.
func newRecorder(t *testing.T) *recorder {
	r := &recorder{more: wake.New()}
	t.Cleanup(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.events) > 0 && !r.unchecked && !r.audit.Kept() {
			t.Error(&r.audit)
		}
	})
	return r
}

func (r *recorder) record(rec trace.Record) {
	r.mu.Lock()
	if !r.unchecked {
		r.audit.Add(rec)
	}
	if rec.Event != nil {
		r.events = append(r.events, recorded{rec.Run, rec.Event, rec.Effects})
	}
	r.mu.Unlock()
	r.more.Set()
}

// leaveUnchecked is for masses of data, which are sent as fast as the server takes
// them: a checker does all that the machine does once more.
func (r *recorder) leaveUnchecked() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unchecked = true
}

func (r *recorder) count(fits func(rendezvous.Event) bool) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, e := range r.events {
		if fits(e.event) {
			n++
		}
	}
	return n
}

func (r *recorder) await(t *testing.T, what string, n int, fits func(rendezvous.Event) bool) {
	t.Helper()
	deadline := time.After(testkit.Patience)
	for r.count(fits) < n {
		select {
		case <-r.more:
		case <-deadline:
			t.Fatalf("%d times %s, want %d", r.count(fits), what, n)
		}
	}
}

func isEvent[E rendezvous.Event](ev rendezvous.Event) bool {
	_, ok := ev.(E)
	return ok
}

// awaitEvents waits until n events of a type were applied.
func awaitEvents[E rendezvous.Event](t *testing.T, r *recorder, n int) {
	t.Helper()
	var e E
	r.await(t, fmt.Sprintf("%T", e), n, isEvent[E])
}
