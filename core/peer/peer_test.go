package peer

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"rallypoint/core/params"
	"rallypoint/core/peer/peertest"
	"rallypoint/internal/testkit"
)

// What this binary does as a child of a test, by the variable childEnv.
const (
	childEnv    = "RALLYPOINT_TEST_PEER_CHILD"
	childDials  = "dial"  // connects to the address that follows, and stays until its stdin ends
	childListen = "serve" // prints its address, and for each connection what Admit says
	childRouted = "route" // prints what Admit says where networks are routed to this machine
)

func TestMain(m *testing.M) {
	what, addr, _ := strings.Cut(os.Getenv(childEnv), " ")
	switch what {
	case childDials:
		conn, err := net.Dial("tcp", addr)
		fmt.Println(os.Geteuid(), err)
		if err == nil {
			_, _ = io.Copy(io.Discard, os.Stdin)
			conn.Close()
		}
		return
	case childRouted:
		if err := routed(); err != nil {
			fmt.Println("no:", err)
		}
		return
	case childListen:
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(l.Addr())
		check := NewLoopbackCheck(params.LoopbackUsers{})
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Println(check.Admit(conn))
			conn.Close()
		}
	}
	goleak.VerifyTestMain(m)
}

// child runs this binary as another user. The result are its lines; it ends with the test.
func child(t *testing.T, what string, attr *syscall.SysProcAttr) *bufio.Scanner {
	t.Helper()
	cmd := exec.Command("/proc/self/exe") // a path that another user need not be able to walk
	cmd.Env = append(os.Environ(), childEnv+"="+what)
	cmd.SysProcAttr = attr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Skipf("no such process can be started here: %v", err)
	}
	t.Cleanup(func() {
		in.Close()
		if what == childListen {
			_ = cmd.Process.Kill()
		}
		_ = cmd.Wait()
	})
	return bufio.NewScanner(out)
}

func line(t *testing.T, s *bufio.Scanner) string {
	t.Helper()
	if !s.Scan() {
		t.Fatal("the child has ended:", s.Err())
	}
	return s.Text()
}

func asUser(uid uint32) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
}

// inNamespace is a child that is root of a user namespace of its own, where the host knows
// it as the user uid.
func inNamespace(uid int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}},
		Credential:  &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: true},
	}
}

// byTables is lookUp where there is no sock_diag.
func byTables(_ *diag, local, remote netip.AddrPort) (socket, error) {
	return scanTables(local, remote)
}

// accepted is a connection from both ends.
func accepted(t *testing.T, l net.Listener, dial func(addr string) net.Conn) (server, client net.Conn) {
	t.Helper()
	client = dial(l.Addr().String())
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return server, client
}

