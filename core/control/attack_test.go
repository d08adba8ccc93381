package control

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"rallypoint/core/control/client"
	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/peer/peertest"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/internal/httpport"
	"rallypoint/internal/testkit"
)

// guardedServer is a control plane with a token and a job of two nodes, which must not
// notice what is done to it.
type guardedServer struct {
	*fakeServer
	path  string // of the token
	nodes []*client.Client
	obs   []*controltest.Observer
}

func newGuardedServer(t *testing.T) *guardedServer {
	t.Helper()
	path := testkit.TokenFile(t, goodToken)
	token, err := secret.OpenToken(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	g := &guardedServer{fakeServer: newFakeServer(t, Config{Token: token}), path: path}
	for range 2 {
		obs := controltest.NewObserver()
		g.nodes, g.obs = append(g.nodes, connected(t, withToken(g.addr, path, 2), obs)), append(g.obs, obs)
	}
	a, b := g.nodes[0].Start(controltest.Join()), g.nodes[1].Start(controltest.Join())
	controltest.Outcome(t, a)
	controltest.Outcome(t, b)
	return g
}

// wantUnharmed wants the two nodes to be in their round, connected as before, and alone.
func (g *guardedServer) wantUnharmed(t *testing.T) {
	t.Helper()
	for _, obs := range g.obs {
		for _, e := range obs.All() {
			if controltest.IsDropped(e) || controltest.IsLost(e) {
				t.Errorf("a node has noticed: %+v", e)
			}
		}
	}
	st, ok := g.RunStatus("run")
	if !ok || len(st.Runs[0].Members) != 2 || len(st.Runs[0].Waiting)+len(st.Runs[0].Idle) != 0 || st.Runs[0].Closed != nil || g.Status().RunsTotal != 1 {
		t.Fatalf("the run: %+v", st)
	}
	for _, m := range st.Runs[0].Members {
		if m.State != "running" || m.Reconnecting || m.Fingerprint != secret.Fingerprint([]byte(goodToken)) {
			t.Errorf("a member: %+v", m)
		}
	}
}

// attackHello is what an intruder would say.
func attackHello() wire.Hello { return testHello("intruder", "intruder", controltest.Params("", 2)) }

// TestProofPassedOn has a man in the middle with a TLS connection to either end: a
// node's proof, passed on, opens nothing, whatever the attacker sends after it.
func TestProofPassedOn(t *testing.T) {
	g := newGuardedServer(t)
	settings, err := secret.ServerTLS()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer l.Close()
	closing := wire.AppendFrame(nil, wire.Admin{Op: wire.AdminOpClose, RunID: "run", By: "he", Reason: "x", Stop: true})
	wg.Go(func() {
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer raw.Close()
				victim := tls.Server(raw, settings)
				near, err := net.Dial("tcp", g.addr)
				if err != nil {
					t.Error(err)
					return
				}
				defer near.Close()
				raw.SetDeadline(time.Now().Add(testkit.Patience))
				near.SetDeadline(time.Now().Add(testkit.Patience))
				server := tls.Client(near, secret.ClientTLS())
				proof := make([]byte, 4096)
				n, err := victim.Read(proof)
				if err != nil {
					t.Error(err)
					return
				}
				proof = proof[:n]
				_, _ = server.Write(append(bytes.Clone(proof[:wire.PreambleLen+proofLen(proof)]), closing...))
				_, _ = io.Copy(victim, server)
			})
		}
	})
	mine := openToken(t, goodToken)
	_, err = client.Ask(controltest.Context(t), l.Addr().String(), mine, "another", rendezvous.CloseRun{By: "me", Reason: "y", Stop: true})
	controltest.WantCode(t, err, rendezvous.CodeAuth, "does not know the token in "+mine.Describe())
	_, err = client.DialHTTP(controltest.Context(t), l.Addr().String(), mine)
	controltest.WantCode(t, err, rendezvous.CodeAuth)
	p := withToken(l.Addr().String(), g.path, 2)
	never := false
	p.IsHost = &never
	controltest.WantCode(t, newTestClient(t, p, controltest.NewObserver()).Connect(controltest.Context(t)), rendezvous.CodeAuth)
	l.Close()
	g.awaitRefused(t, refusedAuth, 3)
	g.wantUnharmed(t)
}

