package peer

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/params"
	"rallypoint/core/peer/peertest"
	"rallypoint/internal/testkit"
)

// routedFrom are addresses that are a machine's only by its routes, and that any of its users may
// connect from.
var routedFrom = []string{"10.9.0.7", "fd00:9::7"}

// routed gives its own network such addresses, and prints what the check of a job of one machine says
// of a stranger who connects from each of them.
func routed() error {
	for _, words := range []string{
		"link set lo up", "address add 10.8.0.1/32 dev lo", "route add local 10.9.0.0/24 dev lo",
		"address add fd00:8::1/128 dev lo nodad", "route add local fd00:9::/64 dev lo",
	} {
		if out, err := exec.Command("ip", strings.Fields(words)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w, %s", words, err, out)
		}
	}
	p := params.Default()
	p.Endpoint, p.Max = "host0:29400", 1
	for i, at := range []string{"10.8.0.1:0", "[fd00:8::1]:0"} {
		l, err := net.Listen("tcp", at)
		if err != nil {
			return err
		}
		awaitRoute(l.Addr())
		failed := make(chan error, 1)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
			_, _, _ = unix.RawSyscall(unix.SYS_SETRESUID, peertest.Stranger, peertest.Stranger, peertest.Stranger)
			d := net.Dialer{Control: bindAny, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(routedFrom[i]), 0))}
			if _, err := d.Dial("tcp", l.Addr().String()); err != nil {
				failed <- err
				l.Close()
			}
		}()
		conn, err := l.Accept()
		if err != nil {
			return <-failed
		}
		fmt.Println(NewCheck(&p, l.Addr()).Admit(conn))
	}
	return nil
}

// awaitRoute returns when an address of this machine can be reached: the kernel adds the route of a
// new IPv6 address after it has added the address.
func awaitRoute(to net.Addr) {
	deadline := time.Now().Add(testkit.Patience)
	for time.Now().Before(deadline) {
		if here, _ := routedHere(to.(*net.TCPAddr).AddrPort().Addr()); here {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// bindAny lets a socket be bound to an address that no interface has, as any user may.
func bindAny(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1)
		_ = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_FREEBIND, 1) // fails for IPv4
	})
	return errors.Join(err, failed)
}

// TestRouteReply reads what kind of address the asked one is.
func TestRouteReply(t *testing.T) {
	for addr, want := range map[string]bool{"127.5.6.7": true, "::1": true, "198.51.100.7": false, "2001:db8::7": false} {
		if here, err := routedHere(netip.MustParseAddr(addr)); err != nil || here != want {
			t.Errorf("%s: %v, %v", addr, here, err)
		}
	}
}

// FuzzRouteReply reads any answer.
func FuzzRouteReply(f *testing.F) {
	f.Add(routeRequest(netip.MustParseAddr("127.0.0.1")))
	f.Fuzz(func(t *testing.T, b []byte) {
		if here, err := parseRouteReply(b); here && (err != nil || len(b) < unix.SizeofNlMsghdr+unix.SizeofRtMsg) {
			t.Errorf("%d bytes are a route to this machine, %v", len(b), err)
		}
	})
}

// TestRoutedAddresses: whoever connects from an address that no interface of this machine has, but
// that is routed to it, is on this machine.
func TestRoutedAddresses(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make a network")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip(err)
	}
	lines := child(t, childRouted, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET})
	for _, from := range routedFrom {
		if said := line(t, lines); !strings.Contains(said, ErrOtherUser.Error()) {
			t.Errorf("from %s: %s", from, said)
		}
	}
}
