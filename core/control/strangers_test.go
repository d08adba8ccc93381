package control

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	"rallypoint/core/control/controltest"
	"rallypoint/core/control/standby"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/core/succession"
	"rallypoint/internal/testkit"
)

// hostileFrames are what would move nodes, make a standby host or list another one, if a peer
// that has proven itself said it.
func hostileFrames(p rendezvous.Policy, group string, at string) map[string]wire.Frame {
	to := wire.Redirect{Group: group, Term: 9, Host: at, Node: "evil", Servers: []string{at}}
	h := wire.Hello{Version: wire.ProtocolVersion, RunID: "run", Session: "evil", Node: "evil", Incarnation: 1, Policy: p,
		Features: []string{wire.FeatureSuccession, wire.FeatureStandby}, Group: group, Term: 9, Servers: []string{at}}
	return map[string]wire.Frame{
		"hello of a later term":    h,
		"probe of a later term":    wire.Probe{RunID: "run", Policy: p, Round: true, Node: "evil", Target: to},
		"liveness of a later term": wire.Liveness{RunID: "run", Group: group, Node: "evil", Ask: true, State: uint64(succession.Leads), Term: 9, Target: to},
		"liveness of a standby":    wire.Liveness{RunID: "run", Group: group, Node: "b", State: uint64(succession.Dead), Term: 1, Target: to},
		"transfer":                 wire.Transfer{Group: group, Term: 2, Addr: at},
		"standby":                  wire.Standby{Addr: at},
		"standbys":                 wire.Standbys{List: []wire.StandbyNode{{Node: "evil", Addr: at}}, Invited: true},
		"redirect":                 to,
		"close":                    wire.Admin{Op: wire.AdminOpClose, RunID: "run", By: "evil", Stop: true},
		"welcome":                  wire.Welcome{Version: 1, Lease: 1e9, Group: group, Term: 9, Addr: at},
		"proof":                    wire.Proof{MACs: [][]byte{make([]byte, 32)}, Purpose: secret.PurposeControl},
	}
}

// strangers are the ways in which peers that must not be let in say a frame.
func strangers(t *testing.T) map[string]func(n *wireNode, f wire.Frame) {
	proven := func(n *wireNode, key []byte, run []byte) wire.Proof {
		o := n.transcript()
		o.Name = run
		return wire.Proof{MACs: o.Prove(secret.OfNode, [][]byte{key}), Purpose: o.Purpose, Run: run}
	}
	return map[string]func(n *wireNode, f wire.Frame){
		"in plain": func(n *wireNode, f wire.Frame) {
			n.write(wire.AppendFrame(wire.Preamble{High: 1, Low: 1}.Bytes(), f))
		},
		"in plain, as with a token": func(n *wireNode, f wire.Frame) {
			n.write(opening(wire.Proof{MACs: [][]byte{make([]byte, 32)}, Purpose: secret.PurposeControl}, f))
		},
		"by TLS, as without a token": func(n *wireNode, f wire.Frame) {
			n.secure()
			n.write(wire.AppendFrame(wire.Preamble{High: 1, Low: 1}.Bytes(), f))
		},
		"without a proof": func(n *wireNode, f wire.Frame) {
			n.secure()
			n.write(wire.AppendFrame(guarded.Bytes(), f))
		},
		"with another token": func(n *wireNode, f wire.Frame) {
			n.secure()
			n.write(opening(proven(n, []byte(otherToken), nil), f))
		},
		"of another run": func(n *wireNode, f wire.Frame) {
			n.secure()
			n.write(opening(proven(n, []byte(runKey(t, goodToken, "other")), []byte("other")), f))
		},
	}
}

