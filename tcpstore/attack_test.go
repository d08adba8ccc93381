package tcpstore

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/core/store"
	"rallypoint/internal/eventloop"
	"rallypoint/internal/testkit"
)

// besetServer is a server with a token and a client that must not notice what is done to it.
type besetServer struct {
	*Server
	path  string // of the token
	lines *testkit.Log
	token *secret.Token // the client's
}

func newBesetServer(t *testing.T) *besetServer {
	t.Helper()
	token := openToken(t, goodKey)
	testkit.Check(t, testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t).Close()) // after the first one the process keeps some descriptors
	before := testkit.Descriptors(t)
	lines, logger := newLog()
	s, err := Listen("127.0.0.1:0", store.NewEngine(store.Limits{}), Options{
		Logger: logger, Loops: 2, Secure: &Secure{token, testkit.Must(secret.ServerTLS())(t)},
	})
	testkit.Check(t, err)
	s.BeginRound(nil, thisRound)
	b := &besetServer{s, token.Path(), lines, openToken(t, goodKey)}
	good := dialTLSHello(t, s, b.token)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			good.below.SetDeadline(time.Now().Add(guard))
			v := fmt.Sprint(i)
			if !good.tryExchange(append(msg(opSet, "/healthy", v), msg(opGet, "/healthy")...), msg(0, v)[1:]) {
				return
			}
			select {
			case <-done:
				if i > 0 {
					return
				}
			default:
			}
		}
	}()
	t.Cleanup(func() {
		close(done)
		<-ended
		for _, key := range wireKeys(s) {
			if key != "/healthy" {
				t.Errorf("a stranger has set %q", key)
			}
		}
		s.Close()
		good.Close()
		testkit.Eventually(t, "all descriptors are closed", func() bool { return testkit.Descriptors(t) <= before })
	})
	return b
}

// awaitRefused waits for so many refusals for a reason.
func (b *besetServer) awaitRefused(t *testing.T, reason Reason, n uint64) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprintf("%d are refused: %s", n, reason), func() bool { return b.Stats().Refused[reason.String()] == n })
}

// dialPlain connects and says something.
func (b *besetServer) dialPlain(t *testing.T, said []byte) *net.TCPConn {
	t.Helper()
	conn := testkit.Must(net.Dial("tcp", b.Addr().String()))(t).(*net.TCPConn)
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(guard))
	conn.Write(said)
	return conn
}

// wantClosed waits for the end, and returns what was sent before.
func wantClosed(t *testing.T, conn net.Conn) []byte {
	t.Helper()
	said, err := io.ReadAll(conn)
	if ne, ok := err.(net.Error); ok && ne.Timeout() {
		t.Error("the server has not closed the connection")
	}
	return said
}

// planting is a request that a stranger makes.
var planting = append(slices.Clone(hello), append(msg(opSet, "/planted", "v"), msg(opGet, "/planted")...)...)

// TestDowngrade: nothing but TLS 1.3 is spoken, and nothing of what else a peer says gets to
// the engine.
func TestDowngrade(t *testing.T) {
	b := newBesetServer(t)
	for name, said := range map[string][]byte{
		"a TCPStore client":  planting,
		"a plain preamble":   append(secret.Preamble{High: 1, Low: 1, Token: true}.Bytes(), planting...),
		"a browser":          []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"an older TCPStore":  append([]byte{1}, planting...),
		"a single zero byte": {0},
	} {
		if got := wantClosed(t, b.dialPlain(t, said)); len(got) != 0 {
			t.Errorf("%s is answered %x", name, got)
		}
	}
	b.awaitRefused(t, reasonPlain, 5)
	b.lines.Await(t, "workers reach it by the agent of their node", 1)
	old := secret.ClientTLS()
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if err := tls.Client(b.dialPlain(t, nil), old).Handshake(); err == nil {
		t.Error("TLS 1.2 is spoken")
	}
	b.awaitRefused(t, reasonHandshake, 1)
	b.lines.Await(t, "offered only unsupported versions", 1)
	r := dialHandshake(t, b.Server)
	r.Write(planting) // where a proof has to be
	wantClosed(t, r)
	b.awaitRefused(t, reasonMalformed, 1)
	b.dialPlain(t, nil).Close() // a check whether the port is open
	testkit.Eventually(t, "counted", func() bool { return b.Stats().Accepted == 9 })
	if n := len(b.lines.With("WARN")); n != 3 {
		t.Errorf("%d lines: %s", n, b.lines)
	}
}

