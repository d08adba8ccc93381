package client

import (
	"context"
	"fmt"
	"net"
	"reflect"
	"slices"
	"testing"

	"rallypoint/core/control"
	"rallypoint/core/control/controltest"
	"rallypoint/core/control/discovery"
	"rallypoint/core/control/wire"
	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/internal/testkit"
)

func TestRefusalsAreFinal(t *testing.T) {
	addr := startServer(t, control.Config{RunID: "run"})
	first := controltest.Guest(addr, 2)
	first.NodeID = "a"
	connected(t, first, controltest.NewObserver())
	tests := map[string]struct {
		change func(*params.Params)
		code   rendezvous.Code
	}{
		"mismatch":    {func(p *params.Params) { p.Min, p.Max = 3, 3 }, rendezvous.CodeMismatch},
		"tenant":      {func(p *params.Params) { p.RunID = "other" }, rendezvous.CodeTenant},
		"node in use": {func(p *params.Params) { p.NodeID, p.Incarnation = "a", 1 }, rendezvous.CodeNodeInUse},
		"invalid":     {func(p *params.Params) { p.Min = 0 }, rendezvous.CodeInvalid},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p := controltest.Guest(addr, 2)
			test.change(&p)
			controltest.WantCode(t, newTestClient(t, p, controltest.NewObserver()).Connect(controltest.Context(t)), test.code)
		})
	}
}

func TestCallsBeforeConnectAndAfterClose(t *testing.T) {
	addr := startServer(t, control.Config{})
	c := newTestClient(t, controltest.Guest(addr, 1), controltest.NewObserver())
	early := c.Start(controltest.Join())
	if err := c.Connect(controltest.Context(t)); err != nil {
		t.Fatal(err)
	}
	controltest.Outcome(t, early)
	pending := c.Start(rendezvous.KeyRequest{Round: 1, Op: store.OpGet, Keys: []string{"never"}})
	if err := c.Close(controltest.Context(t)); err != nil {
		t.Error(err)
	}
	_, err := pending.Wait(controltest.Context(t))
	controltest.WantCode(t, err, rendezvous.CodeCanceled)
	_, err = c.Start(controltest.Join()).Wait(controltest.Context(t))
	controltest.WantCode(t, err, rendezvous.CodeCanceled)
	controltest.WantCode(t, c.Connect(controltest.Context(t)), rendezvous.CodeCanceled)
}

func TestEventThatIsNoRequest(t *testing.T) {
	c := newTestClient(t, controltest.Params("", 1), controltest.NewObserver())
	_, err := c.Start(rendezvous.Disconnect{}).Wait(controltest.Context(t))
	controltest.WantCode(t, err, rendezvous.CodeInternal)
}

func TestBeats(t *testing.T) {
	beats := make(chan struct{}, 3)
	addr := fakeControlPlane(t, func(n *controltest.Peer) {
		n.Say(wire.Welcome{Version: 1, Lease: int64(300e6)})
		for range 3 {
			f, err := n.Frames.NextFrame(wire.MaxFrame)
			if err != nil {
				return
			}
			if _, ok := f.(wire.Beat); ok {
				beats <- struct{}{}
			}
		}
	})
	connected(t, controltest.Guest(addr, 1), controltest.NewObserver())
	for range 3 {
		select {
		case <-beats:
		case <-controltest.Context(t).Done():
			t.Fatal("no beat")
		}
	}
}

