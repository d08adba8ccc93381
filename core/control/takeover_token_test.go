package control

import (
	"slices"
	"testing"

	"rallypoint/core/control/client"
	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/internal/testkit"
)

// TestTakeoverWithAToken kills the host of four nodes with a token: probes, liveness
// connections and redirects go within TLS, and a standby's listener lets no stranger in.
func TestTakeoverWithAToken(t *testing.T) {
	p := elastic(t, 4)
	p.TokenFile = testkit.TokenFile(t, goodToken)
	nodes := form(t, p, 4)
	standby := nodes[1].server().Addr().String()
	_, err := client.Ask(controltest.Context(t), standby, openToken(t, otherToken), "run", rendezvous.CloseRun{By: "me", Reason: "x", Stop: true})
	controltest.WantCode(t, err, rendezvous.CodeAuth, "does not know the token")
	plain := dialNode(t, standby)
	plain.write(wire.AppendFrame(wire.Preamble{High: 1, Low: 1}.Bytes(), wire.Liveness{RunID: "run", Node: "x", Ask: true}))
	plain.wantDenied()
	plain = dialNode(t, standby)
	plain.write(wire.AppendFrame(wire.Preamble{High: 1, Low: 1}.Bytes(), wire.Probe{RunID: "run", Policy: p.Policy, Target: wire.Redirect{Group: "g", Term: 9}}))
	plain.wantDenied()

	nodes[0].kill()
	nodes = nodes[1:]
	for _, n := range nodes {
		n.mustRegroup()
	}
	regroup(t, nodes)
	host := slices.IndexFunc(nodes, (*plane).Hosting)
	if got := hosts(nodes); len(got) != 1 {
		t.Fatalf("hosts: %v", got)
	}
	awaitStandbys(t, nodes, 2)
	st, _ := nodes[host].server().RunStatus("run")
	for _, m := range st.Runs[0].Members {
		if m.Fingerprint != secret.Fingerprint([]byte(goodToken)) {
			t.Errorf("a member: %+v", m)
		}
	}
}