func plainDial(t *testing.T) func(string) net.Conn {
	return func(addr string) net.Conn {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
}

func listen(t *testing.T, addr string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Skipf("no listener at %s: %v", addr, err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// TestOwnUser: the process's own connections are let in, of either family and in either
// form, by both ways to ask.
func TestOwnUser(t *testing.T) {
	check := NewLoopbackCheck(params.LoopbackUsers{})
	for _, test := range []struct{ listen, dial string }{
		{"127.0.0.1:0", "127.0.0.1"}, {"127.3.2.1:0", "127.3.2.1"}, {"[::1]:0", "[::1]"}, {":0", "[::ffff:127.0.0.1]"}, {":0", "[::1]"},
	} {
		l := listen(t, test.listen)
		server, client := accepted(t, l, func(string) net.Conn {
			return plainDial(t)(test.dial + ":" + strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
		})
		if err := check.Admit(server); err != nil {
			t.Errorf("%v: %v", test, err)
		}
		local, remote := canonical(server.LocalAddr().(*net.TCPAddr).AddrPort()), canonical(server.RemoteAddr().(*net.TCPAddr).AddrPort())
		for name, ask := range map[string]func(*diag, netip.AddrPort, netip.AddrPort) (socket, error){"sock_diag": (*diag).find, "/proc": byTables} {
			var d diag
			s, err := ask(&d, local, remote)
			if err != nil || !s.open() || int(s.uid) != os.Geteuid() {
				t.Errorf("%v by %s: %+v, %v", test, name, s, err)
			}
			if _, err := ask(&d, remote, netip.AddrPortFrom(remote.Addr(), 1)); !errors.Is(err, errNoSocket) {
				t.Errorf("%v by %s: a socket that is none: %v", test, name, err)
			}
			if s, err := ask(&d, local, canonical(l.Addr().(*net.TCPAddr).AddrPort())); err == nil && s.open() {
				t.Errorf("%v by %s: the listener counts as an end: %+v", test, name, s)
			}
			d.close()
		}
		client.Close()
		if err := check.Admit(server); !errors.Is(err, errUnknownUser) {
			t.Errorf("%v: of a closed one: %v", test, err)
		}
	}
}

// TestOtherUser: other users are refused, also one that is root of its own user namespace,
// and one that is gone; not who is let in by name. The same by /proc.
func TestOtherUser(t *testing.T) {
	peertest.NeedRoot(t)
	l := listen(t, "127.0.0.1:0")
	check := NewLoopbackCheck(params.LoopbackUsers{})
	byTable := NewLoopbackCheck(params.LoopbackUsers{})
	byTable.lookUp = byTables
	also := NewLoopbackCheck(params.LoopbackUsers{Also: []params.UIDRange{{First: peertest.Stranger, Last: peertest.Stranger + 1}}})

	server, client := accepted(t, l, func(addr string) net.Conn { return peertest.Dial(t, peertest.Stranger+1, addr) })
	for name, c := range map[string]*Check{"sock_diag": check, "/proc": byTable} {
		err := c.Admit(server)
		if !errors.Is(err, ErrOtherUser) || !strings.Contains(err.Error(), "user 1234568, where this process runs as 0") || !strings.Contains(err.Error(), "allow_uid=1234568") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := also.Admit(server); err != nil {
		t.Errorf("who is let in by name: %v", err)
	}
	if err := NewLoopbackCheck(params.LoopbackUsers{Anyone: true}).Admit(server); err != nil {
		t.Errorf("without a check: %v", err)
	}
	client.Close()
	for name, c := range map[string]*Check{"sock_diag": check, "/proc": byTable, "also": also} {
		if err := c.Admit(server); !errors.Is(err, errUnknownUser) {
			t.Errorf("%s, of a user who is gone: %v", name, err)
		}
	}

	for name, test := range map[string]struct {
		attr  *syscall.SysProcAttr
		let   bool
		asUID string
	}{
		"another user":                        {asUser(peertest.Stranger), false, "1234567"},
		"root of another user's namespace":    {inNamespace(peertest.Stranger), false, "0"},
		"this user in a namespace of its own": {inNamespace(0), true, "0"},
	} {
		t.Run(name, func(t *testing.T) {
			lines := child(t, childDials+" "+l.Addr().String(), test.attr)
			if said := line(t, lines); said != test.asUID+" <nil>" {
				t.Fatalf("the child says %q", said)
			}
			server, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			for way, c := range map[string]*Check{"sock_diag": check, "/proc": byTable} {
				err := c.Admit(server)
				if test.let && err != nil || !test.let && !errors.Is(err, ErrOtherUser) {
					t.Errorf("%s: %v", way, err)
				}
			}
		})
	}
}

// TestSourcesOfUsers: users are told apart by every address of this machine to which they
// connect, of either family, and in either form of an IPv4 address.
func TestSourcesOfUsers(t *testing.T) {
	peertest.NeedRoot(t)
	check := NewLoopbackCheck(params.LoopbackUsers{})
	byTable := NewLoopbackCheck(params.LoopbackUsers{})
	byTable.lookUp = byTables
	for _, test := range []struct{ listen, dial string }{
		{"127.0.0.1:0", "::ffff:127.0.0.1"}, {"127.3.2.1:0", "::ffff:127.3.2.1"}, {"[::]:0", "::ffff:127.0.0.1"},
		{"[::]:0", "127.0.0.1"}, {"[::]:0", "::1"}, {"[::1]:0", "::1"},
	} {
		l := listen(t, test.listen)
		to := net.JoinHostPort(test.dial, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
		for uid, want := range map[int]error{os.Geteuid(): nil, peertest.Stranger: ErrOtherUser} {
			server, _ := accepted(t, l, func(string) net.Conn { return peertest.Dial(t, uid, to) })
			for way, c := range map[string]*Check{"sock_diag": check, "/proc": byTable} {
				if err := c.Admit(server); !errors.Is(err, want) {
					t.Errorf("user %d at %s to %s by %s: %v", uid, test.listen, test.dial, way, err)
				}
			}
		}
	}
}

// TestAgentNotRoot: a process without privileges tells users apart just as well; root is
// another user to it.
func TestAgentNotRoot(t *testing.T) {
	peertest.NeedRoot(t)
	lines := child(t, childListen, asUser(peertest.Stranger))
	addr := line(t, lines)
	for uid, want := range map[int]string{
		peertest.Stranger: "<nil>", peertest.Stranger + 1: "user 1234568", 0: "user 0",
	} {
		peertest.Dial(t, uid, addr)
		if said := line(t, lines); !strings.Contains(said, want) {
			t.Errorf("user %d: %q", uid, said)
		}
	}
}

// TestWhereToCheck: loopback listeners of every job, all listeners of a job of one machine,
// where connections of other machines pass.
func TestWhereToCheck(t *testing.T) {
	nodeParams := func(endpoint string, max int) *params.Params {
		p := params.Default()
		p.Endpoint, p.Max = endpoint, max
		p.Servers, _ = params.ParseServers(endpoint, params.DefaultPort) // none of a directory
		return &p
	}
	loop, any := &net.TCPAddr{IP: net.IPv4(127, 1, 2, 3)}, &net.TCPAddr{IP: net.IPv4zero}
	for _, test := range []struct {
		p      *params.Params
		listen net.Addr
		want   bool
	}{
		{nodeParams("host0:29400", 2), loop, true},
		{nodeParams("host0:29400", 2), &net.TCPAddr{IP: net.IPv6loopback}, true},
		{nodeParams("host0:29400", 2), any, false},
		{nodeParams("host0:29400", 1), any, true},
		{nodeParams("localhost:29400", 2), any, true},
		{nodeParams("file:///x", 2), any, false},
		{nodeParams("file:///x", 2), loop, true},
		{nodeParams("host0:29400", 1), &net.UnixAddr{}, false},
	} {
		if got := NewCheck(test.p, test.listen) != nil; got != test.want {
			t.Errorf("%s, %d nodes, %s: %v", test.p.Endpoint, test.p.Max, test.listen, got)
		}
		test.p.LoopbackUsers.Anyone = true
		if NewCheck(test.p, test.listen) != nil {
			t.Errorf("%s: checked in spite of loopback_check=0", test.listen)
		}
	}

	c := NewCheck(nodeParams("host0:29400", 1), any)
	c.locals = func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("10.0.0.6")}, nil }
	c.routed = func(netip.Addr) (bool, error) { return false, errors.New("no") }
	here := netip.MustParseAddr("10.0.0.5")
	for from, near := range map[string]bool{"10.0.0.7": false, "10.0.0.5": true, "10.0.0.6": true, "127.0.0.1": true} {
		if c.concerns(here, netip.MustParseAddr(from)) != near {
			t.Errorf("from %s: asked about: %v", from, !near)
		}
	}
	c.locals = func() ([]netip.Addr, error) { return nil, errors.New("no") }
	if !c.concerns(here, netip.MustParseAddr("10.0.0.7")) {
		t.Error("what cannot be told from this machine passes")
	}
}

// TestServerOfOthers: a server may be root's, and may have ended its side.
func TestServerOfOthers(t *testing.T) {
	c := NewLoopbackCheck(params.LoopbackUsers{Also: []params.UIDRange{{First: 7, Last: 7}}})
	c.self, c.overflow, c.ambiguous = 1000, 65534, true
	for s, want := range map[socket]error{
		{state: stateEstablished, uid: 1000, inode: 1}:  nil,
		{state: stateEstablished, uid: 7, inode: 1}:     nil,
		{state: stateEstablished, uid: 0, inode: 1}:     nil,
		{state: stateFinWait2, uid: 1000, inode: 1}:     nil,
		{state: stateFinWait1, uid: 8, inode: 1}:        ErrOtherUser,
		{state: stateEstablished, uid: 8, inode: 1}:     ErrOtherUser,
		{state: stateEstablished, uid: 65534, inode: 1}: ErrOtherUser,
		{state: stateFinWait2, uid: 0}:                  errUnknownUser, // of a process that is gone
		{state: 10, uid: 1000, inode: 1}:                errUnknownUser,
		{state: stateCloseWait, uid: 0}:                 ErrEnded,
	} {
		if err := c.decide(s, nil, true); !errors.Is(err, want) {
			t.Errorf("%+v: %v, want %v", s, err, want)
		}
	}
	if !errors.Is(c.decide(socket{state: stateEstablished, uid: 0, inode: 1}, nil, false), ErrOtherUser) {
		t.Error("root may connect")
	}
}

// TestWhoCannotBeTold: the overflow user is refused where it may stand for any user, and an
// error refuses unless the machine has no other users.
func TestWhoCannotBeTold(t *testing.T) {
	c := NewLoopbackCheck(params.LoopbackUsers{Also: []params.UIDRange{{First: 0, Last: 1 << 31}}})
	c.overflow, c.ambiguous = 65534, true
	answer, failure := socket{state: stateEstablished, uid: 65534, inode: 1}, error(nil)
	if err := c.decide(answer, failure, false); !errors.Is(err, ErrOtherUser) {
		t.Errorf("the overflow user: %v", err)
	}
	c.ambiguous = false
	if err := c.decide(answer, failure, false); err != nil {
		t.Errorf("the overflow user where all are mapped: %v", err)
	}
	for s, ended := range map[socket]bool{
		{state: stateEstablished, uid: 0}: true, {state: stateFinWait1, uid: 0, inode: 1}: false, {state: stateFinWait2, inode: 1}: false,
		{state: stateFinWait2}: true, {state: 10, inode: 1}: false, {state: 6}: true,
	} {
		answer = s
		if err := c.decide(answer, failure, false); !errors.Is(err, errUnknownUser) || errors.Is(err, ErrEnded) != ended {
			t.Errorf("%+v: %v", s, err)
		}
	}
	answer.state, answer.inode = stateCloseWait, 1
	if err := c.decide(answer, failure, false); err != nil {
		t.Error(err)
	}
	others := true
	c.others = func() bool { return others }
	failure = fmt.Errorf("%w: x", errUnavailable)
	if err := c.decide(answer, failure, false); !errors.Is(err, errUnknownUser) || !strings.Contains(err.Error(), "loopback_check=0") {
		t.Errorf("%v", err)
	}
	others = false
	if err := c.decide(answer, failure, false); err != nil {
		t.Errorf("on a machine without other users: %v", err)
	}
	for _, failure = range []error{errNoSocket, errors.New("x")} {
		if c.decide(answer, failure, false) == nil {
			t.Errorf("%v is let in", failure)
		}
	}
}

// TestNamed: a user has the name that the file of users has for him, without what a terminal obeys.
func TestNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "passwd")
	testkit.WriteFile(t, path, []byte("root:x:0:0:::\n# a comment\nshort:x\nann:x:1001:1001:::\nbad\x1b[2J:x:1002:1:::\nann2:x:1001:1:::\n"))
	for uid, want := range map[uint32]string{0: "0 (root)", 1001: "1001 (ann)", 1002: "1002 (bad\ufffd[2J)", 1003: "1003"} {
		testkit.Equal(t, named(path, uid), want)
	}
	testkit.Equal(t, named(path+"x", 1001), "1001")
}

func TestOtherLogins(t *testing.T) {
	path := t.TempDir() + "/passwd"
	for text, want := range map[string]bool{
		"root:x:0:0\ndaemon:x:1:1\nnobody:x:65534:65534\nme:x:1000:1000\n": false,
		"root:x:0:0\nyou:x:1001:1001\n":                                    true,
		"garbage\n:::\nx:y:z\n":                                            false,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := otherLogins(path, 1000); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
	if otherLogins(path+"x", 1000) {
		t.Error("a file that is not there names a user")
	}
}

// FuzzDiagReply reads any answer: an accepted one is of the socket that was asked for, of an
// answer that has all of it.
func FuzzDiagReply(f *testing.F) {
	local, remote := netip.MustParseAddrPort("127.0.0.1:1234"), netip.MustParseAddrPort("127.0.0.1:4321")
	good := diagRequest(0, remote, local) // its ends are where a reply has them, some bytes later
	f.Add(good)
	f.Add(reply(local, remote))
	f.Add(reply(local, remote)[:80])
	f.Add([]byte{20, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseDiagReply(b, 0, local, remote)
		if err != nil {
			if s != (socket{}) {
				t.Errorf("%+v with %v", s, err)
			}
			return
		}
		if len(b) < 16+diagReplyLen {
			t.Errorf("%+v from %d bytes", s, len(b))
		}
	})
}

// FuzzTable reads any text as /proc/net/tcp.
func FuzzTable(f *testing.F) {
	local, remote := netip.MustParseAddrPort("127.0.0.1:31300"), netip.MustParseAddrPort("127.0.0.1:40000")
	f.Add("  sl  local_address\n   1: 0100007F:9C40 0100007F:7A44 01 00000000:00000000 00:00000000 00000000  1000        0 4711 1\n")
	f.Add("1: 0000000000000000FFFF00000100007F:9C40 0000000000000000FFFF00000100007F:7A44 01 0:0 0:0 0 x 0 1\n")
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := scanTable(strings.NewReader(text), local, remote); err != nil && s != (socket{}) {
			t.Errorf("%+v with %v", s, err)
		}
	})
}

func TestDiagReply(t *testing.T) {
	local, remote := netip.MustParseAddrPort("127.0.0.1:1234"), netip.MustParseAddrPort("127.0.0.1:4321")
	if s, err := parseDiagReply(reply(local, remote), 0, local, remote); err != nil || s != (socket{stateEstablished, 7, 8}) {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := parseDiagReply(reply(remote, local), 0, local, remote); !errors.Is(err, errNoSocket) {
		t.Errorf("the wrong way round: %v", err)
	}
	if _, err := parseDiagReply(reply(local, remote), 1, local, remote); err == nil {
		t.Error("the answer to another question is taken")
	}
	for n := range reply(local, remote) {
		if s, err := parseDiagReply(reply(local, remote)[:n], 0, local, remote); err == nil {
			t.Errorf("%d bytes are %+v", n, s)
		}
	}
}

// reply is what the kernel answers of a connected socket of user 7, inode 8.
func reply(local, remote netip.AddrPort) []byte {
	b := make([]byte, 16+diagReplyLen)
	order := binary.NativeEndian
	order.PutUint32(b, uint32(len(b)))
	order.PutUint16(b[4:], unix.SOCK_DIAG_BY_FAMILY)
	body := b[16:]
	body[0], body[1] = familyOf(remote.Addr()), stateEstablished
	binary.BigEndian.PutUint16(body[4:], remote.Port())
	binary.BigEndian.PutUint16(body[6:], local.Port())
	copy(body[8:], addressField(remote.Addr()))
	copy(body[24:], addressField(local.Addr()))
	order.PutUint32(body[64:], 7)
	order.PutUint32(body[68:], 8)
	return b
}

func BenchmarkAdmit(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	check := NewLoopbackCheck(params.LoopbackUsers{})
	defer testkit.ReportCPU(b)()
	for b.Loop() {
		if err := check.Admit(server); err != nil {
			b.Fatal(err)
		}
	}
}
