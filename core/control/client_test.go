package control

import (
	"bufio"
	"context"
	"net"
	"testing"

	"rallypoint/core/control/wire"
	"rallypoint/core/member"
	"rallypoint/core/rendezvous"
)

func TestRefusalsAreFinal(t *testing.T) {
	addr := startServer(t, Config{RunID: "run"})
	first := guest(addr, 2)
	first.NodeID = "a"
	connected2(t, first, newSeen())
	tests := map[string]struct {
		change func(*rendezvous.Params)
		code   rendezvous.Code
	}{
		"mismatch":    {func(p *rendezvous.Params) { p.Min, p.Max = 3, 3 }, rendezvous.CodeMismatch},
		"tenant":      {func(p *rendezvous.Params) { p.RunID = "other" }, rendezvous.CodeTenant},
		"node in use": {func(p *rendezvous.Params) { p.NodeID, p.Incarnation = "a", 1 }, rendezvous.CodeNodeInUse},
		"invalid":     {func(p *rendezvous.Params) { p.Min = 0 }, rendezvous.CodeInvalid},
		"endpoint":    {func(p *rendezvous.Params) { p.Endpoint = "no host:x" }, rendezvous.CodeInvalid},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p := guest(addr, 2)
			test.change(&p)
			wantCode(t, newTestClient2(t, p, newSeen()).Connect(testContext(t)), test.code)
		})
	}
}

func TestCallsBeforeConnectAndAfterClose(t *testing.T) {
	addr := startServer(t, Config{})
	c := newTestClient2(t, guest(addr, 1), newSeen())
	early := c.Start(join())
	if err := c.Connect(testContext(t)); err != nil {
		t.Fatal(err)
	}
	outcome(t, early)
	pending := c.Start(rendezvous.KeyRequest{Round: 1, Op: rendezvous.KeyGet, Keys: []string{"never"}})
	if err := c.Close(testContext(t)); err != nil {
		t.Error(err)
	}
	_, err := pending.Wait(testContext(t))
	wantCode(t, err, rendezvous.CodeCanceled)
	_, err = c.Start(join()).Wait(testContext(t))
	wantCode(t, err, rendezvous.CodeCanceled)
	wantCode(t, c.Connect(testContext(t)), rendezvous.CodeCanceled)
}

func TestEventThatIsNoRequest(t *testing.T) {
	c := newTestClient2(t, testParams("", 1), newSeen())
	_, err := c.Start(rendezvous.Disconnect{}).Wait(testContext(t))
	wantCode(t, err, rendezvous.CodeInternal)
}

func TestBeats(t *testing.T) {
	beats := make(chan struct{}, 3)
	addr := fakeControlPlane(t, func(n *peerConn) {
		n.send(wire.Welcome{Version: 1, Lease: int64(300e6)})
		for range 3 {
			f, err := n.frames.NextFrame(wire.MaxFrame)
			if err != nil {
				return
			}
			if _, ok := f.(wire.Beat); ok {
				beats <- struct{}{}
			}
		}
	})
	connected2(t, guest(addr, 1), newSeen())
	for range 3 {
		select {
		case <-beats:
		case <-testContext(t).Done():
			t.Fatal("no beat")
		}
	}
}

// TestHelloAfterAnOutcome: a node that is dropped right behind its outcome says hello with
// the round that this was, also if its member has not taken it up yet.
func TestHelloAfterAnOutcome(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accept := func() (n *peerConn, h wire.Hello) {
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		n = &peerConn{t: t, conn: conn, frames: wire.FrameReader{In: bufio.NewReader(conn)}}
		n.frames.In.Discard(wire.PreambleLen)
		f, err := n.frames.NextFrame(wire.MaxFrame)
		if h, _ = f.(wire.Hello); err != nil {
			t.Fatal(err)
		}
		n.write(wire.Preamble{High: wire.ProtocolVersion, Low: wire.OldestVersion}.Bytes())
		n.send(wire.Welcome{Version: 1, Lease: int64(60e9), Server: "one"})
		return n, h
	}
	c := newTestClient2(t, guest(l.Addr().String(), 2), newSeen())
	c.Start(join())
	connecting := make(chan error, 1)
	go func() { connecting <- c.Connect(testContext(t)) }()
	n, h := accept()
	if err := <-connecting; err != nil || h.Claim.Round != 0 {
		t.Fatalf("%v, %+v", err, h.Claim)
	}
	n.send(wire.Reply{Number: 1, Result: rendezvous.Outcome{Generation: "g", Round: 3, Rank: 1, World: 2, HostRank: -1}})
	n.send(wire.Drop{})
	n.conn.Close()
	want := rendezvous.LastRound{Generation: "g", Round: 3, Rank: 1, World: 2, HostRank: -1}
	if _, h = accept(); h.Claim != want {
		t.Errorf("it claims %+v, want %+v", h.Claim, want)
	}
}

// fakeControlPlane reads one hello, sends the preamble and lets the test go on;
// it serves one connection.
func fakeControlPlane(t *testing.T, serve func(n *peerConn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		t.Cleanup(func() { conn.Close() })
		n := &peerConn{t: t, conn: conn, frames: wire.FrameReader{In: bufio.NewReader(conn)}}
		n.frames.In.Discard(wire.PreambleLen)
		if _, err := n.frames.NextFrame(wire.MaxFrame); err != nil {
			t.Error(err)
		}
		n.write(wire.Preamble{High: wire.ProtocolVersion, Low: wire.OldestVersion}.Bytes())
		serve(n)
	}()
	return l.Addr().String()
}

// TestStoppedServer has a server that accepts, and takes in the hello, but does
// not answer.
func TestStoppedServer(t *testing.T) {
	ctx, expire := expiring()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		conn.Read(make([]byte, 1))
		expire()
		conn.Read(make([]byte, 1<<20)) // the rest
		conn.Read(make([]byte, 1))     // until the client has given up
	}()
	c := newTestClient2(t, guest(l.Addr().String(), 2), newSeen())
	wantCode(t, c.Connect(ctx), rendezvous.CodeConnection, l.Addr().String(), "no answer")
	l.Close()
	<-done
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	wantCode(t, c.Connect(canceled), rendezvous.CodeCanceled, "canceled")
}

// TestCloseWithServerThatDoesNotRead fills the connection and closes.
func TestCloseWithServerThatDoesNotRead(t *testing.T) {
	addr := fakeControlPlane(t, func(n *peerConn) { n.send(wire.Welcome{Version: 1, Lease: int64(60e9)}) })
	c := connected2(t, guest(addr, 2), newSeen())
	var calls []*member.Call
	for range 8 {
		calls = append(calls, c.Start(rendezvous.KeyRequest{Op: rendezvous.KeySet, Keys: []string{"k"}, Values: [][]byte{make([]byte, 1<<20)}}))
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	c.Close(ctx)
	for _, call := range calls {
		_, err := call.Wait(testContext(t))
		wantCode(t, err, rendezvous.CodeCanceled)
	}
}

func TestConnectToSomethingElse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Write([]byte("SSH-2.0-OpenSSH"))
			conn.(*net.TCPConn).CloseWrite()
			t.Cleanup(func() { conn.Close() })
		}
	}()
	c := newTestClient2(t, guest(l.Addr().String(), 2), newSeen())
	err = c.Connect(afterDials(t, c, 1))
	wantCode(t, err, rendezvous.CodeConnection, "is no Rallypoint control plane", "5353482d")
}
