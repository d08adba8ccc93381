//go:build long

package roundstore

import (
	"net"
	"net/netip"
	"strconv"
	"testing"

	"rallypoint/core/peer/peertest"
	"rallypoint/internal/testkit"
)

// TestPortOfAnother has another user connect to a round store from some ports, say what sets a key,
// and reset, round and round, and this user connect from the same ports: his words are not heard,
// though the kernel may name this user when it is asked who has the port.
func TestPortOfAnother(t *testing.T) {
	const setKey = "\x00\xce\xf7\x85\x3c" + "\x01\x08\x00\x00\x00\x00\x00\x00\x00stranger\x00\x00\x00\x00\x00\x00\x00\x00"
	const burst, connections = 60, 20_000
	o := next(t, open(t, "a", net.JoinHostPort("127.0.0.1", strconv.Itoa(testkit.FreePort(t))), 1, 1, nil))[0]
	at := netip.MustParseAddrPort(net.JoinHostPort(o.StoreAddr, strconv.Itoa(o.StorePort)))
	var ports []int
	for port := 20_000; len(ports) < burst; port++ {
		ports = append(ports, port)
	}
	struck, stop := peertest.Strike(t, peertest.Stranger, at.String(), ports, setKey)
	store, own := dial(t, o), 0
	var open []int // the newest ones of this user, of half of the ports
	for i := 0; own < connections || struck() < connections; i++ {
		fd, err := peertest.DialFrom(ports[i%burst], at)
		if err != nil {
			continue
		}
		own++
		if open = append(open, fd); len(open) > burst/2 {
			peertest.Reset(open[0])
			open = open[1:]
		}
	}
	for _, fd := range open {
		peertest.Reset(fd)
	}
	stop()
	if keys, err := store.NumKeys(t.Context()); err != nil || keys != 0 {
		t.Errorf("%d keys, %v, after %d of a stranger's connections and %d of this user's", keys, err, struck(), own)
	}
}