// proofLen is the length of the frame after a preamble.
func proofLen(b []byte) int {
	return 4 + int(b[wire.PreambleLen]) + int(b[wire.PreambleLen+1])<<8
}

// taped is a connection that keeps what is sent by it.
type taped struct {
	net.Conn
	sent bytes.Buffer
	// flip is the place of a byte that is changed on the way, cut one after which the
	// connection is closed; -1: none.
	flip, cut int
}

func (t *taped) Write(b []byte) (int, error) {
	from := t.sent.Len()
	t.sent.Write(b)
	b = bytes.Clone(b)
	if i := t.flip - from; t.flip >= 0 && i >= 0 && i < len(b) {
		b[i] ^= 1
	}
	if i := t.cut - from; t.cut >= 0 && i < len(b) {
		n, _ := t.Conn.Write(b[:max(0, i)])
		t.Conn.Close()
		return n, net.ErrClosed
	}
	return t.Conn.Write(b)
}

func dialTaped(t *testing.T, addr string) *taped {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(testkit.Patience))
	return &taped{Conn: conn, flip: -1, cut: -1}
}

// openAs opens a connection with the right token and sends a first frame; the answer is the
// frame after the server's proof.
func openAs(conn net.Conn, token *secret.Token, first wire.Frame) (wire.Frame, error) {
	opened := wire.NewConn(conn)
	frames := wire.FrameReader{In: bufio.NewReader(opened)}
	if _, err := (wire.ClientHandshake{Token: token, Addr: conn.RemoteAddr()}).Run(opened, &frames, wire.AppendFrame(nil, first)); err != nil {
		return nil, err
	}
	return frames.NextFrame(wire.MaxFrame)
}

// TestReplay sends again what an administrator has sent, whole, and from each record on.
func TestReplay(t *testing.T) {
	g := newGuardedServer(t)
	conn := dialTaped(t, g.addr)
	ask := wire.Admin{Op: wire.AdminOpEvict, RunID: "run", Node: "none", By: "me", Reason: "x"}
	if f, err := openAs(conn, openToken(t, goodToken), ask); err != nil || !strings.Contains(fmt.Sprint(f), "none") {
		t.Fatalf("%+v, %v", f, err)
	}
	said := conn.sent.Bytes()
	records := 0
	for from := 0; from < len(said); from += 5 + int(said[from+3])<<8 + int(said[from+4]) {
		again := dialTaped(t, g.addr)
		_, _ = again.Conn.Write(said[from:])
		answer, _ := io.ReadAll(again.Conn)
		if bytes.Contains(answer, []byte("none")) {
			t.Errorf("from byte %d on: answered %q", from, answer)
		}
		again.Close()
		records++
	}
	if records < 3 {
		t.Errorf("%d records in %d bytes", records, len(said))
	}
	g.awaitRefused(t, refusedHandshake, 1)
	g.awaitRefused(t, refusedForeign, uint64(records-1))
	if n := g.metrics.admin[wire.AdminOpEvict].Load(); n != 1 {
		t.Errorf("%d requests of an administrator were carried out", n)
	}
	g.wantUnharmed(t)
}

// TestDowngrade: the server continues neither in plain nor by an older TLS.
func TestDowngrade(t *testing.T) {
	g := newGuardedServer(t)
	for name, preamble := range map[string]wire.Preamble{"without a token": {High: 1, Low: 1}, "of an older release": guarded} {
		n := dialNode(t, g.addr)
		n.write(wire.AppendFrame(preamble.Bytes(), attackHello()))
		t.Run(name, func(t *testing.T) { n.t = t; n.wantDenied() })
	}
	g.awaitRefused(t, refusedAuth, 2)
	old := secret.ClientTLS()
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if err := tls.Client(dialNode(t, g.addr).conn, old).Handshake(); err == nil {
		t.Error("TLS 1.2 is spoken")
	}
	g.awaitRefused(t, refusedHandshake, 1)
	g.log.Await(t, "offered only unsupported versions", 1)
	g.wantUnharmed(t)
}

