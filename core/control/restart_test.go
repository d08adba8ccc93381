package control

import (
	"context"
	"fmt"
	"net"
	"testing"

	"rallypoint/core/member"
	"rallypoint/core/rendezvous"
)

// TestServerRestartedOnTheSamePort has the clients come back with their claims;
// rounds go on above the highest that any of them knew.
func TestServerRestartedOnTheSamePort(t *testing.T) {
	const n = 3
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
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
	clients, observers := make([]*Client, n), make([]*seen, n)
	for i := range clients {
		observers[i] = newSeen()
		clients[i] = connected(t, guest(addr, n), observers[i])
	}
	meetAgain := func() (last []rendezvous.Outcome) {
		var calls []*member.Call
		for _, c := range clients {
			calls = append(calls, c.Start(join()))
		}
		for i, call := range calls {
			o := outcome(t, call)
			clients[i].SetLastRound(claimOf(o))
			last = append(last, o)
		}
		return last
	}
	meetAgain()
	before := meetAgain()
	first.Close()
	for _, obs := range observers {
		obs.await(t, "the loss", isLost)
	}
	early := clients[0].Start(rendezvous.Finish{}) // kept for the next server
	rec := newRecorder(t)
	start(Config{Recorder: rec.record})
	for _, obs := range observers {
		obs.await(t, "the recovery", isBack)
	}
	if _, err := early.Wait(testContext(t)); err != nil {
		t.Error(err)
	}
	for _, c := range clients {
		r, err := c.Start(rendezvous.KeyRequest{Round: before[0].Round, Op: rendezvous.KeyAdd, Keys: []string{"k"}, Amount: 1}).Wait(testContext(t))
		if err != nil {
			t.Fatalf("%s is not a member of its round any more: %v, %v", c.Node(), r, err)
		}
	}
	for _, obs := range observers {
		for _, e := range obs.all() {
			if isDropped(e) {
				t.Errorf("a member was told that it is dropped: %v", e)
			}
		}
	}
}

// TestRoundsGoOnAfterRestart has the members regroup on the new server.
func TestRoundsGoOnAfterRestart(t *testing.T) {
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	host := connected(t, testParams(addr, 2), newSeen())
	obs := newSeen()
	other := connected(t, testParams(addr, 2), obs)
	for want := uint64(1); want <= 3; want++ {
		a, b := host.Start(join()), other.Start(join())
		outcome(t, a)
		o := outcome(t, b)
		if o.Round != want {
			t.Fatalf("round %d, want %d", o.Round, want)
		}
		other.SetLastRound(claimOf(o))
	}
	killed, cancel := context.WithCancel(context.Background())
	cancel()
	host.Close(killed)
	obs.await(t, "the loss", isLost)
	waiting := other.Start(join())
	restarted := connected(t, testParams(addr, 2), newSeen())
	if !restarted.Hosting() {
		t.Error("the restarted host does not host")
	}
	a := restarted.Start(join())
	if o := outcome(t, a); o.Round != 4 {
		t.Errorf("round %d, want 4", o.Round)
	}
	outcome(t, waiting)
}

// TestAnotherRunTookThePort ends a client whose control plane was replaced.
func TestAnotherRunTookThePort(t *testing.T) {
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s := Start(Config{}, l)
	obs := newSeen()
	c := connected(t, guest(addr, 2), obs)
	call := c.Start(join())
	s.Close()
	obs.await(t, "the loss", isLost)
	if l, err = net.Listen("tcp", addr); err != nil {
		t.Fatal(err)
	}
	s = Start(Config{RunID: "another"}, l)
	defer s.Close()
	_, err = call.Wait(testContext(t))
	wantCode(t, err, rendezvous.CodeTenant, `"another"`)
	obs.await(t, "the end", isDropped)
	_, err = c.Start(join()).Wait(testContext(t))
	wantCode(t, err, rendezvous.CodeTenant)
}

// TestHostServesUntilOthersHaveGone closes the hosting client first.
func TestHostServesUntilOthersHaveGone(t *testing.T) {
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	host := connected(t, testParams(addr, 2), newSeen())
	other := connected(t, testParams(addr, 2), newSeen())
	a, b := host.Start(join()), other.Start(join())
	outcome(t, a)
	outcome(t, b)
	closed := make(chan struct{})
	go func() {
		host.Close(testContext(t))
		close(closed)
	}()
	if _, err := other.Start(rendezvous.Finish{}).Wait(testContext(t)); err != nil {
		t.Error(err)
	}
	select {
	case <-closed:
		t.Error("the host ended while a node was connected")
	default:
	}
	other.Close(testContext(t))
	<-closed
}