// TestHelloAfterAnOutcome: a node that is dropped right after its outcome says hello with
// the round that this was, also if its member has not taken it up yet.
func TestHelloAfterAnOutcome(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accept := func() (n *controltest.Peer, h wire.Hello) {
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		n = controltest.NewPeer(t, conn)
		if h, err = n.ReadHello(); err != nil {
			t.Fatal(err)
		}
		n.Say(wire.Welcome{Version: 1, Lease: int64(60e9), Server: "one"})
		return n, h
	}
	c := newTestClient(t, controltest.Guest(l.Addr().String(), 2), controltest.NewObserver())
	c.Start(controltest.Join())
	connecting := make(chan error, 1)
	go func() { connecting <- c.Connect(controltest.Context(t)) }()
	n, h := accept()
	if err := <-connecting; err != nil || h.LastRound.Round != 0 {
		t.Fatalf("%v, %+v", err, h.LastRound)
	}
	n.Say(wire.Reply{Number: 1, Result: rendezvous.Outcome{Generation: "g", Round: 3, Rank: 1, World: 2, HostRank: -1}})
	n.Say(wire.Drop{})
	n.Conn.Close()
	want := rendezvous.LastRound{
		Generation: "g", Round: 3, Rank: 1, World: 2, HostRank: -1,
		Facts: rendezvous.Facts{Generation: "g", Origin: "g", Round: 3, World: 2, HostRank: -1},
	}
	if _, h = accept(); !reflect.DeepEqual(h.LastRound, want) {
		t.Errorf("it reports %+v, want %+v", h.LastRound, want)
	}
}

// fakeControlPlane reads one hello, sends the preamble and lets the test continue;
// it serves one connection.
func fakeControlPlane(t *testing.T, serve func(n *controltest.Peer)) string {
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
		n := controltest.NewPeer(t, conn)
		if _, err := n.ReadHello(); err != nil {
			t.Error(err)
		}
		serve(n)
	}()
	return l.Addr().String()
}

// TestCloseWithServerThatDoesNotRead fills the connection and closes.
func TestCloseWithServerThatDoesNotRead(t *testing.T) {
	addr := fakeControlPlane(t, func(n *controltest.Peer) { n.Say(wire.Welcome{Version: 1, Lease: int64(60e9)}) })
	c := connected(t, controltest.Guest(addr, 2), controltest.NewObserver())
	var calls []*member.Call
	for range 8 {
		calls = append(calls, c.Start(rendezvous.KeyRequest{Op: store.OpSet, Keys: []string{"k"}, Values: [][]byte{make([]byte, 1<<20)}}))
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	c.Close(ctx)
	for _, call := range calls {
		_, err := call.Wait(controltest.Context(t))
		controltest.WantCode(t, err, rendezvous.CodeCanceled)
	}
}

func TestIPv6Loopback(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skip("this machine has no IPv6 loopback")
	}
	l.Close()
	endpoint := fmt.Sprintf("[::1]:%d", testkit.FreePort(t))
	a, b := connected(t, controltest.Params(endpoint, 2), controltest.NewObserver()), connected(t, controltest.Params(endpoint, 2), controltest.NewObserver())
	ca, cb := a.Start(controltest.Join()), b.Start(controltest.Join())
	if o := controltest.Outcome(t, ca); o.StoreAddr != "::1" {
		t.Errorf("store address %q", o.StoreAddr)
	}
	controltest.Outcome(t, cb)
}

// TestServerThatHasForgotten: servers that succeed each other and have all forgotten their runs begin
// a new group, and the same process may lead it. It takes the round from its nodes: none of them was
// away.
func TestServerThatHasForgotten(t *testing.T) {
	for name, test := range map[string]struct {
		now     wire.Welcome
		dropped bool
	}{
		"the same":                       {wire.Welcome{Server: "s", Group: "g", Term: 1}, true},
		"again, in a group of its own":   {wire.Welcome{Server: "s", Group: "h", Term: 1}, false},
		"the next one":                   {wire.Welcome{Server: "t", Group: "g", Term: 2}, false},
		"it has a round without a place": {wire.Welcome{Server: "s", Group: "h", Term: 1, Notice: rendezvous.MembershipUpdate{Waiting: 1}}, true},
	} {
		obs := controltest.NewObserver()
		c := newTestClient(t, controltest.Guest("127.0.0.1:1", 2), obs)
		c.last.Round = 3
		c.resumed(test.now, &conn{Conn: &discovery.Conn{Welcome: wire.Welcome{Server: "s", Group: "g", Term: 1}}}, false)
		if dropped := slices.ContainsFunc(obs.All(), controltest.IsDropped); dropped != test.dropped {
			t.Errorf("%s: dropped %v", name, dropped)
		}
	}
}
