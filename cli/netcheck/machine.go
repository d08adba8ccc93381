// Package netcheck shows this machine's part of the network, and measures what the nodes of a round
// have between them.
package netcheck

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Address is one of a machine's addresses that others may reach.
type Address struct {
	Interface string     `json:"interface"`
	IP        netip.Addr `json:"ip"`
}

// Interface is a network interface that is up.
type Interface struct {
	Name      string
	MTU       int
	Mbit      int // the speed that the driver tells; 0: none
	Addresses []netip.Prefix
}

// Interfaces are those of this machine that are up, without the loopback.
func Interfaces() ([]Interface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var up []Interface
	for _, i := range all {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		found := Interface{Name: i.Name, MTU: i.MTU}
		if text, err := os.ReadFile("/sys/class/net/" + i.Name + "/speed"); err == nil {
			if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
				found.Mbit = max(n, 0)
			}
		}
		addresses, err := i.Addrs()
		if err != nil {
			return nil, err
		}
		for _, a := range addresses {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				found.Addresses = append(found.Addresses, p)
			}
		}
		up = append(up, found)
	}
	return up, nil
}

func (i Interface) String() string {
	text := fmt.Sprintf("%s: MTU %d", i.Name, i.MTU)
	if i.Mbit > 0 {
		text += ", " + bandwidth(float64(i.Mbit)*1e6)
	}
	for _, a := range i.Addresses {
		text += ", " + a.String()
	}
	return text
}

// global are the addresses that other machines may reach.
func global(interfaces []Interface) (list []Address) {
	for _, i := range interfaces {
		for _, a := range i.Addresses {
			if a.Addr().IsGlobalUnicast() {
				list = append(list, Address{i.Name, a.Addr()})
			}
		}
	}
	return list
}

// Route is a line of the kernel's table.
type Route struct {
	To        netip.Prefix
	Gateway   netip.Addr // invalid: none
	Interface string
	Metric    uint64
}

const maxRoutes = 64

// Routes are this machine's routes that lead out by an interface: the default ones first.
func Routes() (routes []Route, err error) {
	for path, parse := range map[string]func([]string) (Route, bool){"/proc/net/route": parseRoute4, "/proc/net/ipv6_route": parseRoute6} {
		f, err := os.Open(path)
		if os.IsNotExist(err) { // without IPv6
			continue
		}
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(f)
		for n := 0; n < maxRoutes && lines.Scan(); n++ {
			if r, ok := parse(strings.Fields(lines.Text())); ok {
				routes = append(routes, r)
			}
		}
		_ = f.Close()
	}
	slices.SortFunc(routes, func(a, b Route) int {
		if d := a.To.Bits() - b.To.Bits(); d != 0 {
			return d
		}
		return strings.Compare(a.String(), b.String())
	})
	return routes, nil
}

func (r Route) String() string {
	to := r.To.String()
	if r.To.Bits() == 0 {
		to = "default"
		if r.To.Addr().Is6() {
			to = "default (IPv6)"
		}
	}
	if r.Gateway.IsValid() && !r.Gateway.IsUnspecified() {
		to += " via " + r.Gateway.String()
	}
	return fmt.Sprintf("%s dev %s metric %d", to, r.Interface, r.Metric)
}

const rtfUp = 1

// parseRoute4 reads: Iface Destination Gateway Flags RefCnt Use Metric Mask ..., with addresses as
// numbers of this machine's byte order.
func parseRoute4(fields []string) (Route, bool) {
	if len(fields) < 8 {
		return Route{}, false
	}
	address := func(text string) (a netip.Addr, mask uint32, ok bool) {
		n, err := strconv.ParseUint(text, 16, 32)
		var b [4]byte
		binary.NativeEndian.PutUint32(b[:], uint32(n))
		return netip.AddrFrom4(b), binary.BigEndian.Uint32(b[:]), err == nil
	}
	to, _, ok1 := address(fields[1])
	gateway, _, ok2 := address(fields[2])
	_, mask, ok3 := address(fields[7])
	flags, err := strconv.ParseUint(fields[3], 16, 32)
	metric, err2 := strconv.ParseUint(fields[6], 10, 32)
	if !ok1 || !ok2 || !ok3 || err != nil || err2 != nil || flags&rtfUp == 0 {
		return Route{}, false
	}
	bits := 0
	for ; bits < 32 && mask<<bits&(1<<31) != 0; bits++ {
	}
	return Route{netip.PrefixFrom(to, bits), gateway, fields[0], metric}, true
}

// parseRoute6 reads: destination prefix-length source prefix-length next-hop metric refcnt use flags
// device, all hexadecimal.
func parseRoute6(fields []string) (Route, bool) {
	if len(fields) < 10 || fields[9] == "lo" {
		return Route{}, false
	}
	address := func(text string) netip.Addr {
		b, _ := hex.DecodeString(text)
		a, _ := netip.AddrFromSlice(b)
		return a
	}
	to, gateway := address(fields[0]), address(fields[4])
	bits, err := strconv.ParseUint(fields[1], 16, 8)
	metric, err2 := strconv.ParseUint(fields[5], 16, 32)
	if !to.Is6() || !gateway.Is6() || err != nil || err2 != nil || to.IsMulticast() || to.IsLinkLocalUnicast() || bits == 128 {
		return Route{}, false
	}
	return Route{netip.PrefixFrom(to, int(bits)), gateway, fields[9], metric}, true
}

func bandwidth(bits float64) string {
	if bits >= 1e9 {
		return fmt.Sprintf("%.1f Gbit/s", bits/1e9)
	}
	return fmt.Sprintf("%.1f Mbit/s", bits/1e6)
}