// TestOtherKey: each side names its own file and fingerprint, and learns nothing of the
// other's.
func TestOtherKey(t *testing.T) {
	b := newBesetServer(t)
	other := openToken(t, otherKey)
	_, err := tryDialTLS(t, b.Server, other, thisRound, nil)
	if rendezvous.CodeOf(err) != rendezvous.CodeAuth || !strings.Contains(err.Error(), "does not know the token in "+other.Describe()) {
		t.Errorf("%v", err)
	}
	mine, theirs := secret.Fingerprint([]byte(otherKey)), secret.Fingerprint([]byte(goodKey))
	for _, text := range []string{theirs, b.path, "g1"} {
		if strings.Contains(err.Error(), text) {
			t.Errorf("a stranger is told %v", err)
		}
	}
	line := b.lines.Await(t, "it does not know the token in "+b.path+", fingerprint "+theirs, 1)[0]
	if strings.Contains(line, mine) || !strings.Contains(line, "reason=authentication") {
		t.Errorf("the line is %s", line)
	}
	b.awaitRefused(t, reasonAuth, 1)
	r := dialHandshake(t, b.Server)
	r.Write(append(proofOf(t, r.Conn, otherKey, thisRound), planting...))
	if got := wantClosed(t, r); bytes.Contains(got, []byte("job")) {
		t.Errorf("a stranger is told %q", got)
	}
	b.awaitRefused(t, reasonAuth, 2)
}

// TestOldKey changes the token in either order while connections come and others stay.
func TestOldKey(t *testing.T) {
	for name, steps := range map[string][][2][]string{ // the server's keys and the client's
		"server first":  {{{otherKey}, {otherKey}}, {{goodKey, otherKey}, {otherKey}}, {{goodKey, otherKey}, {goodKey, otherKey}}, {{goodKey}, {goodKey, otherKey}}, {{goodKey}, {goodKey}}},
		"clients first": {{{otherKey}, {otherKey}}, {{otherKey}, {goodKey, otherKey}}, {{goodKey, otherKey}, {goodKey, otherKey}}, {{goodKey, otherKey}, {goodKey}}, {{goodKey}, {goodKey}}},
	} {
		t.Run(name, func(t *testing.T) {
			server, client := openToken(t, otherKey), openToken(t, otherKey)
			lines, logger := newLog()
			s := testkit.Must(Listen("127.0.0.1:0", store.NewEngine(store.Limits{}),
				Options{Logger: logger, Secure: &Secure{server, testkit.Must(secret.ServerTLS())(t)}}))(t)
			defer s.Close()
			s.BeginRound(nil, thisRound)
			var open []rawTLS
			for _, step := range steps {
				for i, token := range []*secret.Token{server, client} {
					testkit.Check(t, os.WriteFile(token.Path()+".new", []byte(strings.Join(step[i], "\n")), 0o600))
					testkit.Check(t, os.Rename(token.Path()+".new", token.Path()))
				}
				for range 5 {
					open = append(open, dialTLSHello(t, s, client))
				}
				for i, r := range open { // those of earlier keys continue
					key := fmt.Sprint("/", i)
					r.exchange(append(msg(opSet, key, "v"), msg(opGet, key)...), msg(0, "v")[1:])
				}
			}
			if _, err := tryDialTLS(t, s, openToken(t, otherKey), thisRound, nil); rendezvous.CodeOf(err) != rendezvous.CodeAuth {
				t.Errorf("the old token: %v", err)
			}
			if lines.Await(t, "connection closed", 1); len(lines.With("WARN")) != 1 {
				t.Errorf("%s", lines)
			}
		})
	}
}

