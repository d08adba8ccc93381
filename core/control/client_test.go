package control

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"testing"

	"rallypoint/core/control/wire"
	"rallypoint/core/member"
	"rallypoint/core/rendezvous"
)

// guest makes parameters of a node that never hosts.
func guest(endpoint string, n int) rendezvous.Params {
	p := testParams(endpoint, n)
	no := false
	p.IsHost = &no
	return p
}

func TestRefusalsAreFinal(t *testing.T) {
	_, addr := testServer(t, Config{RunID: "run"})
	first := guest(addr, 2)
	first.NodeID = "a"
	connected(t, first, newSeen())
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
			wantCode(t, newTestClient(t, p, newSeen()).Connect(testContext(t)), test.code)
		})
	}
}

func TestCallsBeforeConnectAndAfterClose(t *testing.T) {
	_, addr := testServer(t, Config{})
	c := newTestClient(t, guest(addr, 1), newSeen())
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
	c := newTestClient(t, testParams("", 1), newSeen())
	_, err := c.Start(rendezvous.Disconnect{}).Wait(testContext(t))
	wantCode(t, err, rendezvous.CodeInternal)
}

func TestBeats(t *testing.T) {
	beats := make(chan struct{}, 3)
	addr := fakeControlPlane(t, func(n *wireNode) {
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
	connected(t, guest(addr, 1), newSeen())
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
	accept := func() (n *wireNode, h wire.Hello) {
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		n = &wireNode{t: t, conn: conn, frames: wire.FrameReader{In: bufio.NewReader(conn)}}
		n.frames.In.Discard(wire.PreambleLen)
		f, err := n.frames.NextFrame(wire.MaxFrame)
		if h, _ = f.(wire.Hello); err != nil {
			t.Fatal(err)
		}
		n.write(wire.Preamble{High: wire.ProtocolVersion, Low: wire.OldestVersion}.Bytes())
		n.send(wire.Welcome{Version: 1, Lease: int64(60e9), Server: "one"})
		return n, h
	}
	c := newTestClient(t, guest(l.Addr().String(), 2), newSeen())
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
func fakeControlPlane(t *testing.T, serve func(n *wireNode)) string {
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
		n := &wireNode{t: t, conn: conn, frames: wire.FrameReader{In: bufio.NewReader(conn)}}
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
	c := newTestClient(t, guest(l.Addr().String(), 2), newSeen())
	wantCode(t, c.Connect(ctx), rendezvous.CodeConnection, l.Addr().String(), "no answer")
	l.Close()
	<-done
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	wantCode(t, c.Connect(canceled), rendezvous.CodeCanceled, "canceled")
}

// TestCloseWithServerThatDoesNotRead fills the connection and closes.
func TestCloseWithServerThatDoesNotRead(t *testing.T) {
	addr := fakeControlPlane(t, func(n *wireNode) { n.send(wire.Welcome{Version: 1, Lease: int64(60e9)}) })
	c := connected(t, guest(addr, 2), newSeen())
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
	c := newTestClient(t, guest(l.Addr().String(), 2), newSeen())
	err = c.Connect(afterDials(t, c, 1))
	wantCode(t, err, rendezvous.CodeConnection, "is no Rallypoint control plane", "5353482d")
}

func isDropped(e any) bool {
	err, ok := e.(*rendezvous.Error)
	return ok && err != nil
}

func isLost(e any) bool {
	c, ok := e.(connectionEvent)
	return ok && c.err != nil
}

func isBack(e any) bool {
	c, ok := e.(connectionEvent)
	return ok && c.err == nil
}

func TestEvictedNodeIsToldAndComesBack(t *testing.T) {
	rec := newRecorder(t)
	s, addr := testServer(t, Config{Recorder: rec.record})
	obs := newSeen()
	p := guest(addr, 1)
	p.NodeID = "a"
	c := connected(t, p, obs)
	c.SetLastRound(claimOf(outcome(t, c.Start(join()))))
	r, _ := s.runFor("run")
	r.callback(func() { r.apply(rendezvous.Evict{Node: "a", By: "a test", Reason: "to see"}) })
	obs.await(t, "that it was dropped", isDropped)
	obs.await(t, "that it must rejoin", func(e any) bool {
		n, ok := e.(rendezvous.MembershipUpdate)
		return ok && n.Waiting > 0
	})
	var dropped int
	for _, e := range obs.all() {
		if isDropped(e) {
			dropped++
			wantCode(t, e.(error), rendezvous.CodeEvicted, "evicted by a test", "to see")
		}
		if isLost(e) {
			t.Errorf("told that the control plane is lost: %v", e)
		}
	}
	if dropped != 1 {
		t.Errorf("told %d times that it was dropped, want once", dropped)
	}
	if o := outcome(t, c.Start(join())); o.Round != 2 {
		t.Errorf("round %d, want 2", o.Round)
	}
}

// TestDroppedWhileAway breaks the connection for longer than the grace.
func TestDroppedWhileAway(t *testing.T) {
	clock := newFakeClock()
	rec := newRecorder(t)
	_, addr := testServer(t, Config{Clock: clock, Recorder: rec.record})
	proxy := newProxy(t, addr)
	obs, other := newSeen(), newSeen()
	a, b := connected(t, guest(proxy.addr, 2), obs), connected(t, guest(addr, 2), other)
	ca, cb := a.Start(join()), b.Start(join())
	a.SetLastRound(claimOf(outcome(t, ca)))
	outcome(t, cb)
	proxy.stop()
	awaitEvents[rendezvous.Disconnect](t, rec, 1)
	obs.await(t, "the loss", isLost)
	clock.Advance(rendezvous.DefaultReconnectGrace)
	proxy.resume()
	obs.await(t, "the recovery", isBack)
	err := obs.await(t, "that it was dropped", isDropped)
	wantCode(t, err.(error), rendezvous.CodeEvicted, "round 1")
	other.await(t, "that a member is lost", func(e any) bool {
		n, ok := e.(rendezvous.MembershipUpdate)
		return ok && n.Waiting > 0
	})
}

func TestLossAndRecoveryAreToldOnce(t *testing.T) {
	rec := newRecorder(t)
	_, addr := testServer(t, Config{Recorder: rec.record})
	proxy := newProxy(t, addr)
	obs := newSeen()
	p := guest(proxy.addr, 1)
	p.ReconnectGrace = patience
	c := connected(t, p, obs)
	outcome(t, c.Start(join()))
	proxy.stop()
	obs.await(t, "the loss", isLost)
	waiting := c.Start(join()) // keeps trying, no error
	proxy.awaitRefused(t, 3)
	proxy.resume()
	obs.await(t, "the recovery", isBack)
	if o := outcome(t, waiting); o.Round != 2 {
		t.Errorf("round %d, want 2", o.Round)
	}
	losses, recoveries := 0, 0
	for _, e := range obs.all() {
		if isLost(e) {
			losses++
			wantCode(t, e.(connectionEvent).err, rendezvous.CodeConnection, proxy.addr, "trying on")
		}
		if isBack(e) {
			recoveries++
		}
		if isDropped(e) {
			t.Errorf("dropped: %v", e)
		}
	}
	if losses != 1 || recoveries != 1 {
		t.Errorf("%d losses and %d recoveries were told, want one each", losses, recoveries)
	}
}

// TestRequestsApplyOnceAcrossCuts sends counted requests over a proxy that cuts
// every connection after a random number of bytes.
func TestRequestsApplyOnceAcrossCuts(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rec := newRecorder(t)
			_, addr := testServer(t, Config{Recorder: rec.record})
			proxy := newProxy(t, addr)
			p := guest(proxy.addr, 1)
			p.ReconnectGrace = patience
			c := connected(t, p, newSeen())
			round := outcome(t, c.Start(join())).Round
			proxy.cutRandomly(seed, 1500)
			const n = 300
			calls := make([]*member.Call, n)
			for i := range calls {
				calls[i] = c.Start(rendezvous.KeyRequest{Round: round, Op: rendezvous.KeyAdd, Keys: []string{"count"}, Amount: 1})
				if i%7 == 0 { // sometimes one at a time, sometimes several
					calls[i].Wait(testContext(t))
				}
			}
			for i, call := range calls {
				result, err := call.Wait(testContext(t))
				if err != nil {
					t.Fatal(err)
				}
				if got := result.(rendezvous.KeyResult).Number; got != int64(i+1) {
					t.Fatalf("request %d counted %d, want %d", i, got, i+1)
				}
			}
			if hellos := rec.count(isEvent[rendezvous.Hello]); hellos < 4 {
				t.Errorf("%d hellos: too few connections were cut", hellos)
			}
		})
	}
}

