package control

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"rallypoint/core/control/client"
	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/logsampler"
	"rallypoint/internal/testkit"
)

// TestRefusalsAreLoggedOnce has one peer try again and again.
func TestRefusalsAreLoggedOnce(t *testing.T) {
	s := newFakeServer(t, Config{})
	try := func() {
		n := dialNode(t, s.addr)
		n.write([]byte{0})
		n.awaitEnd()
	}
	const tries = 5
	for range tries {
		try()
	}
	s.awaitRefused(t, refusedTCPStore, tries)
	if lines := s.log.Await(t, "PyTorch TCPStore client", 1); len(lines) != 1 {
		t.Errorf("%d lines, want 1: %v", len(lines), lines)
	}
	s.clock.Advance(logsampler.Window)
	wantParts(t, s.log.Await(t, "refused more", 1)[0], "reason=tcpstore_client", "count=4", "last=127.0.0.1")
	s.clock.Advance(logsampler.Window) // in which it is quiet
	try()
	s.log.Await(t, "PyTorch TCPStore client", 2)
}

func (f *fakeServer) awaitRefused(t *testing.T, why refusal, n uint64) {
	t.Helper()
	ctx := controltest.Context(t)
	for f.metrics.refused[why].Load() < n {
		if ctx.Err() != nil {
			t.Fatalf("%d were refused as %s, want %d", f.metrics.refused[why].Load(), refusalNames[why], n)
		}
	}
}

// TestManyRefusalsAreFewLines has strangers try again and again in every way: the
// metrics count each, the log stays short, and what it says adds up to the same.
func TestManyRefusalsAreFewLines(t *testing.T) {
	const windows, tries = 3, 40
	ours := wire.Preamble{High: wire.ProtocolVersion, Low: wire.OldestVersion}
	hello := func(i int) []byte {
		p := controltest.Params("", 1)
		p.RunID = "another run"
		return wire.AppendFrame(ours.Bytes(), testHello(fmt.Sprint("node", i), "s", p))
	}
	always := func(text string) func(int) []byte { return func(int) []byte { return []byte(text) } }
	ways := []struct {
		why  refusal
		send func(i int) []byte
		cfg  Config
	}{
		{refusedTCPStore, always("\x00\x85\x1d\x3c\x00"), Config{}},
		{refusedTLS, always("\x16\x03\x01"), Config{}},
		{refusedForeign, always("SSH-2.0-x\r\n"), Config{}},
		{refusedMalformed, always(string(ours.Bytes()) + "\xff\xff\xff\xff"), Config{}},
		{refusedVersion, always(string(wire.Preamble{High: 99, Low: 99}.Bytes())), Config{}},
		{refusedAuth, always(string(ours.Bytes())), Config{Token: openToken(t, goodToken)}},
		{refusedAuth, always(string(guarded.Bytes())), Config{Token: openToken(t, goodToken)}},
		{refusedHandshake, always("\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03"), Config{Token: openToken(t, goodToken)}},
		{refusedOtherRun, hello, Config{RunID: "run"}},
	}
	for _, way := range ways {
		s := newFakeServer(t, way.cfg)
		for window := range windows {
			for i := range tries {
				n := dialNode(t, s.addr)
				n.write(way.send(window*tries + i))
				n.awaitEnd()
			}
			s.awaitRefused(t, way.why, uint64((window+1)*tries))
			s.clock.Advance(logsampler.Window)
		}
		s.Close()
		lines, told := 0, 0
		for _, line := range s.log.All() {
			if !strings.Contains(line, "level=WARN") {
				continue
			}
			lines++
			count := 1
			if _, text, ok := strings.Cut(line, " count="); ok {
				wantParts(t, line, "reason="+refusalNames[way.why], "127.0.0.1")
				if _, err := fmt.Sscan(text, &count); err != nil {
					t.Error(err)
				}
			}
			told += count
		}
		if most := windows * (logsampler.MaxAtOnce + 1); lines > most || lines < 1+windows {
			t.Errorf("%s: %d lines, want at most %d:\n%s", refusalNames[way.why], lines, most, strings.Join(s.log.All(), ""))
		}
		if told != windows*tries {
			t.Errorf("%s: the lines tell of %d refusals, want %d", refusalNames[way.why], told, windows*tries)
		}
	}
}

// TestBrokenOffIsRefused: who breaks the connection off without having said who it
// is may be a scanner of open ports, and costs as little as others.
func TestBrokenOffIsRefused(t *testing.T) {
	s := newFakeServer(t, Config{})
	const tries = 20
	for range tries {
		n := dialNode(t, s.addr)
		n.write([]byte("\xd5"))
		n.conn.(*net.TCPConn).SetLinger(0)
		n.conn.Close()
	}
	s.awaitRefused(t, refusedIncomplete, tries)
	if lines := s.log.Await(t, "level=WARN", 1); len(lines) != 1 {
		t.Errorf("%d lines, want 1: %v", len(lines), lines)
	}
}

