package secret

import (
	"net"
	"net/netip"
	"sync"
)

// fewOfOne is how many places a source holds at most that gets one of the last.
const fewOfOne = 8

// Places bounds the connections that a server has from peers which have proven nothing. The last
// quarter is for sources that hold few, so that one machine alone keeps no other out. Its methods
// are safe for concurrent use.
type Places struct {
	most int

	mu    sync.Mutex
	taken int
	of    map[netip.Addr]int
}

// NewPlaces makes the places of one server.
func NewPlaces(most int) *Places { return &Places{most: most, of: map[netip.Addr]int{}} }

// Take takes a place for a peer, which must be given back. It returns false if there is none.
func (p *Places) Take(peer net.Addr) bool {
	source := sourceOf(peer)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken >= p.most || p.taken >= p.most-p.most/4 && p.of[source] >= fewOfOne {
		return false
	}
	p.taken++
	p.of[source]++
	return true
}

// Give gives a peer's place back.
func (p *Places) Give(peer net.Addr) {
	source := sourceOf(peer)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.of[source]--; p.of[source] == 0 {
		delete(p.of, source)
	}
}

// Few reports whether a peer's source holds so few places that it gets one of the last.
func (p *Places) Few(peer net.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.of[sourceOf(peer)] <= fewOfOne
}

// Taken returns how many places are taken.
func (p *Places) Taken() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}

// sourceOf is the part of an address that identifies a machine: all of it, or the /64 network of
// an IPv6 address.
func sourceOf(peer net.Addr) netip.Addr {
	tcp, ok := peer.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	addr := tcp.AddrPort().Addr().Unmap().WithZone("")
	if addr.Is6() {
		addr = netip.PrefixFrom(addr, 64).Masked().Addr()
	}
	return addr
}
