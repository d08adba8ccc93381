package control

import (
	"fmt"
	"testing"
	"time"

	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

// TestForgottenConnection: as long as new connections work, a node whose connection the network forgets,
// in one direction or both, is not lost, and nobody is told of anything. With a token the
// connections are TLS's.
func TestForgottenConnection(t *testing.T) {
	for _, c := range []struct{ fromNode, fromServer, protected bool }{{true, true, false}, {true, false, true}, {false, true, true}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			t.Parallel()
			rec := newRecorder(t)
			cfg := Config{Trace: rec.record}
			if c.protected {
				cfg.Token = openToken(t, goodToken)
			}
			s, addr := testServer(t, cfg)
			beats := &s.metrics.FramesIn[wire.KindBeat]
			proxy := newProxy(t, addr)
			p := controltest.Guest(proxy.addr, 1)
			p.LeaseTimeout = 3 * time.Second
			if c.protected {
				p.TokenFile = testkit.TokenFile(t, goodToken)
			}
			obs := controltest.NewObserver()
			node := connected(t, p, obs)
			node.SetLastRound(controltest.Outcome(t, node.Start(controltest.Join())).LastRound())
			for forgotten := range 2 {
				awaitEvents[rendezvous.Hello](t, rec, forgotten+1)
				before := beats.Load()
				testkit.Eventually(t, "the node uses its new connection", func() bool { return beats.Load() > before })
				proxy.forget(c.fromNode, c.fromServer)
			}
			awaitEvents[rendezvous.Hello](t, rec, 3)
			expectUndisturbed(t, obs)
			if n := proxy.connections(); n != 3 {
				t.Errorf("%d connections, want 3", n)
			}
		})
	}
}

// expectUndisturbed fails if a node was told that it or the control plane is lost.
func expectUndisturbed(t *testing.T, obs *controltest.Observer) {
	t.Helper()
	for _, e := range obs.All() {
		if controltest.IsDropped(e) || controltest.IsLost(e) {
			t.Errorf("told %v", e)
		}
	}
}

// TestPausedServer stops a server until each of its nodes has opened a second connection: when it goes
// on, each node has one connection, and nobody is told of anything.
func TestPausedServer(t *testing.T) {
	const n = 12 // more would be too much for a busy machine: a node waits a second for an answer
	rec := newRecorder(t)
	s, addr := testServer(t, Config{Trace: rec.record, Clock: testkit.NewClock(), Quota: Quota{Connections: n}}) // the clock stands
	proxy := newProxy(t, addr)
	var observers []*controltest.Observer
	for range n {
		p := controltest.Guest(proxy.addr, n)
		p.LeaseTimeout = 2 * time.Second
		obs := controltest.NewObserver()
		observers = append(observers, obs)
		connected(t, p, obs)
	}
	echoes := &s.metrics.FramesOut[wire.KindBeat]
	release := proxy.hold()
	testkit.Eventually(t, "all nodes have a second connection", func() bool { return proxy.connections() >= 2*n })
	before := echoes.Load()
	release()
	testkit.Eventually(t, "all nodes are answered", func() bool { return echoes.Load() >= before+2*n })
	testkit.Eventually(t, "each has one connection", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.conns) == n
	})
	for _, obs := range observers {
		expectUndisturbed(t, obs)
	}
	if opened := proxy.connections(); opened > 3*n {
		t.Errorf("%d connections for %d nodes", opened, n)
	}
}
