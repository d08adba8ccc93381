package roundstore

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/control/controltest"
	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/peer/peertest"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/internal/promtext"
	"rallypoint/internal/testkit"
	"rallypoint/tcpstore"
)

// node is one node's round stores. A distant one is on another machine than all stores, as
// far as it knows; its loopback addresses are its own.
type node struct {
	*RoundStores
	log *testkit.Log
}

func newNode(t *testing.T, token string, distant bool) *node {
	t.Helper()
	log, lines := testkit.NewLog(t)
	stores, err := newStores(token, distant, log)
	if err != nil {
		t.Fatal(err)
	}
	return &node{stores, lines}
}

func newStores(token string, distant bool, log *slog.Logger) (*RoundStores, error) {
	p := params.Default()
	p.RunID, p.TokenFile, p.Max = "job", token, 2
	controltest.MeetAt(&p, "host0:29400")
	s, err := newRoundStores(p, log)
	if err != nil {
		return nil, err
	}
	if protection := s.protected; distant && protection != nil {
		protection.isHere = func(context.Context, string) bool { return false }
		near := protection.address
		protection.address = func(name secret.StoreName) netip.Addr {
			a := near(name).As4()
			a[3] ^= 1
			return netip.AddrFrom4(a)
		}
	}
	return s, nil
}

// serve opens the store of a round at host, and begins it.
func (n *node) serve(t *testing.T, host string, port int, round uint64) (real, here rendezvous.Outcome, rs member.RoundStore) {
	t.Helper()
	rs, err := n.Open(t.Context(), host, port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rs.Close() })
	if host == "" {
		host = "127.0.0.1"
	}
	real = rendezvous.Outcome{Generation: generation, Round: round, World: 2, StoreAddr: host, StorePort: rs.Port()}
	if here, err = rs.Begin(real); err != nil {
		t.Fatal(err)
	}
	return real, here, rs
}

// reach opens a node's way to a round's store.
func (n *node) reach(t *testing.T, real rendezvous.Outcome) (here rendezvous.Outcome, way io.Closer) {
	t.Helper()
	here, way, err := n.Reach(t.Context(), real)
	if err != nil {
		t.Fatal(err)
	}
	if way != nil {
		t.Cleanup(func() { way.Close() })
	}
	return here, way
}

// wantNone connects where no store serves.
func wantNone(t *testing.T, what string, o rendezvous.Outcome) {
	t.Helper()
	conn, err := net.Dial("tcp", net.JoinHostPort(o.StoreAddr, strconv.Itoa(o.StorePort)))
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = conn.Write([]byte("\x00\x2a\x2a\x2a\x2a")) // not what a TLS client begins with
	wantClosed(t, what, conn)
}

// TestProtectedStore: the workers of the store's machine and those of another one share a
// store that nothing reaches by its own address without TLS, whatever that address is.
func TestProtectedStore(t *testing.T) {
	for _, host := range []string{"127.0.0.1", ""} {
		for _, fixed := range []bool{false, true} {
			t.Run(host+" "+strconv.FormatBool(fixed), func(t *testing.T) {
				port := 0
				if fixed {
					port = testkit.FreePort(t)
				}
				token := testkit.TokenFile(t)
				a, b, c := newNode(t, token, false), newNode(t, token, true), newNode(t, token, false)
				real, atA, _ := a.serve(t, host, port, 1)
				atB, way := b.reach(t, real)
				atC, none := c.reach(t, real)
				if addr := netip.MustParseAddr(atA.StoreAddr); !addr.IsLoopback() || addr.As4()[1] == 0 || atA.StorePort != real.StorePort || atC.StoreAddr != atA.StoreAddr || none != nil {
					t.Errorf("workers beside the store: %+v and %+v, of %+v", atA, atC, real)
				}
				if atB.StorePort != real.StorePort || way == nil {
					t.Errorf("workers elsewhere: %+v, of %+v", atB, real)
				}
				if err := dial(t, atB).Set(t.Context(), "key", []byte("value")); err != nil {
					t.Fatal(err)
				}
				if v, err := dial(t, atC).Get(t.Context(), "key"); err != nil || string(v) != "value" {
					t.Errorf("%q, %v", v, err)
				}
				wantNone(t, "a plain client of the real address", real)
				if fixed {
					if _, err := c.Open(t.Context(), host, port); err == nil || !strings.Contains(err.Error(), "store_port="+strconv.Itoa(port)) {
						t.Errorf("another node has the fixed port, too: %v", err)
					}
				}
			})
		}
	}
}