// TestDowngradeOfANode: neither does a node, which says nothing but its TLS hello to a
// server that wants it to.
func TestDowngradeOfANode(t *testing.T) {
	token := openToken(t, goodToken)
	plain, tls12 := wire.Preamble{High: 1, Low: 1}, wire.Preamble{High: 1, Low: 1, Token: true}
	settings, err := secret.ServerTLS()
	if err != nil {
		t.Fatal(err)
	}
	settings.MinVersion, settings.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	for name, test := range map[string]struct {
		answer func(net.Conn) // what poses as a control plane says
		code   rendezvous.Code
		says   string
	}{
		"a server without a token":        {func(c net.Conn) { c.Write(wire.AppendFrame(plain.Bytes(), wire.Refuse{Err: wire.ErrAuth})) }, rendezvous.CodeAuth, "has no token, but this process was given one (" + token.Describe()},
		"one that wants a proof in plain": {func(c net.Conn) { c.Write(tls12.Bytes()) }, rendezvous.CodeAuth, "has no token"},
		"a TCPStore":                      {func(c net.Conn) { c.Close() }, 0, "in the TLS handshake: it is no Rallypoint control plane with a token"},
		"a TCPStore that resets":          {func(c net.Conn) { c.Read(make([]byte, 1)); c.Close() }, 0, "in the TLS handshake: it is no Rallypoint control plane with a token"},
		"a web server":                    {func(c net.Conn) { io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n") }, 0, "answers TLS with 4854545"},
		"TLS 1.2":                         {func(c net.Conn) { _ = tls.Server(c, settings).Handshake() }, 0, "protocol version"},
	} {
		t.Run(name, func(t *testing.T) {
			heard, err := closeAt(t, token, test.answer)
			if err == nil || !strings.Contains(err.Error(), test.says) || test.code != 0 && rendezvous.CodeOf(err) != test.code {
				t.Errorf("%v; want %q", err, test.says)
			}
			for rest := heard; len(rest) >= 5; rest = rest[min(len(rest), 5+int(rest[3])<<8+int(rest[4])):] {
				if rest[0] != wire.TLSByte && rest[0] != 0x15 { // an alert
					t.Errorf("the node has said % x", rest)
				}
			}
			if bytes.Contains(heard, []byte("planted")) || bytes.Contains(heard, []byte("RPT")) {
				t.Errorf("the node has said % x", heard)
			}
		})
	}
}

// closeAt has an administrator close a run at what answers so, and returns what that hears.
func closeAt(t *testing.T, token *secret.Token, answer func(net.Conn)) ([]byte, error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var heard bytes.Buffer
	var wg sync.WaitGroup
	wg.Go(func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		answer(tapped{conn, &heard})
		_, _ = io.Copy(&heard, conn)
	})
	_, err = client.Ask(controltest.Context(t), l.Addr().String(), token, "planted", rendezvous.CloseRun{By: "planted", Reason: "planted", Stop: true})
	wg.Wait()
	return heard.Bytes(), err
}

// tapped keeps what is read.
type tapped struct {
	net.Conn
	heard *bytes.Buffer
}

func (t tapped) Read(b []byte) (int, error) {
	n, err := t.Conn.Read(b)
	t.heard.Write(b[:n])
	return n, err
}

// TestOtherKey: each side names its own file and fingerprint, and learns nothing of the
// other's.
func TestOtherKey(t *testing.T) {
	g := newGuardedServer(t)
	other := openToken(t, otherToken)
	_, err := client.Ask(controltest.Context(t), g.addr, other, "run", rendezvous.CloseRun{By: "me", Reason: "x", Stop: true})
	controltest.WantCode(t, err, rendezvous.CodeAuth, "does not know the token in "+other.Describe())
	mine, theirs := secret.Fingerprint([]byte(otherToken)), secret.Fingerprint([]byte(goodToken))
	if strings.Contains(err.Error(), theirs) || strings.Contains(err.Error(), g.path) || strings.Contains(err.Error(), "run ") {
		t.Errorf("a stranger receives %v", err)
	}
	line := g.log.Await(t, "it does not know the token in "+g.path+", fingerprint "+theirs, 1)[0]
	if strings.Contains(line, mine) {
		t.Errorf("the server knows more than it should: %s", line)
	}
	g.wantUnharmed(t)
}

// TestOldKey changes the token in either order while nodes come and go.
func TestOldKey(t *testing.T) {
	const oldKey, newKey = otherToken, goodToken
	for name, steps := range map[string][][2][]string{ // the server's keys and the node's
		"server first": {{{oldKey}, {oldKey}}, {{newKey, oldKey}, {oldKey}}, {{newKey, oldKey}, {newKey, oldKey}}, {{newKey}, {newKey, oldKey}}, {{newKey}, {newKey}}},
		"nodes first":  {{{oldKey}, {oldKey}}, {{oldKey}, {newKey, oldKey}}, {{newKey, oldKey}, {newKey, oldKey}}, {{newKey, oldKey}, {newKey}}, {{newKey}, {newKey}}},
	} {
		t.Run(name, func(t *testing.T) {
			server, node := testkit.TokenFile(t, oldKey), testkit.TokenFile(t, oldKey)
			token, err := secret.OpenToken(server, nil)
			if err != nil {
				t.Fatal(err)
			}
			s := newFakeServer(t, Config{Token: token})
			obs := controltest.NewObserver()
			stays := connected(t, withToken(s.addr, node, 1), obs)
			controltest.Outcome(t, stays.Start(controltest.Join()))
			for i, step := range steps {
				writeTokens(t, server, step[0]...)
				writeTokens(t, node, step[1]...)
				mine, err := secret.OpenToken(node, nil)
				if err != nil {
					t.Fatal(err)
				}
				conn, err := client.DialHTTP(controltest.Context(t), s.addr, mine)
				if err != nil {
					t.Errorf("step %d: %v", i, err)
					continue
				}
				conn.Close()
			}
			writeTokens(t, server, newKey)
			if _, err := client.DialHTTP(controltest.Context(t), s.addr, openToken(t, oldKey)); rendezvous.CodeOf(err) != rendezvous.CodeAuth {
				t.Errorf("the old token: %v", err)
			}
			s.cutNode(t, stays)
			obs.Await(t, "that it is back", controltest.IsBack)
			if st, _ := s.RunStatus("run"); st.Runs[0].Members[0].Fingerprint != secret.Fingerprint([]byte(newKey)) {
				t.Errorf("the node came back by %q", st.Runs[0].Members[0].Fingerprint)
			}
		})
	}
}

// TestSlowHandshakes has a thousand connections that have sent a part of their hello, and
// those that have made the handshake and say nothing: others are let in meanwhile, and all
// of them are closed in time.
func TestSlowHandshakes(t *testing.T) {
	g := newGuardedServer(t)
	slow := 1000
	if !long {
		slow = 300
	}
	hello := dialTaped(t, g.addr)
	if _, err := openAs(hello, openToken(t, goodToken), wire.Admin{RunID: "run"}); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var crowd []net.Conn
	for range slow {
		conn := dialTaped(t, g.addr)
		if _, err := conn.Conn.Write(hello.sent.Bytes()[:50]); err != nil {
			t.Fatal(err)
		}
		crowd = append(crowd, conn)
	}
	for i, conn := range crowd {
		if _, err := conn.(*taped).Conn.Write(hello.sent.Bytes()[50 : 51+i%9]); err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		secureNode(t, g.addr)
	}
	if err := connected(t, withToken(g.addr, g.path, 2), controltest.NewObserver()).Close(controltest.Context(t)); err != nil {
		t.Errorf("a node in the crowd: %v", err)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 64<<20 {
		t.Errorf("%d connections take %d MB", slow+100, grown>>20)
	}
	// No source has the last quarter: of one that has more than a few one more is closed, while
	// others are let in until there is no place.
	const ofOne = maxUnproven - maxUnproven/4
	for range ofOne - 100 {
		secureNode(t, g.addr)
	}
	wantClosed := func(why string) {
		t.Helper()
		if err := wire.NewConn(dialNode(t, g.addr).conn).Open(openToken(t, goodToken)); err == nil {
			t.Error(why)
		}
	}
	wantClosed("one source takes all places")
	for i := range maxUnproven - ofOne {
		n := dialNodeFrom(t, fmt.Sprintf("127.0.0.%d", 2+i/8), g.addr)
		n.secure()
	}
	wantClosed("there is room for one more that has proven nothing")
	g.awaitRefused(t, refusedHandshakes, 2)
	g.clock.Advance(handshakeTimeout)
	for _, conn := range crowd {
		if _, err := io.Copy(io.Discard, conn); err != nil && strings.Contains(err.Error(), "timeout") {
			t.Fatal("a slow one is served on")
		}
	}
	g.awaitRefused(t, refusedSilent, uint64(slow+maxUnproven))
	secureNode(t, g.addr) // there is room again
	g.wantUnharmed(t)
}

// TestBadRecords sends what is no TLS, and an opening with each byte changed, or cut there:
// what is let in has said what its sender meant.
func TestBadRecords(t *testing.T) {
	g := newGuardedServer(t)
	token := openToken(t, goodToken)
	ask := wire.Admin{Op: wire.AdminOpEvict, RunID: "run", Node: "none", By: "me", Reason: "x"}
	whole := dialTaped(t, g.addr)
	if _, err := openAs(whole, token, ask); err != nil {
		t.Fatal(err)
	}
	said := whole.sent.Bytes()
	for name, sent := range map[string]string{
		"empty record":        "\x16\x03\x01\x00\x00",
		"largest record":      "\x16\x03\x01\xff\xff" + strings.Repeat("x", 1<<16),
		"hello of 64 KiB":     "\x16\x03\x01\x40\x00\x01\x00\xff\xff" + strings.Repeat("x", 1<<14),
		"hello of 16 MiB":     "\x16\x03\x01\x00\x04\x01\xff\xff\xff",
		"an alert":            "\x16\x03\x01\x00\x02\x02\x28",
		"SSL 2":               "\x16\x80\x2e\x01\x00\x02",
		"application first":   "\x16\x03\x01\x00\x01\x17\x17\x03\x03\x00\x01x",
		"garbage":             "\x16" + strings.Repeat("\xff", 1000),
		"a hello, then plain": string(said[:5+int(said[3])<<8+int(said[4])]) + string(guarded.Bytes()),
	} {
		n := dialNode(t, g.addr)
		_, _ = io.WriteString(n.conn, sent)
		_ = n.conn.(*net.TCPConn).CloseWrite()
		t.Run(name, func(t *testing.T) { n.t = t; n.awaitEnd() })
	}
	stride := 1
	if !long {
		stride = 29 // each is a handshake; no divisor of a field's length
	}
	before := g.metrics.admin[wire.AdminOpEvict].Load()
	let := uint64(0)
	for i := 0; i < len(said); i += stride {
		for _, flips := range []bool{true, false} {
			conn := dialTaped(t, g.addr)
			if flips {
				conn.flip = i
			} else {
				conn.cut = i
			}
			f, err := openAs(conn, token, ask)
			switch a, ok := f.(wire.AdminAnswer); {
			case err != nil:
			case !ok || !flips || a.Err == nil || !strings.Contains(a.Err.Text, `"none"`):
				t.Errorf("byte %d (flipped: %v): answered %+v", i, flips, f)
			default:
				let++ // the version of a plain record's header, which counts for nothing
			}
			conn.Close()
		}
	}
	if let > 8 {
		t.Errorf("%d changed openings were let in", let)
	}
	if n := g.metrics.admin[wire.AdminOpEvict].Load() - before; n != let {
		t.Errorf("%d requests were carried out, %d answered", n, let)
	}
	g.wantUnharmed(t)
}

// TestKeyNowhere looks for the token in all that servers, nodes and administrators say.
func TestKeyNowhere(t *testing.T) {
	g := newGuardedServer(t)
	log, lines := testkit.NewLog(t)
	p := withToken(g.addr, g.path, 2)
	c := client.New(p, controltest.NewObserver(), log, startHost)
	defer c.Close(controltest.Context(t))
	if err := c.Connect(controltest.Context(t)); err != nil {
		t.Fatal(err)
	}
	said := []string{fmt.Sprintf("%+v", g.Status()), string(g.metricsPage())}
	for _, token := range []*secret.Token{nil, openToken(t, otherToken), openToken(t, otherToken, goodToken)} {
		_, err := client.Ask(controltest.Context(t), g.addr, token, "another", rendezvous.CloseRun{By: "me", Reason: "x", Stop: true})
		said = append(said, fmt.Sprint(err))
	}
	open, addr := testServer(t, Config{})
	_, err := client.Ask(controltest.Context(t), addr, openToken(t, goodToken), "another", rendezvous.CloseRun{By: "me", Reason: "x", Stop: true})
	said = append(said, fmt.Sprint(err), fmt.Sprintf("%+v", open.Status()))
	for _, bad := range []string{goodToken[:20], goodToken + "\n" + otherToken + "\n" + goodToken} {
		path := t.TempDir() + "/bad"
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := secret.OpenToken(path, nil)
		said = append(said, fmt.Sprint(err))
	}
	said = append(said, g.log.All()...)
	said = append(said, lines.All()...)
	for _, text := range said {
		for _, key := range []string{goodToken, otherToken, goodToken[:20]} {
			if strings.Contains(text, key) {
				t.Errorf("the token is in %q", text)
			}
		}
	}
	if len(said) < 10 {
		t.Errorf("only %d texts were looked at", len(said))
	}
}

// TestHost: with a token, HTTP without a proof is for this process's user, on this machine,
// by a name of ours.
func TestHost(t *testing.T) {
	g := newGuardedServer(t)
	ask := func(conn net.Conn, text string) string {
		t.Helper()
		conn.SetDeadline(time.Now().Add(testkit.Patience))
		_, _ = io.WriteString(conn, text)
		answer, _ := io.ReadAll(conn)
		return string(answer)
	}
	request := func(path, host, more string) string {
		return "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n" + more + "\r\n"
	}
	for name, test := range map[string]struct {
		text string
		want string
	}{
		"own":              {request("/status", "127.0.0.1:29400", ""), "HTTP/1.1 200"},
		"localhost":        {request("/metrics", "localhost", ""), "HTTP/1.1 200"},
		"foreign":          {request("/status", "evil.example", ""), "HTTP/1.1 421"},
		"foreign, browser": {request("/status", "evil.example", "User-Agent: Mozilla/5.0\r\n"), "HTTP/1.1 421"},
		"foreign, health":  {request("/healthz", "evil.example", ""), "HTTP/1.1 200"},
		"long header":      {request("/status", "localhost", "X: "+strings.Repeat("x", httpport.MaxHead)+"\r\n"), "HTTP/1.1 431"},
	} {
		conn := dialNode(t, g.addr).conn
		if answer := ask(conn, test.text); !strings.HasPrefix(answer, test.want) {
			t.Errorf("%s: %.80q, want %s", name, answer, test.want)
		}
	}
	if answer := ask(dialNode(t, g.addr).conn, "POST /status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"); strings.HasPrefix(answer, "HTTP/1.1 200") {
		t.Errorf("POST: %.80q", answer)
	}
	if os.Geteuid() == 0 {
		if answer := ask(peertest.Dial(t, peertest.Stranger, g.addr), request("/status", "localhost", "")); !strings.HasPrefix(answer, fmt.Sprintf("HTTP/1.1 %d", http.StatusForbidden)) || strings.Contains(answer, "run") {
			t.Errorf("another user: %q", answer)
		}
		if answer := ask(peertest.Dial(t, peertest.Stranger, g.addr), request("/healthz", "localhost", "")); !strings.HasPrefix(answer, "HTTP/1.1 200") {
			t.Errorf("another user asks whether it lives: %q", answer)
		}
	}
	g.wantUnharmed(t)
}

// TestProofForAStore: a client that has the right token and looks for a round store, or a port beside it, and is
// led to the control plane by a machine in the middle, gets nothing from it, and it learns nothing from the client.
func TestProofForAStore(t *testing.T) {
	g := newGuardedServer(t)
	for _, purpose := range []secret.Purpose{secret.PurposeStore, secret.PurposeSide} {
		conn := testkit.Must(net.Dial("tcp", g.addr))(t)
		_, err := secret.DialStore(controltest.Context(t), conn, openToken(t, goodToken), secret.StoreName{Run: "run", Generation: "g", Round: 1}, purpose)
		controltest.WantCode(t, err, rendezvous.CodeAuth)
		conn.Close()
	}
	g.awaitRefused(t, refusedAuth, 2)
	g.wantUnharmed(t)
}
