package discovery

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
)

// TestBesideAStoppedServer: a server that takes connections and does not answer on the second one either is given
// less time than the handshake of a server that lives would have, and more the next time.
func TestBesideAStoppedServer(t *testing.T) {
	stopped, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer stopped.Close()
	p := controltest.Params(stopped.Addr().String(), 2)
	register := NewRegister(RegisterConfig{Config: Config{Params: p, Log: slog.New(slog.DiscardHandler), Hello: func() wire.Hello { return wire.Hello{RunID: p.RunID, Policy: p.Policy} }}})
	defer register.Close()
	for name, f := range map[string]interface {
		Beside(ctx context.Context, l *Conn, silent func() bool) (*Conn, error)
	}{"group": newNode(t, p, controltest.NewObserver()).Finder, "register": register} {
		l := &Conn{Addr: netip.MustParseAddrPort(stopped.Addr().String()), Welcome: wire.Welcome{Lease: int64(time.Millisecond)}}
		if next, err := f.Beside(controltest.Context(t), l, func() bool { return true }); next != nil || err == nil || l.unanswered != 1 {
			t.Errorf("%s: %v, %v, %d hellos without an answer", name, next, err, l.unanswered)
		}
	}
}