// TestStrangersAndSuccession: of each frame that a stranger, a node with another token and one
// of another run send to a host and to a standby nothing gets beyond the proof. No node moves,
// no standby hosts, none is listed, and the list is told to none of them.
func TestStrangersAndSuccession(t *testing.T) {
	p := elastic(t, 3)
	p.TokenFile = testkit.TokenFile(t, goodToken)
	p.NoQuorum = true // voters talk to each other all the time, and frames are counted
	nodes := form(t, p, 3)
	servers := []*Server{nodes[0].server(), nodes[1].server()}
	group := servers[0].cfg.Group.Current().Group
	trap, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer trap.Close()
	testkit.Eventually(t, "the second standby is connected to the first", func() bool { return len(servers[1].cfg.Group.Report().Connected) == 1 })
	var reports []standby.Report
	for _, s := range servers {
		reports = append(reports, s.cfg.Group.Report())
	}
	counted := []wire.Kind{wire.KindHello, wire.KindAdmin, wire.KindProbe, wire.KindLiveness, wire.KindStandby, wire.KindStandbys, wire.KindRedirect, wire.KindTransfer, wire.KindWelcome}
	decoded := func() (counts []uint64) {
		for _, s := range servers {
			for _, k := range counted {
				counts = append(counts, s.metrics.FramesIn[k].Load())
			}
		}
		return counts
	}
	before := decoded()
	for who, say := range strangers(t) {
		for what, f := range hostileFrames(p.Policy, group, trap.Addr().String()) {
			for i, s := range servers {
				n := dialNode(t, s.Addr().String())
				below := n.conn
				say(n, f)
				answer := bytes.Clone(readAll(n))
				below.Close()
				t.Run(who+", "+what, func(t *testing.T) { wantNothingTold(t, answer) })
				if bytes.Contains(answer, []byte(group)) || bytes.Contains(answer, []byte(nodes[2].server().Addr().String())) {
					t.Errorf("%s, %s: server %d tells of the group", who, what, i)
				}
			}
		}
	}
	if after := decoded(); !reflect.DeepEqual(before, after) {
		t.Errorf("frames of strangers were decoded: %v, then %v", before, after)
	}
	for i, s := range servers {
		if r := s.cfg.Group.Report(); !reflect.DeepEqual(r, reports[i]) {
			t.Errorf("server %d: %+v, was %+v", i, r, reports[i])
		}
	}
	for _, n := range nodes {
		for _, e := range n.obs.All() {
			if controltest.IsDropped(e) || controltest.IsLost(e) {
				t.Errorf("node %s has noticed: %+v", n.name, e)
			}
		}
	}
	if got := hosts(nodes); len(got) != 1 || got[0] != "a" {
		t.Errorf("hosts: %v", got)
	}
	regroup(t, nodes)
	trap.(*net.TCPListener).SetDeadline(time.Unix(1, 0))
	if c, err := trap.Accept(); err == nil {
		c.Close()
		t.Error("a node has gone where a stranger sent it")
	}
}

// readAll is what a server says until it ends the connection.
func readAll(n *wireNode) []byte {
	said, _ := io.ReadAll(n.frames.In)
	return said
}

// lie says one frame after the other to those that connect, by TLS and without a proof, and tells
// once each was said twice. It ends with the listener.
func lie(l net.Listener, settings *tls.Config, lies []wire.Frame, heard chan<- struct{}) {
	for i := 0; ; i++ {
		raw, err := l.Accept()
		if err != nil {
			return
		}
		_ = raw.SetDeadline(time.Now().Add(testkit.Patience))
		conn := tls.Server(raw, settings)
		in := bufio.NewReader(conn)
		if _, err := in.Peek(1); err == nil {
			_, _ = conn.Write(wire.AppendFrame(guarded.Bytes(), lies[i%len(lies)]))
			if i == 2*len(lies) {
				heard <- struct{}{}
			}
		}
		raw.Close()
	}
}

