package peer

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"rallypoint/core/params"
	"rallypoint/core/peer/peertest"
	"rallypoint/internal/testkit"
)

// stranger is the user who connects in a test's attack: another one if this process may take
// his part.
func stranger() int {
	if os.Geteuid() == 0 {
		return peertest.Stranger
	}
	return os.Geteuid()
}

// reset ends a connection so that its four ends are free at once.
func reset(t *testing.T, c net.Conn) {
	t.Helper()
	testkit.Check(t, c.(*net.TCPConn).SetLinger(0))
	testkit.Check(t, c.Close())
}

// dialFrom connects with a port of one's own.
func dialFrom(t *testing.T, from, to net.Addr) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: from}
	c, err := d.DialContext(t.Context(), "tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestPortOfAnother has a stranger connect, send and reset before he is asked about, and this
// user's process connect from his port: the kernel finds a socket of this user then, but what
// was accepted is the stranger's. So do the two ends the other way round, of a server.
func TestPortOfAnother(t *testing.T) {
	for name, ask := range map[string]func(local, remote netip.AddrPort) (socket, error){"sock_diag": lookUp, "/proc": scanTables} {
		t.Run("client/"+name, func(t *testing.T) {
			l := listen(t, "127.0.0.1:0")
			c := NewLoopbackCheck(params.LoopbackUsers{})
			server, client := accepted(t, l, func(addr string) net.Conn { return peertest.Dial(t, stranger(), addr) })
			if _, err := client.Write([]byte("a stranger's")); err != nil {
				t.Fatal(err)
			}
			port, asked := client.LocalAddr(), 0
			c.lookUp = func(local, remote netip.AddrPort) (socket, error) {
				asked++
				reset(t, client)
				dialFrom(t, port, l.Addr())
				return ask(local, remote)
			}
			if err := c.Admit(server); !errors.Is(err, ErrUnknownUser) {
				t.Errorf("who was found by a stranger's addresses: %v", err)
			}
			b := make([]byte, 100)
			if n, err := server.Read(b); string(b[:n]) != "a stranger's" {
				t.Errorf("the kernel keeps %q of him, %v", b[:n], err)
			}
			if s, err := ask(canonical(server.LocalAddr().(*net.TCPAddr).AddrPort()), canonical(port.(*net.TCPAddr).AddrPort())); err != nil || !s.open() || int(s.uid) != os.Geteuid() {
				t.Errorf("his addresses are not this user's: %+v, %v", s, err)
			}
			if err := c.Admit(server); !errors.Is(err, ErrUnknownUser) || asked != 1 {
				t.Errorf("one that was reset before: %v, asked %d times", err, asked)
			}
		})
		t.Run("server/"+name, func(t *testing.T) {
			l := peertest.Listen(t, stranger(), "127.0.0.1:0")
			c := NewLoopbackCheck(params.LoopbackUsers{})
			c.self = uint32(os.Geteuid())
			client := plainDial(t)(l.Addr().String())
			port, at := client.LocalAddr(), l.Addr()
			answering, err := l.Accept()
			testkit.Check(t, err)
			c.lookUp = func(local, remote netip.AddrPort) (socket, error) {
				reset(t, answering)
				l.Close()
				accepted(t, listen(t, at.String()), func(string) net.Conn { return dialFrom(t, port, at) })
				return ask(local, remote)
			}
			if err := c.AdmitServer(client); !errors.Is(err, ErrUnknownUser) {
				t.Errorf("a stranger's server: %v", err)
			}
		})
	}
}

// TestHalfClosed: a server that has ended its sending side is judged like any; a connection that
// both sides have ended is none.
func TestHalfClosed(t *testing.T) {
	l := listen(t, "127.0.0.1:0")
	server, client := accepted(t, l, plainDial(t))
	c := NewLoopbackCheck(params.LoopbackUsers{})
	testkit.Check(t, server.(*net.TCPConn).CloseWrite())
	_, _ = client.Read(make([]byte, 1)) // its end has come
	testkit.Check(t, c.AdmitServer(client))
	testkit.Check(t, client.(*net.TCPConn).CloseWrite())
	if err := c.AdmitServer(client); err == nil || strings.Contains(err.Error(), "loopback_check") {
		t.Errorf("both sides have ended: %v", err)
	}
}
