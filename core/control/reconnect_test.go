package control

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"rallypoint/core/control/controltest"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

func TestEvictedNodeLearnsOfItAndComesBack(t *testing.T) {
	rec := newRecorder(t)
	s, addr := testServer(t, Config{Trace: rec.record})
	obs := controltest.NewObserver()
	p := controltest.Guest(addr, 1)
	p.NodeID = "a"
	c := connected(t, p, obs)
	c.SetLastRound(controltest.Outcome(t, c.Start(controltest.Join())).LastRound())
	r, _ := s.runFor("run", netip.Addr{})
	r.callback(func() { r.applyLocked(rendezvous.Evict{Node: "a", By: "a test", Reason: "to see"}) })
	obs.Await(t, "that it was dropped", controltest.IsDropped)
	obs.Await(t, "that it must rejoin", func(e any) bool {
		n, ok := e.(rendezvous.MembershipUpdate)
		return ok && n.Waiting > 0
	})
	var dropped int
	for _, e := range obs.All() {
		if controltest.IsDropped(e) {
			dropped++
			controltest.WantCode(t, e.(error), rendezvous.CodeEvicted, "evicted by a test", "to see")
		}
		if controltest.IsLost(e) {
			t.Errorf("told that the control plane is lost: %v", e)
		}
	}
	if dropped != 1 {
		t.Errorf("told %d times that it was dropped, want once", dropped)
	}
	if o := controltest.Outcome(t, c.Start(controltest.Join())); o.Round != 2 {
		t.Errorf("round %d, want 2", o.Round)
	}
}

// TestDroppedWhileAway breaks the connection for longer than the grace.
func TestDroppedWhileAway(t *testing.T) {
	clock := testkit.NewClock()
	rec := newRecorder(t)
	_, addr := testServer(t, Config{Clock: clock, Trace: rec.record})
	proxy := newProxy(t, addr)
	obs, other := controltest.NewObserver(), controltest.NewObserver()
	a, b := connected(t, controltest.Guest(proxy.addr, 2), obs), connected(t, controltest.Guest(addr, 2), other)
	ca, cb := a.Start(controltest.Join()), b.Start(controltest.Join())
	a.SetLastRound(controltest.Outcome(t, ca).LastRound())
	controltest.Outcome(t, cb)
	proxy.stop()
	awaitEvents[rendezvous.Disconnect](t, rec, 1)
	obs.Await(t, "the loss", controltest.IsLost)
	clock.Advance(rendezvous.DefaultReconnectGrace)
	proxy.resume()
	obs.Await(t, "the recovery", controltest.IsBack)
	err := obs.Await(t, "that it was dropped", controltest.IsDropped)
	controltest.WantCode(t, err.(error), rendezvous.CodeEvicted, "round 1")
	other.Await(t, "that a member is lost", func(e any) bool {
		n, ok := e.(rendezvous.MembershipUpdate)
		return ok && n.Waiting > 0
	})
}

func TestLossAndRecoveryAreToldOnce(t *testing.T) {
	rec := newRecorder(t)
	_, addr := testServer(t, Config{Trace: rec.record})
	proxy := newProxy(t, addr)
	obs := controltest.NewObserver()
	p := controltest.Guest(proxy.addr, 1)
	p.ReconnectGrace = testkit.Patience
	c := connected(t, p, obs)
	controltest.Outcome(t, c.Start(controltest.Join()))
	proxy.stop()
	obs.Await(t, "the loss", controltest.IsLost)
	waiting := c.Start(controltest.Join()) // keeps trying, no error
	proxy.awaitRefused(t, 3)
	proxy.resume()
	obs.Await(t, "the recovery", controltest.IsBack)
	if o := controltest.Outcome(t, waiting); o.Round != 2 {
		t.Errorf("round %d, want 2", o.Round)
	}
	losses, recoveries := 0, 0
	for _, e := range obs.All() {
		if controltest.IsLost(e) {
			losses++
			controltest.WantCode(t, e.(controltest.ConnectionChange).Err, rendezvous.CodeConnection, proxy.addr)
		}
		if controltest.IsBack(e) {
			recoveries++
		}
		if controltest.IsDropped(e) {
			t.Errorf("dropped: %v", e)
		}
	}
	if losses != 1 || recoveries != 1 {
		t.Errorf("%d losses and %d recoveries were reported, want one each", losses, recoveries)
	}
}

// TestNoticesArriveInOrder compares what the machine sent with what the observer
// saw.
func TestNoticesArriveInOrder(t *testing.T) {
	rec := newRecorder(t)
	_, addr := testServer(t, Config{Trace: rec.record})
	obs := controltest.NewObserver()
	p := controltest.Guest(addr, 3)
	p.Min, p.ReconnectGrace, p.AdmitDelay, p.LastCallTimeout = 1, 0, 0, 1
	a := connected(t, p, obs)
	controltest.Outcome(t, a.Start(controltest.Join()))
	for range 3 { // a newcomer is announced, goes again, and so on
		b := connected(t, p, controltest.NewObserver())
		b.Start(controltest.Join())
		rec.await(t, "newcomer", 1, func(ev rendezvous.Event) bool {
			f, ok := ev.(rendezvous.TimerFired)
			return ok && f.Timer.Kind == rendezvous.TimerAdmit
		})
		b.Close(controltest.Context(t))
	}
	a.Start(rendezvous.CloseRun{By: "the test", Stop: true}).Wait(controltest.Context(t))
	awaitEvents[rendezvous.CloseRun](t, rec, 1)
	obs.Await(t, "the end", func(e any) bool {
		n, ok := e.(rendezvous.MembershipUpdate)
		return ok && n.Closed
	})
	var want, got []string
	rec.mu.Lock()
	for _, e := range rec.events {
		for _, effect := range e.effects {
			switch effect := effect.(type) {
			case rendezvous.Welcome:
				if effect.Session == a.Session() {
					want = append(want, fmt.Sprint(effect.Update))
				}
			case rendezvous.Notify:
				if effect.Session == a.Session() {
					want = append(want, fmt.Sprint(effect.Update))
				}
			}
		}
	}
	rec.mu.Unlock()
	for _, e := range obs.All() {
		if n, ok := e.(rendezvous.MembershipUpdate); ok {
			got = append(got, fmt.Sprint(n))
		}
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the observer saw\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