// TestIntruderInTheHostsPlace: a program that takes the port of a host that has died and does not know the
// token, whatever it says there, ends no node and moves none; when it is gone, or where it came
// too late, a standby takes over.
func TestIntruderInTheHostsPlace(t *testing.T) {
	p := elastic(t, 3)
	p.TokenFile = testkit.TokenFile(t, goodToken)
	nodes := form(t, p, 3)
	group := nodes[0].server().cfg.Group.Current().Group
	addr := nodes[0].server().Addr().String()
	trap, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer trap.Close()
	settings, err := secret.ServerTLS()
	if err != nil {
		t.Fatal(err)
	}
	to := wire.Redirect{Group: group, Term: 9, Host: trap.Addr().String(), Node: "evil"}
	lies := []wire.Frame{
		wire.Refuse{Err: rendezvous.Errorf(rendezvous.CodeClosed, "the run was closed")},
		wire.Refuse{Err: rendezvous.Errorf(rendezvous.CodeEvicted, "it was evicted")},
		to, wire.Welcome{Version: 1, Lease: 1e9, Group: group, Term: 9, Addr: addr}, wire.Drop{Err: rendezvous.ErrEvicted},
	}
	nodes[0].kill()
	nodes = nodes[1:]
	intruder, err := net.Listen("tcp", addr)
	if err != nil {
		t.Skip("another process has the port: ", err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer intruder.Close()
	heard := make(chan struct{}, 1)
	wg.Go(func() { lie(intruder, settings, lies, heard) })
	taken := make(chan struct{})
	wg.Go(func() {
		defer close(taken)
		for _, n := range nodes {
			n.mustRegroup()
		}
	})
	select {
	case <-heard:
	case <-taken: // before the intruder was there
	case <-time.After(testkit.Patience):
		t.Error("no node has come")
	}
	intruder.Close()
	<-taken
	regroup(t, nodes)
	for _, n := range nodes {
		for _, e := range n.obs.All() {
			if controltest.IsDropped(e) {
				t.Errorf("node %s was ended: %+v", n.name, e)
			}
		}
	}
	if got := hosts(nodes); len(got) != 1 {
		t.Errorf("hosts: %v", got)
	}
	trap.(*net.TCPListener).SetDeadline(time.Unix(1, 0))
	if c, err := trap.Accept(); err == nil {
		c.Close()
		t.Error("a node has gone where the intruder sent it")
	}
}

// TestPagesOfStrangersCount: a client that asks for a page and has proven nothing is among the strangers,
// who have half of the descriptors at most, until the connection is closed. One that has proven
// itself is not.
func TestPagesOfStrangersCount(t *testing.T) {
	g := newGuardedServer(t)
	ask := "GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n"
	stranger, proven := dialNode(t, g.addr), dialNode(t, g.addr)
	conn := wire.NewConn(proven.conn)
	if _, err := (wire.ClientHandshake{Token: openToken(t, goodToken), Addr: conn.RemoteAddr()}).Run(conn, &wire.FrameReader{In: bufio.NewReader(conn)}, nil); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "both are accepted", func() bool { return g.strangerCount() == 2 })
	g.mu.Lock() // the page needs it
	_, err1 := io.WriteString(stranger.conn, ask)
	_, err2 := io.WriteString(conn, ask)
	for end := time.Now().Add(testkit.Patience); g.http.Open() < 2 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	n := g.strangerCount()
	g.mu.Unlock()
	if err1 != nil || err2 != nil || n != 1 {
		t.Errorf("%v, %v; %d are counted among the strangers", err1, err2, n)
	}
	if answer := readAll(stranger); !bytes.HasPrefix(answer, []byte("HTTP/1.1 200")) {
		t.Errorf("%.80q", answer)
	}
	testkit.Eventually(t, "they have gone", func() bool { return g.strangerCount() == 0 })
	g.wantUnharmed(t)
}

// TestKeyNotOnDisk: neither the data directory nor a recording has the token, its fingerprint or
// a proof made with it.
func TestKeyNotOnDisk(t *testing.T) {
	dir := t.TempDir()
	rec, err := OpenTraceFile(filepath.Join(dir, "history"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s, addr := testServer(t, Config{Token: openToken(t, goodToken), Data: testData(t, filepath.Join(dir, "data")), Trace: rec.Record})
	p := withToken(addr, testkit.TokenFile(t, goodToken), 1)
	never := false
	p.IsHost = &never
	c := connected(t, p, controltest.NewObserver())
	controltest.Outcome(t, c.Start(controltest.Join()))
	if err := errors.Join(c.Close(controltest.Context(t)), s.Close(), rec.Close()); err != nil {
		t.Fatal(err)
	}
	bytesThere := 0
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		bytesThere += len(text)
		for _, secret := range []string{goodToken, goodToken[:16], secret.Fingerprint([]byte(goodToken))} {
			if bytes.Contains(text, []byte(secret)) {
				t.Errorf("%q is in %s", secret, path)
			}
		}
		if !bytes.Contains(text, []byte("run")) && d.Name() == "history" {
			t.Errorf("nothing was recorded: %q", text)
		}
		return err
	})
	if err != nil || bytesThere < 1000 {
		t.Errorf("%v; %d bytes were looked at", err, bytesThere)
	}
}
