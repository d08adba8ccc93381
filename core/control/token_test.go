package control

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"rallypoint/core/control/client"
	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/internal/testkit"
)

const (
	goodToken  = "correct horse battery staple, and more"
	otherToken = "Tr0ub4dor&3 Tr0ub4dor&3 Tr0ub4dor&3"
)

// writeTokens replaces a file at once, as an administrator's tool does.
func writeTokens(t testing.TB, path string, tokens ...string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(strings.Join(tokens, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func openToken(t testing.TB, tokens ...string) *secret.Token {
	t.Helper()
	token, err := secret.OpenToken(testkit.TokenFile(t, tokens...), nil)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// withToken are parameters of a node that has a token file.
func withToken(endpoint, path string, n int) params.Params {
	p := controltest.Params(endpoint, n)
	p.TokenFile = path
	return p
}

// TestTokenLetsIn has nodes meet with a token, the first as the host, and with
// files that share one of their tokens only.
func TestTokenLetsIn(t *testing.T) {
	endpoint := fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t))
	a := connected(t, withToken(endpoint, testkit.TokenFile(t, goodToken), 3), controltest.NewObserver())
	if !a.Hosting() {
		t.Fatal("the first does not host")
	}
	b := connected(t, withToken(endpoint, testkit.TokenFile(t, otherToken, goodToken), 3), controltest.NewObserver())
	c := connected(t, withToken(endpoint, testkit.TokenFile(t, goodToken, otherToken), 3), controltest.NewObserver())
	calls := []*member.Call{a.Start(controltest.Join()), b.Start(controltest.Join()), c.Start(controltest.Join())}
	for _, call := range calls {
		if o := controltest.Outcome(t, call); o.World != 3 {
			t.Errorf("outcome %+v", o)
		}
	}
}

// TestTokenRefuses has all that may be wrong; the error says what to do, and the
// refused end learns nothing else.
func TestTokenRefuses(t *testing.T) {
	good, other := testkit.TokenFile(t, goodToken), testkit.TokenFile(t, otherToken)
	s := newFakeServer(t, Config{Token: openToken(t, goodToken)})
	twoNodesOf(t, s, good)
	for name, test := range map[string]struct {
		path   string
		advice string
	}{
		"none":  {"", "requires a token: give its file by token_file, --token-file or RALLYPOINT_TOKEN_FILE"},
		"wrong": {other, "does not know the token in " + other},
	} {
		c := newTestClient(t, withToken(s.addr, test.path, 2), controltest.NewObserver())
		err := c.Connect(controltest.Context(t))
		controltest.WantCode(t, err, rendezvous.CodeAuth, "authentication failed: the control plane at "+s.addr, test.advice)
		s.log.Await(t, "authentication failed: it ", 1)
		var token *secret.Token
		if test.path != "" {
			token = openToken(t, otherToken)
		}
		_, err = client.Ask(controltest.Context(t), s.addr, token, "run", rendezvous.CloseRun{By: "me", Reason: "why not", Stop: true})
		controltest.WantCode(t, err, rendezvous.CodeAuth, "authentication failed: the control plane at "+s.addr)
		if strings.Contains(err.Error(), "run \"run\"") || strings.Contains(err.Error(), "pid") {
			t.Errorf("%s: a stranger receives %v", name, err)
		}
	}
	s.awaitRefused(t, refusedAuth, 4)
	if done, err := client.Ask(controltest.Context(t), s.addr, openToken(t, goodToken), "run", rendezvous.CloseRun{By: "me", Reason: "done"}); err != nil {
		t.Errorf("%q, %v", done, err)
	}

	// The control plane has no token, but the node has: it must not continue.
	open, addr := testServer(t, Config{})
	c := newTestClient(t, withToken(addr, good, 2), controltest.NewObserver())
	err := c.Connect(controltest.Context(t))
	controltest.WantCode(t, err, rendezvous.CodeAuth, "the control plane at "+addr+" has no token, but this process was given one ("+good+", fingerprint "+secret.Fingerprint([]byte(goodToken))+")")
	if _, ok := open.RunStatus("run"); ok {
		t.Error("a node that was refused has said which run it wants")
	}
	_, err = client.DialHTTP(controltest.Context(t), addr, openToken(t, goodToken))
	controltest.WantCode(t, err, rendezvous.CodeAuth, "has no token")

	bad := newTestClient(t, withToken(addr, filepath.Join(t.TempDir(), "none"), 2), controltest.NewObserver())
	controltest.WantCode(t, bad.Connect(controltest.Context(t)), rendezvous.CodeInvalid, "no such file")
}

// twoNodesOf lets two nodes with a token form a round.
func twoNodesOf(t *testing.T, s *fakeServer, path string) {
	t.Helper()
	a := connected(t, withToken(s.addr, path, 2), controltest.NewObserver())
	b := connected(t, withToken(s.addr, path, 2), controltest.NewObserver())
	ca, cb := a.Start(controltest.Join()), b.Start(controltest.Join())
	controltest.Outcome(t, ca)
	controltest.Outcome(t, cb)
}

// guarded is the preamble of a node with a token.
var guarded = wire.Preamble{High: wire.ProtocolVersion, Low: wire.OldestVersion, Token: true}

// secureNode is a node by hand that has made its TLS handshake.
func secureNode(t *testing.T, addr string) *wireNode {
	t.Helper()
	n := dialNode(t, addr)
	n.secure()
	return n
}

// secure makes the TLS handshake; any token will do for that.
func (wn *wireNode) secure() {
	wn.t.Helper()
	conn := wire.NewConn(wn.conn)
	if err := conn.Open(openToken(wn.t, otherToken)); err != nil {
		wn.t.Fatal(err)
	}
	wn.conn, wn.frames.In = conn, bufio.NewReader(conn)
}

// transcript is what the node's proof is about.
func (wn *wireNode) transcript() secret.Transcript {
	return secret.Transcript{Purpose: secret.PurposeControl, Said: guarded.Bytes(), Exporter: wn.conn.(*wire.Conn).Exporter()}
}

// opening is what a node says after the handshake.
func opening(proof wire.Proof, first wire.Frame) []byte {
	return wire.AppendFrame(wire.AppendFrame(guarded.Bytes(), proof), first)
}

func (wn *wireNode) preamble() wire.Preamble {
	wn.t.Helper()
	var answer [wire.PreambleLen]byte
	if _, err := io.ReadFull(wn.frames.In, answer[:]); err != nil {
		wn.t.Fatal(err)
	}
	p, err := secret.ParsePreamble(answer[:])
	if err != nil {
		wn.t.Fatal(err)
	}
	return p
}

func (wn *wireNode) wantDenied() {
	wn.t.Helper()
	wn.preamble()
	if f, ok := wn.next().(wire.Refuse); !ok || *f.Err != *wire.ErrAuth {
		wn.t.Errorf("got %+v, want a refusal", f)
	}
	wn.awaitEnd()
}

// TestProofsCountOnce replays what a node has said, sends a proof of another
// connection, of the other direction, for another purpose and version, and returns the
// server's own.
func TestProofsCountOnce(t *testing.T) {
	s := newFakeServer(t, Config{Token: openToken(t, goodToken)})
	keys := [][]byte{[]byte(goodToken)}
	h := testHello("a", "s1", controltest.Params("", 1))

	first := secureNode(t, s.addr)
	o := first.transcript()
	said := opening(wire.Proof{MACs: o.Prove(secret.OfNode, keys), Purpose: o.Purpose}, h)
	first.write(said)
	theirs := first.preamble()
	answer, ok := first.next().(wire.Proof)
	o.Said = append(o.Said, theirs.Bytes()...)
	if !ok || o.Check(secret.OfServer, answer.MACs, keys) == nil {
		t.Fatalf("the server answered %+v", answer)
	}
	if o.Check(secret.OfNode, answer.MACs, keys) != nil || first.transcript().Check(secret.OfNode, answer.MACs, keys) != nil {
		t.Error("the server's proof would do for a node")
	}
	if w, ok := first.next().(wire.Welcome); !ok {
		t.Fatalf("got %+v", w)
	}

	replay := secureNode(t, s.addr)
	replay.write(said)
	replay.wantDenied()

	for name, change := range map[string]func(*secret.Transcript, *wire.Proof){
		"reflected":       func(o *secret.Transcript, f *wire.Proof) { f.MACs = o.Prove(secret.OfServer, keys) },
		"of another":      func(_ *secret.Transcript, f *wire.Proof) { *f = answer },
		"another version": func(o *secret.Transcript, f *wire.Proof) { o.Said[5] = 0; f.MACs = o.Prove(secret.OfNode, keys) },
		"another purpose": func(o *secret.Transcript, f *wire.Proof) { o.Purpose = 2; f.MACs = o.Prove(secret.OfNode, keys) },
		"purpose changed": func(o *secret.Transcript, f *wire.Proof) { f.Purpose = 2 },
		"no exporter":     func(o *secret.Transcript, f *wire.Proof) { o.Exporter = nil; f.MACs = o.Prove(secret.OfNode, keys) },
		"one bit off":     func(_ *secret.Transcript, f *wire.Proof) { f.MACs[0][31] ^= 1 },
		"cut":             func(_ *secret.Transcript, f *wire.Proof) { f.MACs[0] = f.MACs[0][:31] },
		"empty":           func(_ *secret.Transcript, f *wire.Proof) { f.MACs[0] = nil },
		"none":            func(_ *secret.Transcript, f *wire.Proof) { f.MACs = nil },
	} {
		n := secureNode(t, s.addr)
		o := n.transcript()
		f := wire.Proof{MACs: o.Prove(secret.OfNode, keys), Purpose: o.Purpose}
		change(&o, &f)
		n.write(opening(f, h))
		t.Run(name, func(t *testing.T) { n.t = t; n.wantDenied() })
	}
	if st, _ := s.RunStatus("run"); len(st.Runs) != 1 || len(st.Runs[0].Idle) != 1 {
		t.Errorf("a stranger has got in: %+v", st)
	}
}

// TestTokenKnowsTheServer connects to what only poses as a control plane: it is not believed,
// and learns nothing of the node, not even its name.
func TestTokenKnowsTheServer(t *testing.T) {
	for name, test := range map[string]struct {
		answer func(theirs wire.Proof) wire.Frame
		code   rendezvous.Code
		says   string
	}{
		"without":   {func(wire.Proof) wire.Frame { return wire.Proof{} }, rendezvous.CodeAuth, "it is not the control plane that it should be"},
		"mirror":    {func(theirs wire.Proof) wire.Frame { return theirs }, rendezvous.CodeAuth, "it is not the control plane that it should be"},
		"welcoming": {func(wire.Proof) wire.Frame { return wire.Welcome{Version: 1, Lease: 1e9} }, 0, "answered a proof with a frame \"welcome\""},
		"silent":    {func(wire.Proof) wire.Frame { return wire.Refuse{} }, rendezvous.CodeAuth, "does not know the token in"},
		// A node ends for good by each of these, if a control plane says so.
		"closed":   {refusing(rendezvous.CodeClosed), rendezvous.CodeAuth, "does not know the token in"},
		"evicted":  {refusing(rendezvous.CodeEvicted), rendezvous.CodeAuth, "does not know the token in"},
		"mismatch": {refusing(rendezvous.CodeMismatch), rendezvous.CodeAuth, "does not know the token in"},
		"in words": {refusing(rendezvous.CodeAuth), rendezvous.CodeAuth, "does not know the token in"},
		"newer":    {refusing(rendezvous.CodeState), rendezvous.CodeAuth, "use the same release everywhere"},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		settings, err := secret.ServerTLS()
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			defer raw.Close()
			conn := tls.Server(raw, settings)
			frames := wire.FrameReader{In: bufio.NewReader(conn)}
			_, _ = frames.In.Discard(wire.PreambleLen)
			f, _ := frames.NextFrame(wire.MaxFrame)
			p, _ := f.(wire.Proof)
			says := guarded
			if name == "newer" {
				says.High, says.Low = wire.ProtocolVersion+8, wire.ProtocolVersion+8
			}
			conn.Write(wire.AppendFrame(says.Bytes(), test.answer(p)))
			if told, _ := io.ReadAll(frames.In); len(told) > 0 {
				t.Errorf("%s: the node has said %q", name, told)
			}
		})
		conn := dialTaped(t, l.Addr().String())
		_, err = openAs(conn, openToken(t, goodToken), attackHello())
		conn.Close()
		if err == nil || !strings.Contains(err.Error(), test.says) || test.code != 0 && rendezvous.CodeOf(err) != test.code {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), "lies") {
			t.Errorf("%s is believed: %v", name, err)
		}
		l.Close()
		wg.Wait()
	}
}

