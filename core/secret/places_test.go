package secret

import (
	"fmt"
	"net"
	"testing"
)

// TestPlaces: one source takes three quarters of the places, others have the rest, and what is
// given back is available again.
func TestPlaces(t *testing.T) {
	const most = 64
	of := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 1} }
	for name, flood := range map[string]func(i int) net.Addr{
		"one address":           func(int) net.Addr { return of("192.0.2.1") },
		"one as IPv6":           func(i int) net.Addr { return of([]string{"192.0.2.1", "::ffff:192.0.2.1"}[i%2]) },
		"one network of IPv6":   func(i int) net.Addr { return of(fmt.Sprintf("2001:db8::%x", i+1)) },
		"what is no TCP at all": func(int) net.Addr { return &net.UnixAddr{} },
	} {
		p := NewPlaces(most)
		held := 0
		for i := range 2 * most {
			if p.Take(flood(i)) {
				held++
			}
		}
		if held != most-most/4 {
			t.Errorf("%s: it has %d places", name, held)
		}
		others := 0
		for i := range most {
			if p.Take(of(fmt.Sprintf("198.51.100.%d", i+1))) {
				others++
			}
		}
		if p.Few(flood(0)) || !p.Few(of("198.51.100.1")) {
			t.Errorf("%s: it is among those that hold few, or others are not", name)
		}
		if others != most/4 || p.Taken() != most {
			t.Errorf("%s: others have %d places, %d are taken", name, others, p.Taken())
		}
		for i := range held {
			p.Give(flood(i))
		}
		for i := range others {
			p.Give(of(fmt.Sprintf("198.51.100.%d", i+1)))
		}
		if p.Taken() != 0 || len(p.of) != 0 || !p.Take(flood(0)) {
			t.Errorf("%s: %d are taken, by %v", name, p.Taken(), p.of)
		}
	}
}
