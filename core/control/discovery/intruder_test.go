package discovery

import (
	"crypto/tls"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/secret"
	"rallypoint/core/succession"
	"rallypoint/internal/testkit"
)

// TestSearchBesideAnIntruder: a standby whose host's port is taken by what does not know the
// token decides nothing by it, and goes on to ask the others and the endpoint.
func TestSearchBesideAnIntruder(t *testing.T) {
	settings, err := secret.ServerTLS()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer l.Close()
	wg.Go(func() {
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			_ = raw.SetDeadline(time.Now().Add(testkit.Patience))
			conn := tls.Server(raw, settings)
			_, _ = conn.Read(make([]byte, 1024))
			says := wire.Preamble{High: wire.ProtocolVersion, Low: wire.OldestVersion, Token: true}
			_, _ = conn.Write(wire.AppendFrame(says.Bytes(), wire.Refuse{Err: wire.ErrAuth}))
			_, _ = conn.Read(make([]byte, 1))
			raw.Close()
		}
	})
	p := controltest.Params(l.Addr().String(), 3)
	p.TokenFile = testkit.TokenFile(t)
	c := newNode(t, p, controltest.NewObserver())
	if c.token, err = secret.OpenToken(p.TokenFile, nil); err != nil {
		t.Fatal(err)
	}
	host := netip.MustParseAddrPort(l.Addr().String())
	last := wire.Welcome{Group: "g", Term: 1, Lease: int64(time.Hour), HostNode: "a"}
	c.group.Follow(last, host.String())
	c.group.SetSelf("127.0.0.1:9", "")
	c.group.SetList([]wire.StandbyNode{{Node: c.Node, Addr: "127.0.0.1:9"}})
	s := &search{f: c.Finder, last: last, addr: host, begun: c.network.now(), evidence: succession.Evidence{Ended: true, Direct: true}}
	got, decided, err := s.succeed(controltest.Context(t))
	if got != nil || decided || s.evidence.Proves() || err != nil {
		t.Errorf("%v, decided: %v, %v, %+v", got, decided, err, s.evidence)
	}
}