// refusing refuses without a proof.
func refusing(code rendezvous.Code) func(wire.Proof) wire.Frame {
	return func(wire.Proof) wire.Frame { return wire.Refuse{Err: rendezvous.Errorf(code, "lies")} }
}

// TestTokenIsChanged changes the token of a control plane while a node runs: the
// node, whose file is late, tries on until its file is changed, too.
func TestTokenIsChanged(t *testing.T) {
	path, theirs := testkit.TokenFile(t, goodToken), testkit.TokenFile(t, goodToken)
	token, err := secret.OpenToken(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := newFakeServer(t, Config{Token: token})
	log, lines := testkit.NewLog(t)
	obs := controltest.NewObserver()
	p := withToken(s.addr, theirs, 1)
	c := client.New(p, obs, log, startHost)
	defer func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		c.Close(ctx)
	}()
	if err := c.Connect(controltest.Context(t)); err != nil {
		t.Fatal(err)
	}
	writeTokens(t, path, otherToken)
	s.cutNode(t, c)
	lines.Await(t, "authentication failed", 1)
	s.log.Await(t, "it does not know the token", 1)
	for _, e := range obs.All() {
		if err, ok := e.(*rendezvous.Error); ok {
			t.Errorf("the node was given up: %v", err)
		}
	}
	writeTokens(t, theirs, otherToken, goodToken)
	obs.Await(t, "that it is back", func(e any) bool { b, ok := e.(controltest.ConnectionChange); return ok && b.Err == nil })
	if o := controltest.Outcome(t, c.Start(controltest.Join())); o.World != 1 {
		t.Errorf("outcome %+v", o)
	}
}

