package control

import (
	"context"
	"fmt"
	"net"
	"testing"

	"rallypoint/core/control/client"
	"rallypoint/core/control/controltest"
	"rallypoint/core/member"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/internal/testkit"
)

// TestServerRestartedOnTheSamePort has the clients come back with their claims;
// rounds continue above the highest that any of them knew.
func TestServerRestartedOnTheSamePort(t *testing.T) {
	const n = 3
	addr := fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t))
	start := func(cfg Config) *Server {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Fixed = true
		s := Start(cfg, l)
		t.Cleanup(func() { s.Close() })
		return s
	}
	first := start(Config{})
	clients, observers := make([]*client.Client, n), make([]*controltest.Observer, n)
	for i := range clients {
		observers[i] = controltest.NewObserver()
		clients[i] = connected(t, controltest.Guest(addr, n), observers[i])
	}
	meetAgain := func() (last []rendezvous.Outcome) {
		var calls []*member.Call
		for _, c := range clients {
			calls = append(calls, c.Start(controltest.Join()))
		}
		for i, call := range calls {
			o := controltest.Outcome(t, call)
			clients[i].SetLastRound(o.LastRound())
			last = append(last, o)
		}
		return last
	}
	meetAgain()
	before := meetAgain()
	first.Close()
	for _, obs := range observers {
		obs.Await(t, "the loss", controltest.IsLost)
	}
	early := clients[0].Start(rendezvous.Finish{}) // kept for the next server
	rec := newRecorder(t)
	start(Config{Trace: rec.record})
	for _, obs := range observers {
		obs.Await(t, "the recovery", controltest.IsBack)
	}
	if _, err := early.Wait(controltest.Context(t)); err != nil {
		t.Error(err)
	}
	for _, c := range clients {
		r, err := c.Start(rendezvous.KeyRequest{Round: before[0].Round, Op: store.OpAdd, Keys: []string{"k"}, Amount: 1}).Wait(controltest.Context(t))
		if err != nil {
			t.Fatalf("%s is not a member of its round any more: %v, %v", c.Node(), r, err)
		}
	}
	for _, obs := range observers {
		for _, e := range obs.All() {
			if controltest.IsDropped(e) {
				t.Errorf("a member was told that it is dropped: %v", e)
			}
		}
	}
}

// TestRoundsGoOnAfterRestart has the members regroup on the new server.
func TestRoundsGoOnAfterRestart(t *testing.T) {
	addr := fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t))
	host := connected(t, controltest.Params(addr, 2), controltest.NewObserver())
	obs := controltest.NewObserver()
	other := connected(t, controltest.Params(addr, 2), obs)
	for want := uint64(1); want <= 3; want++ {
		a, b := host.Start(controltest.Join()), other.Start(controltest.Join())
		controltest.Outcome(t, a)
		o := controltest.Outcome(t, b)
		if o.Round != want {
			t.Fatalf("round %d, want %d", o.Round, want)
		}
		other.SetLastRound(o.LastRound())
	}
	killed, cancel := context.WithCancel(context.Background())
	cancel()
	host.Close(killed)
	obs.Await(t, "the loss", controltest.IsLost)
	waiting := other.Start(controltest.Join())
	restarted := connected(t, controltest.Params(addr, 2), controltest.NewObserver())
	if !restarted.Hosting() {
		t.Error("the restarted host does not host")
	}
	a := restarted.Start(controltest.Join())
	if o := controltest.Outcome(t, a); o.Round != 4 {
		t.Errorf("round %d, want 4", o.Round)
	}
	controltest.Outcome(t, waiting)
}

// TestAnotherRunTookThePort ends a client whose control plane was replaced.
func TestAnotherRunTookThePort(t *testing.T) {
	addr := fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t))
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s := Start(Config{}, l)
	obs := controltest.NewObserver()
	c := connected(t, controltest.Guest(addr, 2), obs)
	call := c.Start(controltest.Join())
	s.Close()
	obs.Await(t, "the loss", controltest.IsLost)
	if l, err = net.Listen("tcp", addr); err != nil {
		t.Fatal(err)
	}
	s = Start(Config{RunID: "another"}, l)
	defer s.Close()
	_, err = call.Wait(controltest.Context(t))
	controltest.WantCode(t, err, rendezvous.CodeTenant, `"another"`)
	obs.Await(t, "the end", controltest.IsDropped)
	_, err = c.Start(controltest.Join()).Wait(controltest.Context(t))
	controltest.WantCode(t, err, rendezvous.CodeTenant)
}

// TestHostServesUntilOthersHaveGone closes the hosting client first: it serves the other
// one, unless that is a standby by then, and hosts.
func TestHostServesUntilOthersHaveGone(t *testing.T) {
	addr := fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t))
	host := connected(t, controltest.Params(addr, 2), controltest.NewObserver())
	other := connected(t, controltest.Params(addr, 2), controltest.NewObserver())
	a, b := host.Start(controltest.Join()), other.Start(controltest.Join())
	controltest.Outcome(t, a)
	controltest.Outcome(t, b)
	closed := make(chan struct{})
	go func() {
		host.Close(controltest.Context(t))
		close(closed)
	}()
	if _, err := other.Start(rendezvous.Finish{}).Wait(controltest.Context(t)); err != nil {
		t.Error(err)
	}
	select {
	case <-closed:
		if !other.Hosting() {
			t.Error("the host ended while a node was connected")
		}
	default:
	}
	other.Close(controltest.Context(t))
	<-closed
}
