package control

import (
	"bufio"
	"bytes"
	"context"
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
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
)

const (
	goodToken  = "correct horse battery staple, and more"
	otherToken = "Tr0ub4dor&3 Tr0ub4dor&3 Tr0ub4dor&3"
)

// tokenFile writes a file of tokens that is removed with the test.
func tokenFile(t testing.TB, tokens ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	writeTokens(t, path, tokens...)
	return path
}

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
	token, err := secret.OpenToken(tokenFile(t, tokens...), nil)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// withToken are parameters of a node that has a token file.
func withToken(endpoint, path string, n int) rendezvous.Params {
	p := controltest.Params(endpoint, n)
	p.TokenFile = path
	return p
}

// TestTokenLetsIn has nodes meet with a token, the first as the host, and with
// files that share one of their tokens only.
func TestTokenLetsIn(t *testing.T) {
	endpoint := fmt.Sprintf("127.0.0.1:%d", controltest.FreePort(t))
	a := connected(t, withToken(endpoint, tokenFile(t, goodToken), 3), controltest.NewObserver())
	if !a.Hosting() {
		t.Fatal("the first does not host")
	}
	b := connected(t, withToken(endpoint, tokenFile(t, otherToken, goodToken), 3), controltest.NewObserver())
	c := connected(t, withToken(endpoint, tokenFile(t, goodToken, otherToken), 3), controltest.NewObserver())
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
	good, other := tokenFile(t, goodToken), tokenFile(t, otherToken)
	s := newFakeServer(t, Config{Token: openToken(t, goodToken)})
	twoNodesOf(t, s, good)
	for name, test := range map[string]struct {
		path   string
		advice string
	}{
		"none":  {"", "wants a token: give its file by token_file, --token-file or RALLYPOINT_TOKEN_FILE"},
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
		_, err = client.AdminClose(controltest.Context(t), s.addr, token, "run", "me", "why not", true)
		controltest.WantCode(t, err, rendezvous.CodeAuth, "authentication failed: the control plane at "+s.addr)
		if strings.Contains(err.Error(), "run \"run\"") || strings.Contains(err.Error(), "pid") {
			t.Errorf("%s: a stranger receives %v", name, err)
		}
	}
	s.awaitRefused(t, refusedAuth, 4)
	if done, err := client.AdminClose(controltest.Context(t), s.addr, openToken(t, goodToken), "run", "me", "done", false); err != nil {
		t.Errorf("%q, %v", done, err)
	}

	// The control plane has no token, but the node has: it must not go on.
	open, addr := testServer(t, Config{})
	c := newTestClient(t, withToken(addr, good, 2), controltest.NewObserver())
	err := c.Connect(controltest.Context(t))
	controltest.WantCode(t, err, rendezvous.CodeAuth, "the control plane at "+addr+" has no token, but this process was given one ("+good+")")
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

// proven opens a connection by hand up to the server's challenge.
func (n *wireNode) challenge() wire.Transcript {
	n.t.Helper()
	o := wire.Transcript{Node: wire.Preamble{High: wire.ProtocolVersion, Low: wire.OldestVersion, Token: true}, NodeNonce: wire.NewNonce()}
	n.write(wire.AppendFrame(o.Node.Bytes(), wire.Challenge{Nonce: o.NodeNonce}))
	var answer [wire.PreambleLen]byte
	if _, err := io.ReadFull(n.frames.In, answer[:]); err != nil {
		n.t.Fatal(err)
	}
	o.Server, _ = wire.ParsePreamble(answer[:])
	f, ok := n.next().(wire.Challenge)
	if !ok || !o.Server.Token {
		n.t.Fatalf("got %+v", f)
	}
	o.ServerNonce = f.Nonce
	return o
}

func (n *wireNode) wantDenied() {
	n.t.Helper()
	if f, ok := n.next().(wire.Refuse); !ok || *f.Err != *wire.ErrAuth {
		n.t.Errorf("got %+v, want a refusal", f)
	}
	n.awaitEnd()
}

// TestProofsCountOnce replays what a node has said, sends a proof of another
// connection, of the other direction and for another version, and returns the
// server's own.
func TestProofsCountOnce(t *testing.T) {
	s := newFakeServer(t, Config{Token: openToken(t, goodToken)})
	tokens := [][]byte{[]byte(goodToken)}
	h := testHello("a", "s1", controltest.Params("", 1))

	first := dialNode(t, s.addr)
	o := first.challenge()
	said := append(wire.AppendFrame(nil, o.Prove(wire.ProofOfNode, tokens)), wire.AppendFrame(nil, h)...)
	first.write(said)
	answer, ok := first.next().(wire.Proof)
	if !ok || o.Verify(wire.ProofOfServer, answer, tokens) == nil {
		t.Fatalf("the server answered %+v", answer)
	}
	if o.Verify(wire.ProofOfNode, answer, tokens) != nil {
		t.Error("the server's proof would do for a node")
	}
	if w, ok := first.next().(wire.Welcome); !ok {
		t.Fatalf("got %+v", w)
	}

	replay := dialNode(t, s.addr)
	replay.write(wire.AppendFrame(o.Node.Bytes(), wire.Challenge{Nonce: o.NodeNonce}))
	replay.write(said)
	var b [wire.PreambleLen]byte
	_, _ = io.ReadFull(replay.frames.In, b[:])
	if f, ok := replay.next().(wire.Challenge); !ok || bytes.Equal(f.Nonce, o.ServerNonce) {
		t.Fatalf("the server's nonce is the same again: %+v", f)
	}
	replay.wantDenied()

	for name, change := range map[string]func(*wire.Transcript, *wire.Proof){
		"reflected":       func(o *wire.Transcript, f *wire.Proof) { *f = o.Prove(wire.ProofOfServer, tokens) },
		"of another":      func(_ *wire.Transcript, f *wire.Proof) { *f = answer },
		"another version": func(o *wire.Transcript, f *wire.Proof) { o.Node.Low = 0; *f = o.Prove(wire.ProofOfNode, tokens) },
		"one bit off":     func(_ *wire.Transcript, f *wire.Proof) { f.MACs[0][31] ^= 1 },
		"cut":             func(_ *wire.Transcript, f *wire.Proof) { f.MACs[0] = f.MACs[0][:31] },
		"empty":           func(_ *wire.Transcript, f *wire.Proof) { f.MACs[0] = nil },
		"none":            func(_ *wire.Transcript, f *wire.Proof) { f.MACs = nil },
	} {
		n := dialNode(t, s.addr)
		o := n.challenge()
		f := o.Prove(wire.ProofOfNode, tokens)
		change(&o, &f)
		n.write(append(wire.AppendFrame(nil, f), wire.AppendFrame(nil, h)...))
		t.Run(name, func(t *testing.T) { n.t = t; n.wantDenied() })
	}
	if st, _ := s.RunStatus("run"); len(st.Runs) != 1 || len(st.Runs[0].Idle) != 1 {
		t.Errorf("a stranger has got in: %+v", st)
	}
}

// TestTokenKnowsTheServer connects to a server that only poses as a control plane.
func TestTokenKnowsTheServer(t *testing.T) {
	for name, test := range map[string]struct {
		answer func(o wire.Transcript, theirs wire.Proof) wire.Frame
		code   rendezvous.Code
		says   string
	}{
		"without":   {func(wire.Transcript, wire.Proof) wire.Frame { return wire.Proof{} }, rendezvous.CodeAuth, "it is not the control plane that it should be"},
		"mirror":    {func(_ wire.Transcript, theirs wire.Proof) wire.Frame { return theirs }, rendezvous.CodeAuth, "it is not the control plane that it should be"},
		"welcoming": {func(wire.Transcript, wire.Proof) wire.Frame { return wire.Welcome{Version: 1, Lease: 1e9} }, 0, "answered a proof with a frame \"welcome\""},
		"silent":    {func(wire.Transcript, wire.Proof) wire.Frame { return wire.Refuse{} }, rendezvous.CodeState, "did not say why"},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			frames := wire.FrameReader{In: bufio.NewReader(conn)}
			_, _ = frames.In.Discard(wire.PreambleLen)
			f, _ := frames.NextFrame(wire.MaxFrame)
			theirs, _ := f.(wire.Challenge)
			o := wire.Transcript{Server: wire.Preamble{High: 1, Low: 1, Token: true}, NodeNonce: theirs.Nonce, ServerNonce: wire.NewNonce()}
			conn.Write(wire.AppendFrame(o.Server.Bytes(), wire.Challenge{Nonce: o.ServerNonce}))
			f, _ = frames.NextFrame(wire.MaxFrame)
			p, _ := f.(wire.Proof)
			conn.Write(wire.AppendFrame(nil, test.answer(o, p)))
			io.Copy(io.Discard, conn)
		})
		_, err = client.DialHTTP(controltest.Context(t), l.Addr().String(), openToken(t, goodToken))
		if err == nil || !strings.Contains(err.Error(), test.says) || test.code != 0 && rendezvous.CodeOf(err) != test.code {
			t.Errorf("%s: %v", name, err)
		}
		l.Close()
		wg.Wait()
	}
}

