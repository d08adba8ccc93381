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

// reset ends a connection, whose four ends are free when it returns.
func reset(t *testing.T, c, other net.Conn) {
	t.Helper()
	testkit.Check(t, c.(*net.TCPConn).SetLinger(0))
	testkit.Check(t, c.Close())
	testkit.Eventually(t, "the other end has ended", func() bool { return connected(other) != nil })
}

// TestPortOfAnother has a stranger connect, send and reset before he is asked about, and this
// user's process connect from his port: the kernel finds a socket of this user then, but what
// was accepted is the stranger's. So do the two ends the other way round, of a server.
func TestPortOfAnother(t *testing.T) {
	for name, ask := range map[string]func(*diag, netip.AddrPort, netip.AddrPort) (socket, error){"sock_diag": lookUp, "/proc": byTables} {
		t.Run("client/"+name, func(t *testing.T) {
			l := listen(t, "127.0.0.1:0")
			c := NewLoopbackCheck(params.LoopbackUsers{})
			port := testkit.FreePort(t)
			server, client := accepted(t, l, func(addr string) net.Conn { return peertest.DialPort(t, stranger(), port, addr) })
			if _, err := client.Write([]byte("a stranger's")); err != nil {
				t.Fatal(err)
			}
			from, asked := client.LocalAddr(), 0
			c.lookUp = func(d *diag, local, remote netip.AddrPort) (socket, error) {
				asked++
				reset(t, client, server)
				peertest.DialPort(t, os.Geteuid(), port, l.Addr().String())
				return ask(d, local, remote)
			}
			if err := c.Admit(server); !errors.Is(err, errUnknownUser) {
				t.Errorf("who was found by a stranger's addresses: %v", err)
			}
			b := make([]byte, 100)
			if n, err := server.Read(b); string(b[:n]) != "a stranger's" {
				t.Errorf("the kernel keeps %q of him, %v", b[:n], err)
			}
			var d diag
			defer d.close()
			if s, err := ask(&d, canonical(server.LocalAddr().(*net.TCPAddr).AddrPort()), canonical(from.(*net.TCPAddr).AddrPort())); err != nil || !s.open() || int(s.uid) != os.Geteuid() {
				t.Errorf("his addresses are not this user's: %+v, %v", s, err)
			}
			if err := c.Admit(server); !errors.Is(err, errUnknownUser) || asked != 1 {
				t.Errorf("one that was reset before: %v, asked %d times", err, asked)
			}
		})
		t.Run("server/"+name, func(t *testing.T) {
			l := peertest.Listen(t, stranger(), "127.0.0.1:0")
			c := NewLoopbackCheck(params.LoopbackUsers{})
			c.self = uint32(os.Geteuid())
			port, at := testkit.FreePort(t), l.Addr().String()
			client := peertest.DialPort(t, os.Geteuid(), port, at)
			answering, err := l.Accept()
			testkit.Check(t, err)
			c.lookUp = func(d *diag, local, remote netip.AddrPort) (socket, error) {
				reset(t, answering, client)
				l.Close()
				accepted(t, listen(t, at), func(string) net.Conn { return peertest.DialPort(t, os.Geteuid(), port, at) })
				return ask(d, local, remote)
			}
			if err := c.AdmitServer(client); !errors.Is(err, errUnknownUser) {
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
