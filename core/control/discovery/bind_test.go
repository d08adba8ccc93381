package discovery

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
)

// TestBindEndpoint: a process whose machine the endpoint names, and that has found its port taken, listens there as
// soon as it is free, and sends on who comes. Not while it has its host there, or had a moment ago: a dial that it
// answers would hide that the host's process is dead.
func TestBindEndpoint(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	p := controltest.Params(taken.Addr().String(), 3)
	c := newNode(t, p, controltest.NewObserver())
	if err := c.resolve(t.Context()); err != nil {
		t.Fatal(err)
	}
	at, host := netip.MustParseAddrPort(taken.Addr().String()), netip.MustParseAddrPort("127.0.0.1:9")
	c.group.Follow(wire.Welcome{Group: "g", Term: 2, Addr: host.String(), HostNode: "h"}, host.String())
	now := c.network.now()
	c.network.now = func() time.Time { return now }
	try := func(addr netip.AddrPort, age time.Duration) bool {
		now = now.Add(bindEvery)
		c.bindEndpoint(&Conn{Addr: addr, opened: now.Add(-age)})
		return c.waiting != nil
	}
	if try(host, bindEvery) {
		t.Fatal("it listens where another does")
	}
	taken.Close()
	if try(at, bindEvery) || try(host, bindEvery/2) {
		t.Fatal("it listens where its host is, or was")
	}
	if !try(host, bindEvery) {
		t.Fatal("it does not listen though the port is free")
	}
	_, err = newNode(t, p, controltest.NewObserver()).sayHello(controltest.Context(t), at)
	if to, is := errors.AsType[*wire.Redirected](err); !is || to.To.Host != host.String() {
		t.Errorf("it does not send on: %v", err)
	}
	waiting := c.waiting
	if try(host, bindEvery); c.waiting != waiting {
		t.Error("another server was started")
	}
}