// TestTokenIsChanged changes the token of a control plane while a node runs: the
// node, whose file is late, tries on until its file is changed, too.
func TestTokenIsChanged(t *testing.T) {
	path, theirs := tokenFile(t, goodToken), tokenFile(t, goodToken)
	token, err := secret.OpenToken(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := newFakeServer(t, Config{Token: token})
	log, lines := controltest.NewLog(t)
	obs := controltest.NewObserver()
	c := client.New(withToken(s.addr, theirs, 1), obs, log, startHost)
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
func (s *fakeServer) cutNode(t *testing.T, c *client.Client) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.conns {
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
	frames := wire.FrameReader{In: bufio.NewReader(n.conn)}
	if _, err := (wire.ClientHandshake{Token: token, Addr: near.Addr()}).Run(n.conn, &frames, nil); err != nil {
		t.Fatal(err)
	}
	if code, body := ask(&wire.PeekedConn{Conn: n.conn, In: frames.In}, "/status"); code != 200 {
		t.Errorf("/status from elsewhere with a proof: %d %q", code, body)
	}

	open := newPipes()
	s2 := Start(Config{Token: token, HTTPOpen: true}, open)
	defer s2.Close()
	if code, body := ask(open.dial(t).conn, "/metrics"); code != 200 || !strings.Contains(body, "rallypoint_runs") {
		t.Errorf("/metrics of an open port: %d", code)
	}
}

// FuzzStranger lets a client without the token send anything: the server answers
// with its challenge and a refusal at most, and others are still served.
func FuzzStranger(f *testing.F) {
	path := tokenFile(f, goodToken)
	token, err := secret.OpenToken(path, nil)
	if err != nil {
		f.Fatal(err)
	}
	with := wire.Preamble{High: wire.ProtocolVersion, Low: wire.OldestVersion, Token: true}.Bytes()
	without := wire.Preamble{High: wire.ProtocolVersion, Low: wire.OldestVersion}.Bytes()
	h := testHello("x", "x", controltest.Params("", 1))
	ch := wire.Challenge{Nonce: wire.NewNonce()}
	mac := wire.Proof{MACs: [][]byte{make([]byte, 32)}}
	f.Add(wire.AppendFrame(without, h))
	f.Add(wire.AppendFrame(with, h))
	f.Add(wire.AppendFrame(wire.AppendFrame(with, ch), h))
	f.Add(wire.AppendFrame(wire.AppendFrame(wire.AppendFrame(with, ch), mac), h))
	f.Add(wire.AppendFrame(wire.AppendFrame(wire.AppendFrame(with, ch), wire.Proof{}), wire.Admin{Op: wire.AdminOpClose, RunID: "run"}))
	f.Add(append(wire.AppendFrame(wire.AppendFrame(with, ch), wire.Proof{}), "GET /status HTTP/1.0\r\n\r\n"...))
	f.Add(wire.Preamble{High: 9, Low: 9, Token: true}.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		if bytes.HasPrefix(data, []byte("GET ")) {
			return // net/http's own matter, and slow
		}
		listener := newPipes()
		s := Start(Config{Token: token}, listener)
		defer s.Close()
		stranger := listener.dial(t)
		var answer []byte
		var wg sync.WaitGroup
		wg.Go(func() { answer, _ = io.ReadAll(stranger.conn) })
		stranger.conn.Write(data)
		stranger.conn.Close()
		wg.Wait()
		if len(answer) > wire.PreambleLen {
			r := wire.FrameReader{In: bufio.NewReader(bytes.NewReader(answer[wire.PreambleLen:]))}
			for {
				f, err := r.NextFrame(wire.MaxFrame)
				if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
					break
				}
				switch f := f.(type) {
				case wire.Challenge:
				case wire.Refuse:
					if *f.Err != *wire.ErrAuth {
						t.Errorf("a stranger receives %v", f.Err)
					}
				default:
					t.Fatalf("a stranger receives %+v, %v", f, err)
				}
			}
		}
		good := listener.dial(t)
		defer good.conn.Close()
		if _, err := (wire.ClientHandshake{Token: token, Addr: listener.Addr()}).Run(good.conn, &good.frames, wire.AppendFrame(nil, h)); err != nil {
			t.Fatal(err)
		}
		if w, ok := good.next().(wire.Welcome); !ok {
			t.Errorf("got %+v", w)
		}
	})
}