// TestRoundsChange has a round begin while workers of the last one run: each finds its
// own round's store, and what belongs to the last one ends with it.
func TestRoundsChange(t *testing.T) {
	for _, fixed := range []bool{false, true} {
		port := 0
		if fixed {
			port = testkit.FreePort(t)
		}
		token := testkit.TokenFile(t)
		a, b := newNode(t, token, false), newNode(t, token, true)
		var last rendezvous.Outcome
		var open []io.Closer
		for round := uint64(1); round <= 3; round++ {
			real, atA, rs := a.serve(t, "127.0.0.1", port, round)
			atB, way := b.reach(t, real)
			for _, c := range open {
				testkit.Check(t, c.Close())
			}
			if last.Round > 0 {
				wantNone(t, "the last round's forwarder", last)
			}
			key := "round " + strconv.FormatUint(round, 10)
			worker := dial(t, atA)
			if err := worker.Set(t.Context(), key, []byte(key)); err != nil {
				t.Fatal(err)
			}
			other := dial(t, atB)
			if v, err := other.Get(t.Context(), key); err != nil || string(v) != key {
				t.Errorf("%q, %v", v, err)
			}
			if n, err := other.NumKeys(t.Context()); err != nil || n != 1 {
				t.Errorf("round %d has %d keys, %v", round, n, err)
			}
			last, open = atB, []io.Closer{rs, way}
		}
	}
}

// TestPastRoundListensNowhere: with a round its listeners end, those of its store, of the store's
// loopback address, of a forwarder and of the ports beside it.
func TestPastRoundListensNowhere(t *testing.T) {
	token := testkit.TokenFile(t)
	a, b := newNode(t, token, false), newNode(t, token, true)
	for left := 9; ; left-- {
		real, atA, rs := a.serve(t, "127.0.0.1", testkit.FreePort(t), 1)
		atB, way := b.reach(t, real)
		n, atStore := listeners(t, atB), listeners(t, atA)
		if atStore != 1 || n == 0 || n > 1+sideWindow || left == 0 {
			t.Fatalf("%d ports of a forwarder, %d at the store", n, atStore)
		}
		testkit.Check(t, way.Close())
		testkit.Check(t, rs.Close())
		for _, o := range []rendezvous.Outcome{real, atA, atB} {
			if n := listeners(t, o); n != 0 {
				t.Errorf("%d ports at %s from %d on", n, o.StoreAddr, o.StorePort)
			}
		}
		if n == 1+sideWindow {
			return
		}
		t.Logf("%d of %d ports from %d on: another program has the rest", n, 1+sideWindow, atB.StorePort)
	}
}

// listeners counts this process's listening sockets at a store's address, on its port and the
// ports beside it. A connection would also reach those of other programs at all addresses.
func listeners(t *testing.T, o rendezvous.Outcome) (n int) {
	t.Helper()
	for _, entry := range testkit.Must(os.ReadDir("/proc/self/fd"))(t) {
		fd := testkit.Must(strconv.Atoi(entry.Name()))(t)
		if listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err != nil || listens == 0 {
			continue
		}
		if a, err := unix.Getsockname(fd); err == nil {
			if at, ok := a.(*unix.SockaddrInet4); ok && netip.AddrFrom4(at.Addr).String() == o.StoreAddr && at.Port >= o.StorePort && at.Port <= o.StorePort+sideWindow {
				n++
			}
		}
	}
	return n
}

// TestStaleRound: a node of another round, or generation, with the right token, is refused by
// name, and the workers of the round do not notice.
func TestStaleRound(t *testing.T) {
	token := testkit.TokenFile(t)
	a, b := newNode(t, token, false), newNode(t, token, true)
	real, atA, _ := a.serve(t, "127.0.0.1", 0, 7)
	worker := dial(t, atA)
	for _, stale := range []rendezvous.Outcome{
		{Generation: generation, Round: 6, StoreAddr: real.StoreAddr, StorePort: real.StorePort},
		{Generation: "f", Round: 7, StoreAddr: real.StoreAddr, StorePort: real.StorePort},
	} {
		here, way := b.reach(t, stale)
		wantNone(t, "a stale node's worker", here)
		if err := way.(interface{ Err() error }).Err(); !errors.Is(err, rendezvous.ErrRoundOver) || !strings.Contains(err.Error(), "round 7 of run") {
			t.Errorf("the stale node's error: %v", err)
		}
		a.log.Await(t, "round 6 of run", 1) // the first refusal of a reason has a line, which comes after the answer
	}
	if err := worker.Set(t.Context(), "key", nil); err != nil {
		t.Error(err)
	}
}

