package backend

import (
	"cmp"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

const loopback = "127.0.0.1"

// ownAddress is the address under which the other nodes of a run of up to most
// nodes reach this machine, where no server sees the node and no option names it
// (docs/decisions/0033): that of the interface with the default route, for
// that is the one that leads elsewhere; without a default route that of the first
// other interface that is up. A run of one node needs no more than loopback, and a
// machine without anything else has no more.
func ownAddress(most int) string {
	if most == 1 {
		return loopback
	}
	table, _ := os.ReadFile("/proc/net/route")
	if i, err := net.InterfaceByName(defaultInterface(table)); err == nil {
		if addr := addressOf(i); addr != "" {
			return addr
		}
	}
	interfaces, _ := net.Interfaces()
	for _, i := range interfaces {
		if i.Flags&net.FlagUp != 0 && i.Flags&net.FlagLoopback == 0 {
			if addr := addressOf(&i); addr != "" {
				return addr
			}
		}
	}
	return loopback
}

// addressOf returns an interface's first address that other machines can use,
// IPv4 if there is one.
func addressOf(i *net.Interface) string {
	addrs, _ := i.Addrs()
	found := ""
	for _, a := range addrs {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil || !prefix.Addr().IsGlobalUnicast() {
			continue
		}
		if prefix.Addr().Is4() {
			return prefix.Addr().String()
		}
		found = cmp.Or(found, prefix.Addr().String())
	}
	return found
}

// defaultInterface returns the interface of the default route with the least
// metric in a table like /proc/net/route; "" if there is none.
func defaultInterface(table []byte) string {
	best, least := "", 0
	for line := range strings.Lines(string(table)) {
		// Iface Destination Gateway Flags RefCnt Use Metric Mask ...
		f := strings.Fields(line)
		if len(f) < 8 || f[1] != "00000000" || f[7] != "00000000" {
			continue
		}
		metric, err := strconv.Atoi(f[6])
		if err == nil && (best == "" || metric < least) {
			best, least = f[0], metric
		}
	}
	return best
}
