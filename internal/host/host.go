// Package host describes this machine: its names, its addresses and its clock.
package host

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// fqdnPatience bounds how long a name server may hold up a report.
const fqdnPatience = 2 * time.Second

// Name is the short name of this machine.
func Name() string {
	name, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return name
}

// NameOf is the name under which a user has this machine known; given "", Name.
func NameOf(given string) string {
	if given != "" {
		return given
	}
	return Name()
}

// FullNameOf is NameOf with FQDN in the place of Name.
func FullNameOf(given string) string {
	if given != "" {
		return given
	}
	return FQDN()
}

// Process names this process in logs and statuses, on a machine of that name.
func Process(machine string) string { return fmt.Sprintf("%s pid %d", machine, os.Getpid()) }

// FQDN is the full name of this machine as reports show it: the first name of its
// address with a dot in it, else the short one. It asks a name server at most
// once, and blocks at most fqdnPatience.
var FQDN = sync.OnceValue(func() string {
	name := Name()
	ctx, cancel := context.WithTimeout(context.Background(), fqdnPatience)
	defer cancel()
	var r net.Resolver
	addrs, err := r.LookupHost(ctx, name)
	if err != nil || len(addrs) == 0 {
		return name
	}
	names, err := r.LookupAddr(ctx, addrs[0])
	if err != nil {
		return name
	}
	for _, full := range names {
		if full = strings.TrimSuffix(full, "."); strings.Contains(full, ".") {
			return full
		}
	}
	return name
})

// Boot names this start of this machine; "" if that is not known.
var Boot = sync.OnceValue(func() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
})

// Uptime is the time since this machine was started. Nobody sets that clock, and unlike Go's own it goes on
// while the machine is suspended.
func Uptime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic("the kernel has no CLOCK_BOOTTIME: " + err.Error()) // all since 2.6.39 do
	}
	return time.Duration(now.Nano())
}

// Addrs returns the addresses of this machine's interfaces, without zones.
func Addrs() ([]netip.Addr, error) {
	nets, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var list []netip.Addr
	for _, n := range nets {
		if ipnet, ok := n.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(ipnet.IP); ok {
				list = append(list, addr.Unmap())
			}
		}
	}
	return list, nil
}