// TestEndedBeforeItWasAccepted: a connection whose process has closed or reset it already is counted, and no
// line warns of it; one that lives and whose user cannot be told warns.
func TestEndedBeforeItWasAccepted(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Check(t, err)
	dial := func() *net.TCPConn {
		conn, err := net.Dial("tcp", l.Addr().String())
		testkit.Check(t, err)
		t.Cleanup(func() { conn.Close() })
		return conn.(*net.TCPConn)
	}
	dial().Close()
	aborted := dial()
	testkit.Check(t, aborted.SetLinger(0))
	aborted.Close()
	testkit.Check(t, dial().CloseWrite())
	log, lines := testkit.NewLog(t)
	p := controltest.Params("", 1)
	s := Start(Config{RunID: p.RunID, Node: &p, Log: log}, l)
	defer s.Close()
	dialNode(t, l.Addr().String()).enter(testHello("a", "s1", p)) // which is accepted after them
	if warned := lines.With("level=WARN"); len(warned) != 1 || !strings.Contains(warned[0], "sending side") {
		t.Errorf("it warns: %q", warned)
	}
	if n := len(lines.With("level=DEBUG", "ended before")); n != 2 {
		t.Errorf("%d lines at debug", n)
	}
	if counts := s.metrics.refusedByReason(); counts["incomplete"] != 2 || counts["other_user"] != 1 {
		t.Errorf("counted: %v", counts)
	}
}

// TestLogNamesTheRunOnce checks the lines of a server of many runs, and of one
// run whose logger names it already.
func TestLogNamesTheRunOnce(t *testing.T) {
	for _, only := range []string{"", "run"} {
		log, lines := testkit.NewLog(t)
		if only != "" {
			log = log.With("run", only)
		}
		_, addr := testServer(t, Config{RunID: only, Log: log})
		n := dialNode(t, addr)
		n.enter(testHello("a", "s1", controltest.Params("", 1)))
		n.ask(1, controltest.Join())
		n.wantReply(1)
		n.conn.Close()
		for _, text := range []string{"round 1 is complete", "connection broke"} {
			line := lines.Await(t, text, 1)[0]
			wantParts(t, line, "run=run")
			if strings.Count(line, "run=") != 1 {
				t.Errorf("only %q: %s", only, line)
			}
		}
	}
}

// TestWaitingNodesLearnWhoIsRefused: each node that the run lacks since it was refused is named with the reason
// to the nodes that wait and in the status, until it is admitted or a round is complete.
func TestWaitingNodesLearnWhoIsRefused(t *testing.T) {
	s, addr := testServer(t, Config{RunID: "run", Token: openToken(t, goodToken), Quota: Quota{Nodes: 3}})
	good, other := testkit.TokenFile(t, goodToken), testkit.TokenFile(t, otherToken)
	node := func(node string, n int) params.Params {
		p := withToken(addr, good, n)
		p.NodeID, p.IsHost = node, new(false)
		return p
	}
	obs := controltest.NewObserver()
	told := func(parts ...string) {
		t.Helper()
		tells := func(text string) bool {
			return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
		}
		obs.Await(t, strings.Join(parts, ", "), func(e any) bool { p, ok := e.(rendezvous.Progress); return ok && tells(p.Detail) })
		testkit.Eventually(t, "the status tells it", func() bool { return tells(s.Status().Runs[0].NotStarted) })
	}
	opened := func(p params.Params) *client.Client { return newTestClient(t, p, controltest.NewObserver()) }
	refused := func(c *client.Client, code rendezvous.Code) {
		t.Helper()
		controltest.WantCode(t, c.Connect(controltest.Context(t)), code)
	}
	older := opened(node("a", 3))
	connected(t, node("a", 3), obs).Start(controltest.Join())
	wrong := node("x", 3)
	wrong.TokenFile = other
	refused(opened(wrong), rendezvous.CodeAuth)
	const token = "a process at 127.0.0.1 was refused: authentication failed"
	told(token)
	refused(opened(node("d", 2)), rendezvous.CodeMismatch)
	const mismatch = "node d was refused: it wants --nnodes=2, but the run has --nnodes=3"
	refused(older, rendezvous.CodeNodeInUse)
	told(token, mismatch, `node a was refused: node id "a" is in use by`)
	connected(t, node("d", 3), controltest.NewObserver())
	testkit.Eventually(t, "the node that came back is not named", func() bool { return !strings.Contains(s.Status().Runs[0].NotStarted, "node d") })
	connected(t, node("e", 3), controltest.NewObserver())
	refused(opened(node("c", 3)), rendezvous.CodeTooLarge)
	told(`node c was refused: run "run" has 3 nodes, which is its quota`)
}

// TestJobThatCannotBegin: a job of more nodes than it may have is refused with its first node.
func TestJobThatCannotBegin(t *testing.T) {
	for flag, q := range map[string]Quota{"--max-nodes": {Nodes: 8}, "--max-connections": {Connections: 8}} {
		_, addr := testServer(t, Config{Quota: q})
		p := controltest.Guest(addr, 20)
		p.Min = 9
		err := newTestClient(t, p, controltest.NewObserver()).Connect(controltest.Context(t))
		controltest.WantCode(t, err, rendezvous.CodeTooLarge, "wants at least 9 nodes", "at most 8", flag)
		p.Min = 8
		connected(t, p, controltest.NewObserver())
	}
}