// TestNoticesArriveInOrder compares what the machine sent with what the observer
// saw.
func TestNoticesArriveInOrder(t *testing.T) {
	rec := newRecorder(t)
	_, addr := testServer(t, Config{Recorder: rec.record})
	obs := newSeen()
	p := guest(addr, 3)
	p.Min, p.ReconnectGrace, p.AdmitDelay, p.LastCallTimeout = 1, 0, 0, 1
	a := connected(t, p, obs)
	outcome(t, a.Start(join()))
	for range 3 { // a newcomer is announced, goes again, and so on
		b := connected(t, p, newSeen())
		b.Start(join())
		rec.await(t, "newcomer", 1, func(ev rendezvous.Event) bool {
			f, ok := ev.(rendezvous.TimerFired)
			return ok && f.Timer.Kind == rendezvous.TimerAdmit
		})
		b.Close(testContext(t))
	}
	a.Start(rendezvous.CloseRun{By: "the test", Stop: true}).Wait(testContext(t))
	awaitEvents[rendezvous.CloseRun](t, rec, 1)
	obs.await(t, "the end", func(e any) bool {
		n, ok := e.(rendezvous.MembershipUpdate)
		return ok && n.Closed
	})
	var want, got []string
	rec.mu.Lock()
	for _, e := range rec.events {
		for _, effect := range e.effects {
			switch effect := effect.(type) {
			case rendezvous.Welcome:
				if effect.Session == a.session {
					want = append(want, fmt.Sprint(effect.Update))
				}
			case rendezvous.Notify:
				if effect.Session == a.session {
					want = append(want, fmt.Sprint(effect.Update))
				}
			}
		}
	}
	rec.mu.Unlock()
	for _, e := range obs.all() {
		if n, ok := e.(rendezvous.MembershipUpdate); ok {
			got = append(got, fmt.Sprint(n))
		}
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the observer saw\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