// cutNode breaks a client's connection.
func (f *fakeServer) cutNode(t *testing.T, c *client.Client) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for p := range f.conns {
		p.conn.Close()
	}
}

// TestTokenGuardsHTTP asks from this machine, from elsewhere (a pipe has no
// address of this machine), and with a proof.
func TestTokenGuardsHTTP(t *testing.T) {
	ask := func(conn net.Conn, path string) (int, string) {
		t.Helper()
		req, _ := http.NewRequest(http.MethodGet, "http://x"+path, nil)
		req.Close = true
		go func() { _ = req.Write(conn) }()
		resp, err := http.ReadResponse(bufio.NewReader(conn), req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	token := openToken(t, goodToken)
	far := newPipes()
	near, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := Start(Config{Token: token}, near, far)
	defer s.Close()
	if code, _, _ := get(t, near.Addr().String(), "/status"); code != 200 {
		t.Errorf("/status from here: %d", code)
	}
	if code, body := ask(far.dial(t).conn, "/healthz"); code != 200 || body != "ok\n" {
		t.Errorf("/healthz: %d %q", code, body)
	}
	for _, path := range []string{"/status", "/metrics", "/status?rdzv_id=x", "/", "/healthz/../status"} {
		if code, body := ask(far.dial(t).conn, path); code != 403 || body != "authentication failed\n" {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
	conn, err := client.DialHTTP(controltest.Context(t), near.Addr().String(), token)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if code, body := ask(conn, "/status"); code != 200 || !strings.HasPrefix(body, "{") {
		t.Errorf("/status with a proof: %d %q", code, body)
	}
	n := far.dial(t)
	n.secure()
	if _, err := (wire.ClientHandshake{Token: token, Addr: near.Addr()}).Run(n.conn, &n.frames, nil); err != nil {
		t.Fatal(err)
	}
	if code, body := ask(&wire.PeekedConn{Conn: n.conn, In: n.frames.In}, "/status"); code != 200 {
		t.Errorf("/status from elsewhere with a proof: %d %q", code, body)
	}

	open := newPipes()
	s2 := Start(Config{Token: token, MetricsOpen: true}, open)
	defer s2.Close()
	if code, body := ask(open.dial(t).conn, "/metrics"); code != 200 || !strings.Contains(body, "rallypoint_runs") {
		t.Errorf("/metrics that are open: %d", code)
	}
	for _, path := range []string{"/status", "/status?rdzv_id=x", "/", "/metrics/../status"} { // which show exceptions
		if code, body := ask(open.dial(t).conn, path); code != 403 || body != "authentication failed\n" {
			t.Errorf("%s beside open metrics: %d %q", path, code, body)
		}
	}
}

// TestTokenInMetrics: a scraper learns whether there is a token and which, but strangers do not.
func TestTokenInMetrics(t *testing.T) {
	token := openToken(t, otherToken, goodToken)
	for name, test := range map[string]struct {
		cfg  Config
		want int // tokens
	}{
		"a new and an old token": {Config{Token: token}, 2}, "none": {Config{}, 0}, "for strangers": {Config{Token: token, MetricsOpen: true}, 0},
	} {
		page := string(newFakeServer(t, test.cfg).metricsPage())
		if n := strings.Count(page, "\nrallypoint_token_info{"); n != test.want {
			t.Errorf("%s: %d tokens", name, n)
		}
		for _, key := range []string{otherToken, goodToken} {
			line := fmt.Sprintf("\nrallypoint_token_info{fingerprint=%q} 1\n", secret.Fingerprint([]byte(key)))
			if strings.Contains(page, line) != (test.want > 0) || strings.Contains(page, key) {
				t.Errorf("%s: %s", name, page)
			}
		}
	}
}

// FuzzStranger lets a peer without the token say anything, in plain or within TLS: the
// server answers with its preamble and a refusal at most, and others are still served.
func FuzzStranger(f *testing.F) {
	token := openToken(f, goodToken)
	without := wire.Preamble{High: wire.ProtocolVersion, Low: wire.OldestVersion}.Bytes()
	h := testHello("x", "x", controltest.Params("", 1))
	mac := wire.Proof{MACs: [][]byte{make([]byte, 32)}, Purpose: secret.PurposeControl}
	for _, secured := range []bool{false, true} {
		f.Add(wire.AppendFrame(without, h), secured)
		f.Add(wire.AppendFrame(guarded.Bytes(), h), secured)
		f.Add(opening(mac, h), secured)
		f.Add(opening(wire.Proof{}, wire.Admin{Op: wire.AdminOpClose, RunID: "run"}), secured)
		f.Add(append(wire.AppendFrame(guarded.Bytes(), wire.Proof{}), "GET /status HTTP/1.0\r\n\r\n"...), secured)
		f.Add(wire.Preamble{High: 9, Low: 9, Token: true}.Bytes(), secured)
		f.Add([]byte("\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03"), secured)
	}
	f.Fuzz(func(t *testing.T, data []byte, secured bool) {
		if bytes.HasPrefix(data, []byte("GET ")) {
			return // net/http's own matter, and slow
		}
		listener := newPipes()
		s := Start(Config{Token: token}, listener)
		defer s.Close()
		stranger := listener.dial(t)
		raw := stranger.conn
		if secured {
			stranger.secure()
		}
		var answer []byte
		var wg sync.WaitGroup
		wg.Go(func() { answer, _ = io.ReadAll(stranger.conn) })
		stranger.conn.Write(data)
		raw.Close()
		wg.Wait()
		wantNothingTold(t, answer)
		good := listener.dial(t)
		defer good.conn.Close()
		good.secure()
		if _, err := (wire.ClientHandshake{Token: token, Addr: listener.Addr()}).Run(good.conn, &good.frames, wire.AppendFrame(nil, h)); err != nil {
			t.Fatal(err)
		}
		if w, ok := good.next().(wire.Welcome); !ok {
			t.Errorf("got %+v", w)
		}
	})
}

// wantNothingTold wants an answer to say no more than that authentication failed, or to be
// an alert of TLS.
func wantNothingTold(t *testing.T, answer []byte) {
	t.Helper()
	const alert = 0x15
	if len(answer) <= wire.PreambleLen || answer[0] == alert {
		return
	}
	r := wire.FrameReader{In: bufio.NewReader(bytes.NewReader(answer[wire.PreambleLen:]))}
	for {
		f, err := r.NextFrame(wire.MaxFrame)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return
		}
		if f, ok := f.(wire.Refuse); !ok || *f.Err != *wire.ErrAuth {
			t.Fatalf("a stranger receives %+v, %v", f, err)
		}
	}
}
