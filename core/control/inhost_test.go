package control

import (
	"testing"

	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
)

// TestOnlyTheOwnNodeIsInTheHost has a node say falsely that it runs in the process that
// hosts: its members would take it for lost with the host.
func TestOnlyTheOwnNodeIsInTheHost(t *testing.T) {
	for node, want := range map[string]int{"a": 0, "b": -1} {
		s := newFakeServer(t, Config{RunID: "run", HostNode: "a"})
		n := dialNode(t, s.addr)
		h := testHello(node, "s1", controltest.Params("", 1))
		h.InHost = true
		n.enter(h)
		n.ask(1, controltest.Join())
		if o, ok := n.wantReply(1).Result.(rendezvous.Outcome); !ok || o.HostRank != want {
			t.Errorf("node %s: the outcome names rank %d as the host, want %d", node, o.HostRank, want)
		}
		n.send(wire.Goodbye{})
	}
}
