package wire

import (
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"rallypoint/internal/testkit"
)

// TestSendAgainSteadily: both ends of a connection have the option, the listener's from it.
func TestSendAgainSteadily(t *testing.T) {
	l := testkit.Must(Listen(t.Context(), "127.0.0.1:0"))(t)
	defer l.Close()
	near := testkit.Must(Dialer().DialContext(t.Context(), "tcp", l.Addr().String()))(t)
	defer near.Close()
	far := testkit.Must(l.Accept())(t)
	defer far.Close()
	for name, conn := range map[string]net.Conn{"who dials": near, "who is dialled": far} {
		withDescriptor(conn, func(fd int) {
			steady, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_THIN_LINEAR_TIMEOUTS)
			if err != nil || steady != 1 {
				t.Errorf("%s: TCP_THIN_LINEAR_TIMEOUTS is %d, %v", name, steady, err)
			}
			control, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
			if err != nil || strings.TrimRight(control, "\x00") != "reno" {
				t.Errorf("%s: TCP_CONGESTION is %q, %v", name, control, err)
			}
		})
	}
}
