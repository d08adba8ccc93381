package wire

import (
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

// TestSendAgainSteadily: both ends of a connection have the option, the listener's from it.
func TestSendAgainSteadily(t *testing.T) {
	l := testkit.Must(Listen(t.Context(), "127.0.0.1:0"))(t)
	defer l.Close()
	near := testkit.Must(Dial(t.Context(), l.Addr().String()))(t)
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

// TestLongestUserTimeout: the kernel counts milliseconds in 32 bits. A lease that is longer, which an option allows, does
// not become a short one.
func TestLongestUserTimeout(t *testing.T) {
	l := testkit.Must(Listen(t.Context(), "127.0.0.1:0"))(t)
	defer l.Close()
	conn := testkit.Must(Dial(t.Context(), l.Addr().String()))(t)
	defer conn.Close()
	for is, want := range map[time.Duration]int{
		time.Microsecond: 1, 10 * time.Second: 10_000, rendezvous.MaxTimeout: math.MaxInt32, 1<<32*time.Millisecond + time.Second: math.MaxInt32,
	} {
		SetUserTimeout(conn, is)
		withDescriptor(conn, func(fd int) {
			if ms, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT); err != nil || ms != want {
				t.Errorf("of %s: %d ms, not %d, %v", is, ms, want, err)
			}
		})
	}
}

// TestEndedByPeer: the end of a connection is seen before what came ahead of it is read.
func TestEndedByPeer(t *testing.T) {
	l := testkit.Must(Listen(t.Context(), "127.0.0.1:0"))(t)
	defer l.Close()
	near := testkit.Must(Dial(t.Context(), l.Addr().String()))(t)
	defer near.Close()
	far := NewConn(testkit.Must(l.Accept())(t))
	defer far.Close()
	if _, err := near.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the bytes are there", func() bool { return Unread(far) == 5 })
	if EndedByPeer(far) {
		t.Error("a connection that is open has ended")
	}
	near.Close()
	testkit.Eventually(t, "it has ended", func() bool { return EndedByPeer(far) })
	if Unread(far) != 5 {
		t.Error("what came before is gone")
	}
}