// TestStaleRound: a client that has the token and names another round is told both, and reaches no
// engine; open connections stay with the engine of their round.
func TestStaleRound(t *testing.T) {
	b := newBesetServer(t)
	before := dialTLSHello(t, b.Server, b.token)
	for _, name := range []secret.StoreName{{Run: "job", Generation: "g1", Round: 6}, {Run: "job", Generation: "g0", Round: 7}, {Run: "other", Generation: "g1", Round: 7}, {}} {
		_, err := tryDialTLS(t, b.Server, b.token, name, nil)
		if rendezvous.CodeOf(err) != rendezvous.CodeRoundOver || !strings.Contains(err.Error(), "serves "+thisRound.String()+", not "+name.String()) {
			t.Errorf("%v", err)
		}
	}
	b.awaitRefused(t, reasonRound, 4)
	b.lines.Await(t, "it wants round 6 of run", 1)
	r := dialHandshake(t, b.Server)
	r.Write(append(proofOf(t, r.Conn, goodKey, secret.StoreName{Run: "x"}), planting...))
	wantClosed(t, r)
	b.awaitRefused(t, reasonRound, 5)

	next := secret.StoreName{Run: "job", Generation: "g1", Round: 8}
	old := b.current()
	b.BeginRound(store.NewEngine(store.Limits{}), next)
	if _, err := tryDialTLS(t, b.Server, b.token, thisRound, nil); rendezvous.CodeOf(err) != rendezvous.CodeRoundOver {
		t.Errorf("the round before: %v", err)
	}
	after, err := tryDialTLS(t, b.Server, b.token, next, nil)
	testkit.Check(t, err)
	after.exchange(append(slices.Clone(hello), msg(opCheck, 1, "/healthy")...), append(slices.Clone(hello[6:]), replyNotReady))
	before.exchange(msg(opCheck, 1, "/healthy"), []byte{replyReady})
	b.BeginRound(old.engine, thisRound) // for the checks of the end
}

// TestNoRound: before a round has begun no one is let in.
func TestNoRound(t *testing.T) {
	lines, logger := newLog()
	s := testkit.Must(Listen("127.0.0.1:0", store.NewEngine(store.Limits{}),
		Options{Logger: logger, Secure: &Secure{openToken(t, goodKey), testkit.Must(secret.ServerTLS())(t)}}))(t)
	defer s.Close()
	for _, name := range []secret.StoreName{{}, thisRound} {
		r := dialHandshake(t, s)
		r.Write(append(proofOf(t, r.Conn, goodKey, name), planting...))
		wantClosed(t, r)
	}
	testkit.Eventually(t, "refused", func() bool { return s.Stats().Refused["other_round"] == 2 })
	lines.Await(t, "this store serves no round", 1)
	if keys := wireKeys(s); len(keys) != 0 {
		t.Errorf("keys %q", keys)
	}
}

// taped is a connection that keeps what is sent by it, and may change it. Behind the change
// the stream ends.
type taped struct {
	net.Conn
	sent bytes.Buffer
	flip int // the place of a byte that is changed; -1: none
	cut  int // the place after which the stream ends; -1: none
}

func (t *taped) Write(b []byte) (int, error) {
	from := t.sent.Len()
	t.sent.Write(b)
	at := max(t.flip, t.cut) - from // one of them is -1
	if t.flip < 0 && t.cut < 0 || at >= len(b) {
		return t.Conn.Write(b)
	}
	if at >= 0 {
		send := bytes.Clone(b)
		if t.flip >= 0 {
			send[at] ^= 1
		} else {
			send = send[:at]
		}
		t.Conn.Write(send)
		t.Conn.(*net.TCPConn).CloseWrite()
	}
	return len(b), nil
}

// attempt opens a connection by tape and plants a key, and reports whether that has
// succeeded.
func (b *besetServer) attempt(t *testing.T, tape *taped) bool {
	conn, err := net.Dial("tcp", b.Addr().String())
	if err != nil {
		t.Error(err)
		return false
	}
	defer conn.Close()
	tape.Conn = conn
	secured, err := secret.DialStore(context.Background(), tape, b.token, thisRound, secret.PurposeStore)
	if err != nil {
		return false
	}
	conn.SetDeadline(time.Now().Add(guard))
	secured.Write(hello)
	secured.Write(slices.Concat(msg(opSet, "/planted", "v"), msg(opDelete, "/planted"), msg(opGet, "/healthy")))
	got := make([]byte, 13)
	_, err = io.ReadFull(secured, got)
	return err == nil
}

