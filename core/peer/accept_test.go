package peer

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"rallypoint/core/params"
	"rallypoint/core/peer/peertest"
	"rallypoint/internal/testkit"
)

// TestQueueOfStrangers has more connections of a stranger before this user's than are weeded out in
// one go, some of them open and most reset: this user's is the next one that Accept returns. The
// kernel is asked of the open ones only, by few sockets, not by one for each.
func TestQueueOfStrangers(t *testing.T) {
	peertest.NeedRoot(t)
	const gone, open = 2*maxWeeded + 10, 40
	if text, err := os.ReadFile("/proc/sys/net/core/somaxconn"); err == nil {
		if most, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && most < gone+2*open {
			t.Skipf("only %d connections can queue here", most)
		}
	}
	l := listen(t, "127.0.0.1:0")
	c := NewLoopbackCheck(params.LoopbackUsers{})
	asked, sockets := 0, 0
	c.lookUp = func(d *diag, local, remote netip.AddrPort) (socket, error) {
		asked++
		if !d.open {
			sockets++
		}
		return lookUp(d, local, remote)
	}
	for i := range gone {
		conn := peertest.Dial(t, peertest.Stranger, l.Addr().String())
		_, _ = io.WriteString(conn, "a stranger's")
		testkit.Check(t, conn.(*net.TCPConn).SetLinger(0))
		conn.Close()
		if i%(gone/open) == 0 {
			peertest.Dial(t, peertest.Stranger, l.Addr().String())
		}
	}
	own := plainDial(t)(l.Addr().String())
	_, _ = io.WriteString(own, "mine")
	why := map[bool]int{}
	conn, err := c.Accept(l, func(from netip.AddrPort, err error) {
		why[err == ErrEnded]++
		if from.Addr() != netip.AddrFrom4([4]byte{127, 0, 0, 1}) || from.Port() == 0 || err == nil {
			t.Errorf("refused: %s, %v", from, err)
		}
	})
	testkit.Check(t, err)
	defer conn.Close()
	strangers := gone/(gone/open) + 1
	if why[true] != gone || why[false] != strangers {
		t.Errorf("%d refused that have ended, want %d; %d others, want %d", why[true], gone, why[false], strangers)
	}
	if asked != strangers+1 || sockets > 4 {
		t.Errorf("the kernel was asked %d times, want %d, by %d sockets", asked, strangers+1, sockets)
	}
	b := make([]byte, 4)
	if _, err := io.ReadFull(conn, b); err != nil || string(b) != "mine" || conn.RemoteAddr().String() != own.LocalAddr().String() {
		t.Errorf("accepted %v, which says %q, %v", conn.RemoteAddr(), b, err)
	}
	if _, err := conn.Write([]byte("yes")); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(own, b[:3]); err != nil || string(b[:3]) != "yes" {
		t.Errorf("%q, %v", b[:3], err)
	}
	descriptors := testkit.Descriptors(t)
	for range 10 { // a refused one before each: all but the first come by the way that weeds
		peertest.Dial(t, peertest.Stranger, l.Addr().String()).Close()
		mine := plainDial(t)(l.Addr().String())
		conn, err := c.Accept(l, func(netip.AddrPort, error) {})
		testkit.Check(t, err)
		conn.Close()
		mine.Close()
	}
	if n := testkit.Descriptors(t); n > descriptors {
		t.Errorf("%d descriptors are left open", n-descriptors)
	}
}

// TestAcceptEnds: Accept ends with its listener; without a check it takes everyone.
func TestAcceptEnds(t *testing.T) {
	l := listen(t, "127.0.0.1:0")
	var none *Check
	client := plainDial(t)(l.Addr().String())
	conn, err := none.Accept(l, nil)
	testkit.Check(t, err)
	testkit.Equal(t, conn.RemoteAddr().String(), client.LocalAddr().String())
	conn.Close()
	for _, c := range []*Check{none, NewLoopbackCheck(params.LoopbackUsers{})} {
		l := listen(t, "127.0.0.1:0")
		ended := make(chan error)
		go func() {
			_, err := c.Accept(l, func(netip.AddrPort, error) {})
			ended <- err
		}()
		l.Close()
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Errorf("of a closed listener: %v", err)
		}
	}
}