// TestOtherKey: each side of a mismatch says what is wrong, with its own file.
func TestOtherKey(t *testing.T) {
	for name, test := range map[string]struct {
		served, known  string
		says, saysHere string
	}{
		"another token": {testkit.TokenFile(t), testkit.TokenFile(t), "does not know the token in", "does not know the token in"},
		"a plain store": {"", testkit.TokenFile(t), "no Rallypoint round store with a token", ""},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newNode(t, test.served, false), newNode(t, test.known, true)
			real, atA, _ := a.serve(t, "127.0.0.1", 0, 1)
			here, way := b.reach(t, real)
			wantNone(t, name, here)
			err := way.(interface{ Err() error }).Err()
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("the node says %v", err)
			}
			if test.saysHere != "" {
				a.log.Await(t, test.saysHere, 1)
			}
			if err := dial(t, atA).Set(t.Context(), "key", nil); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestOtherUserProtected has another user at the loopback address of a protected store and at
// a forwarder.
func TestOtherUserProtected(t *testing.T) {
	peertest.NeedRoot(t)
	token := testkit.TokenFile(t)
	a, b := newNode(t, token, false), newNode(t, token, true)
	real, atA, _ := a.serve(t, "127.0.0.1", 0, 1)
	atB, _ := b.reach(t, real)
	for _, o := range []rendezvous.Outcome{atA, atB} {
		worker := dial(t, o)
		conn := peertest.Dial(t, peertest.Stranger, net.JoinHostPort(o.StoreAddr, strconv.Itoa(o.StorePort)))
		wantClosed(t, "another user", conn)
		if err := worker.Set(t.Context(), "key", nil); err != nil {
			t.Error(err)
		}
	}
	for _, n := range []*node{a, b} {
		n.log.Await(t, "allow_uid="+strconv.Itoa(peertest.Stranger), 1)
	}
	if stores, forwarders := a.refused(); stores["other_user"] != 1 || forwarders["other_user"] != 0 {
		t.Errorf("beside the store: %v, %v", stores, forwarders)
	}
	if stores, forwarders := b.refused(); stores["other_user"] != 0 || forwarders["other_user"] != 1 {
		t.Errorf("at the forwarder: %v, %v", stores, forwarders)
	}
	var page promtext.Buffer
	b.Expose(&page)
	if want := `rallypoint_forwarder_refused_total{reason="other_user"} 1`; !strings.Contains(string(page.Bytes()), want) {
		t.Errorf("no %s in:\n%s", want, page.Bytes())
	}
}

// TestMembersWithToken goes through rounds of members of a hosted run with a token.
func TestMembersWithToken(t *testing.T) {
	endpoint := net.JoinHostPort("127.0.0.1", strconv.Itoa(testkit.FreePort(t)))
	options := map[string]string{"token_file": testkit.TokenFile(t)}
	a, b := open(t, "a", endpoint, 2, 2, options), open(t, "b", endpoint, 2, 2, options)
	var past []rendezvous.Outcome
	for range 3 {
		o := next(t, a, b)[0]
		if o.AdvertisedAddr != "127.0.0.1" || o.StoreAddr == o.AdvertisedAddr {
			t.Errorf("outcome %+v", o)
		}
		if err := dial(t, o).Set(t.Context(), "key", nil); err != nil {
			t.Error(err)
		}
		for _, p := range past {
			if p.StoreAddr == o.StoreAddr {
				t.Errorf("rounds %d and %d have one address", p.Round, o.Round)
			}
			wantNone(t, "the store of a past round", p)
		}
		past = append(past, o)
	}
}

// TestPlainByOption: store_tls=0 leaves round stores plain, and says so at each start.
func TestPlainByOption(t *testing.T) {
	p := params.Default()
	p.RunID, p.Min, p.Max, p.TokenFile = "job", 1, 2, testkit.TokenFile(t)
	controltest.MeetAt(&p, "host0:29400")
	if _, err := p.SetOptions(map[string]string{"store_tls": "0"}); err != nil {
		t.Fatal(err)
	}
	log, lines := testkit.NewLog(t)
	m, err := Open(p, log)
	if err != nil {
		t.Fatal(err)
	}
	m.Close()
	if got := lines.With("WARN", "store_tls=0"); len(got) != 1 {
		t.Errorf("it logs %s", lines)
	}
	s := testkit.Must(newRoundStores(p, log))(t)
	rs, err := s.Open(t.Context(), "127.0.0.1", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer rs.Close()
	begin(t, rs)
	c, err := tcpstore.Dial(t.Context(), net.JoinHostPort("127.0.0.1", strconv.Itoa(rs.Port())), tcpstore.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	p.Security = params.SecurityRequire
	if _, err := Open(p, log); !errors.Is(err, rendezvous.ErrInvalid) || !strings.Contains(err.Error(), "store_tls=0") {
		t.Errorf("required, and open: %v", err)
	}
}

// TestNoSuchToken: the store of a member does not open without its token's file.
func TestNoSuchToken(t *testing.T) {
	token := testkit.TokenFile(t)
	p := params.Default()
	p.RunID, p.TokenFile = "job", token
	testkit.Check(t, os.Remove(token))
	if _, err := newRoundStores(p, logTo(t, "stores")); !errors.Is(err, rendezvous.ErrInvalid) {
		t.Error(err)
	}
}

// echoAt serves an echo at a port of a round's address until the test ends.
func echoAt(t *testing.T, o rendezvous.Outcome, port int) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(o.StoreAddr, strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(c, c)
			c.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
}

// echoes sends a line to a port of a round's address and reports whether it comes back.
func echoes(t *testing.T, o rendezvous.Outcome, port int) bool {
	t.Helper()
	c, err := net.Dial("tcp", net.JoinHostPort(o.StoreAddr, strconv.Itoa(port)))
	if err != nil {
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(c, "echo")
	got := make([]byte, len("echo"))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "echo" {
		return false
	}
	_ = c.(*net.TCPConn).CloseWrite() // which the user check would take for the end
	rest, err := io.ReadAll(c)
	return err == nil && len(rest) == 0
}

// TestSidePorts: workers of another node reach what rank 0 opens at the ports above the
// store's and at those of forward_ports, once it listens, and nothing else of that node.
func TestSidePorts(t *testing.T) {
	token := testkit.TokenFile(t)
	extra := testkit.FreePort(t)
	a, b := newNode(t, token, false), newNode(t, token, true)
	for _, n := range []*node{a, b} {
		n.protected.extra = []int{extra}
	}
	real, atA, rs := a.serve(t, "127.0.0.1", 0, 1)
	atB, way := b.reach(t, real)
	near := real.StorePort + 2
	if echoes(t, atB, near) || echoes(t, atB, extra) {
		t.Error("a port without a listener answers") // rank 0 is late
	}
	for _, port := range []int{near, extra, real.StorePort + sideWindow + 1} {
		echoAt(t, atA, port)
	}
	if !echoes(t, atB, near) || !echoes(t, atB, extra) {
		t.Error("a port that is forwarded does not answer")
	}
	if echoes(t, atB, real.StorePort+sideWindow+1) {
		t.Error("a port beyond the window answers")
	}
	// A node that would have others cannot get there, either, nor one of another round.
	conn, err := b.protected.dial(testkit.Within(t, patience), net.JoinHostPort(real.StoreAddr, strconv.Itoa(real.StorePort)), nameOf("job", real), real.StorePort+sideWindow+1)
	if err != nil {
		t.Fatal(err)
	}
	wantClosed(t, "a port beyond the window", conn)
	conn.Close()
	if _, refused := a.refused(); refused["other_port"] != 1 || refused["other_program"] != 0 {
		t.Errorf("refused %v", refused)
	}
	stale := nameOf("job", real)
	stale.Round++
	if _, err := b.protected.dial(testkit.Within(t, patience), net.JoinHostPort(real.StoreAddr, strconv.Itoa(real.StorePort)), stale, near); !errors.Is(err, rendezvous.ErrRoundOver) {
		t.Errorf("a side port for another round: %v", err)
	}
	open, err := net.Dial("tcp", net.JoinHostPort(atB.StoreAddr, strconv.Itoa(near)))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	_, _ = io.WriteString(open, "x")
	if _, err := io.ReadFull(open, make([]byte, 1)); err != nil {
		t.Error(err)
	}
	testkit.Check(t, rs.Close())
	wantClosed(t, "a side port when the round is over", open)
	testkit.Check(t, way.Close())
}

// TestSidePortsEnd: the window above a store's port ends with the last port that there is, and
// those of forward_ports stay.
func TestSidePortsEnd(t *testing.T) {
	p := &Protection{extra: []int{8547}}
	for port, want := range map[int][]int{
		1 << 15: {8547, 32769, 32770, 32771, 32772, 32773, 32774, 32775, 32776},
		65533:   {8547, 65534, 65535},
		65535:   {8547},
	} {
		if got := p.sidePorts(port); !slices.Equal(got, want) {
			t.Errorf("beside %d: %v, want %v", port, got, want)
		}
	}
	token := testkit.TokenFile(t)
	b := newNode(t, token, true)
	if here, _ := b.reach(t, rendezvous.Outcome{Generation: generation, Round: 1, StoreAddr: "192.0.2.1", StorePort: 65535}); here.StorePort != 65535 {
		t.Skip("the last port is taken here")
	}
	if lines := b.log.With("WARN"); len(lines) > 0 {
		t.Errorf("%q", lines)
	}
}

// TestSideOfAnotherRound: a connection to a side port whose round ends between its proof and the
// time that it is taken leads to no program of the next round.
func TestSideOfAnotherRound(t *testing.T) {
	a := newNode(t, testkit.TokenFile(t), false)
	_, _, rs := a.serve(t, "127.0.0.1", 0, 2)
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	near := testkit.Must(net.Dial("tcp", l.Addr().String()))(t)
	defer near.Close()
	far := testkit.Must(l.Accept())(t)
	defer far.Close()
	past := secret.StoreName{Run: "job", Generation: generation, Round: 1}
	rs.(*roundStore).socket.sides.take(tls.Server(far, &tls.Config{}), past)
	if err := far.SetDeadline(time.Time{}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a side port of the round before is served: %v", err)
	}
	wantClosed(t, "a side port of the round before", near)
}

// TestSidePortsOfTheNextRound: at a fixed port, whose server continues, a connection to a side port
// ends when the next round begins.
func TestSidePortsOfTheNextRound(t *testing.T) {
	token, port := testkit.TokenFile(t), testkit.FreePort(t)
	a, b := newNode(t, token, false), newNode(t, token, true)
	real, atA, _ := a.serve(t, "127.0.0.1", port, 1)
	atB, _ := b.reach(t, real)
	echoAt(t, atA, port+1)
	open := testkit.Must(net.Dial("tcp", net.JoinHostPort(atB.StoreAddr, strconv.Itoa(port+1))))(t)
	defer open.Close()
	_ = open.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(open, "x")
	testkit.Must(io.ReadFull(open, make([]byte, 1)))(t)
	a.serve(t, "127.0.0.1", port, 2)
	wantClosed(t, "a side port when the next round has begun", open)
}

// TestSidePortTaken: a node whose own port beside the store's is taken, by another user perhaps,
// warns, since its workers reach what has it.
func TestSidePortTaken(t *testing.T) {
	token := testkit.TokenFile(t)
	a, b := newNode(t, token, false), newNode(t, token, true)
	real, _, _ := a.serve(t, "127.0.0.1", 0, 1)
	port := strconv.Itoa(real.StorePort + 1)
	l, err := net.Listen("tcp", net.JoinHostPort(b.protected.address(nameOf("job", real)).String(), port))
	if err != nil {
		t.Skip("the port is taken already: ", err)
	}
	defer l.Close()
	b.reach(t, real)
	if line := b.log.Await(t, "port "+port+" is taken on this node: its workers reach the program that has it, another user's perhaps", 1)[0]; !strings.Contains(line, "WARN") {
		t.Error(line)
	}
}

// TestSidePortOfOthers: another user's program at a port of the store's node is none of the
// job's.
func TestSidePortOfOthers(t *testing.T) {
	peertest.NeedRoot(t)
	token := testkit.TokenFile(t)
	a, b := newNode(t, token, false), newNode(t, token, true)
	real, atA, _ := a.serve(t, "127.0.0.1", 0, 1)
	port := real.StorePort + 1
	peertest.Accept(t, peertest.Stranger, net.JoinHostPort(atA.StoreAddr, strconv.Itoa(port)))
	atB, _ := b.reach(t, real)
	if echoes(t, atB, port) {
		t.Error("another user's program answers")
	}
	a.log.Await(t, "port "+strconv.Itoa(port)+" was reset: it is another user's", 1)
	if _, refused := a.refused(); refused["other_program"] != 1 || refused["other_port"] != 0 {
		t.Errorf("refused %v", refused)
	}
}