// TestBadRecords: bytes that are no TLS, too long, cut or changed on the way end their connection
// and nothing else.
func TestBadRecords(t *testing.T) {
	b := newBesetServer(t)
	record := func(kind byte, n, body int) []byte {
		return append([]byte{kind, 3, 1, byte(n >> 8), byte(n)}, make([]byte, body)...)
	}
	longHello := record(22, 16<<10, 16<<10)
	copy(longHello[eventloop.RecordHead:], []byte{1, 1, 0, 0}) // a hello of 64 KiB
	longHello = append(longHello, bytes.Repeat(record(22, 16<<10, 16<<10), 3)...)
	firsts := map[string][]byte{
		"an empty record":             record(22, 0, 0),
		"a record of zeros":           record(22, 100, 100),
		"a record that is too long":   record(22, 0xffff, maxHello),
		"an alert":                    {22, 3, 1, 0, 2, 2, 40},
		"a hello of 64 KiB":           longHello,
		"a hello of 64 KiB and a bit": append(longHello, record(22, 16, 16)...),
		"only heads":                  bytes.Repeat(record(22, 0, 0), 1000),
	}
	for name, said := range firsts {
		conn := b.dialPlain(t, said)
		conn.CloseWrite()
		if got := wantClosed(t, conn); len(got) > 7 {
			t.Errorf("%s is answered with %d bytes", name, len(got))
		}
	}
	b.awaitRefused(t, reasonHandshake, uint64(len(firsts)))

	whole := &taped{flip: -1, cut: -1}
	if !b.attempt(t, whole) {
		t.Fatal("it does not work as it is")
	}
	length := whole.sent.Len()
	var wg sync.WaitGroup
	slots := make(chan struct{}, 32)
	const stride = 3 // each run tries other bytes
	for i := rand.IntN(stride); i < length; i += stride {
		for _, tape := range []*taped{{flip: i, cut: -1}, {flip: -1, cut: i}} {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				if b.attempt(t, tape) {
					t.Errorf("it works with byte %d of %d changed (cut: %v)", i, length, tape.cut >= 0)
				}
			})
		}
	}
	wg.Wait()
	testkit.Eventually(t, "all are closed but one", func() bool { return b.Stats().Connections == 1 })
	if refused := b.Stats().Refused; refused["bad_record"] == 0 || refused["truncated"] == 0 || refused["handshake"] < 100 || refused["authentication"] != 0 {
		t.Errorf("%v", refused)
	}
}

// TestReplay sends again what a client has sent, whole, and from each record on.
func TestReplay(t *testing.T) {
	b := newBesetServer(t)
	tape := &taped{flip: -1, cut: -1}
	if !b.attempt(t, tape) {
		t.Fatal("it does not work as it is")
	}
	before := b.Stats().Ops["DELETE_KEY"]
	said := tape.sent.Bytes()
	records := 0
	for from := 0; from < len(said); from += eventloop.RecordHead + eventloop.BodyLen(said[from:]) {
		conn := b.dialPlain(t, said[from:])
		conn.CloseWrite()
		wantClosed(t, conn)
		records++
	}
	if records < 5 {
		t.Errorf("%d records in %d bytes", records, len(said))
	}
	testkit.Eventually(t, "all are refused", func() bool {
		r := b.Stats().Refused
		return r["handshake"]+r["plain"] == uint64(records)
	})
	// The same records, after an opening of the attacker's own.
	r := dialTLS(t, b.Server, b.token, nil)
	var app []byte
	for from := 0; from < len(said); from += eventloop.RecordHead + eventloop.BodyLen(said[from:]) {
		app = said[from:]
	}
	r.below.Write(app)
	wantClosed(t, r.below)
	b.awaitRefused(t, reasonRecord, 1)
	if n := b.Stats().Ops["DELETE_KEY"]; n != before {
		t.Errorf("%d requests were carried out", n-before)
	}
}

// TestProofPassedOn has a man in the middle with a TLS connection to either end: a
// node's proof, passed on, opens nothing, whatever the attacker sends after it.
func TestProofPassedOn(t *testing.T) {
	b := newBesetServer(t)
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	settings := testkit.Must(secret.ServerTLS())(t)
	done := testkit.Go(func() error {
		raw, err := l.Accept()
		if err != nil {
			return err
		}
		defer raw.Close()
		near, err := net.Dial("tcp", b.Addr().String())
		if err != nil {
			return err
		}
		defer near.Close()
		raw.SetDeadline(time.Now().Add(guard))
		near.SetDeadline(time.Now().Add(guard))
		victim, server := tls.Server(raw, settings), tls.Client(near, secret.ClientTLS())
		proof := make([]byte, 4096)
		n, err := victim.Read(proof)
		if err != nil {
			return err
		}
		server.Write(append(proof[:n:n], planting...))
		_, err = io.Copy(victim, server)
		return err
	})
	conn := testkit.Must(net.Dial("tcp", l.Addr().String()))(t)
	defer conn.Close()
	_, err := secret.DialStore(t.Context(), conn, b.token, thisRound, secret.PurposeStore)
	if rendezvous.CodeOf(err) != rendezvous.CodeAuth || !strings.Contains(err.Error(), "does not know the token in "+b.token.Describe()) {
		t.Errorf("%v", err)
	}
	conn.Close()
	<-done
	b.awaitRefused(t, reasonAuth, 1)
	if b.Stats().Ops["VALIDATE"] != 1 {
		t.Errorf("%v", b.Stats().Ops)
	}
}
