package control

import (
	"bytes"
	"context"
	"net"
	"strings"
	"testing"

	"rallypoint/core/control/client"
	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
)

// twoNodes starts a run of two nodes, of which round 1 is complete.
func twoNodes(t *testing.T, s *fakeServer) (a, b *wireNode) {
	t.Helper()
	p := controltest.Params("", 2)
	a, b = dialNode(t, s.addr), dialNode(t, s.addr)
	a.enter(testHello("a", "s1", p))
	b.enter(testHello("b", "s2", p))
	a.ask(1, controltest.Join())
	awaitEvents[rendezvous.Join](t, s.rec, 1)
	b.ask(1, controltest.Join())
	a.wantReply(1)
	b.wantReply(1)
	return a, b
}

func wantParts(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q does not say %q", text, part)
		}
	}
}

func TestAdminClose(t *testing.T) {
	s := newFakeServer(t, Config{})
	a, b := twoNodes(t, s)
	late := dialNode(t, s.addr)
	late.enter(testHello("c", "s3", controltest.Params("", 2)))
	late.ask(1, controltest.Join())
	awaitEvents[rendezvous.Join](t, s.rec, 3)

	done, err := client.Ask(controltest.Context(t), s.addr, nil, "run", rendezvous.CloseRun{By: "root@ops", Reason: "maintenance"})
	if err != nil {
		t.Fatal(err)
	}
	wantParts(t, done, `run "run" is closed: no more nodes join it`, "round 1 continues with 2 nodes", "1 node that waited was refused")
	for _, n := range []*wireNode{a, b} {
		f := n.next()
		if got, ok := f.(wire.Notice); !ok || !got.Notice.Closed || got.Notice.Waiting != 0 {
			t.Errorf("a member got %+v", f)
		} else {
			wantParts(t, got.Notice.Reason, "closed by admin root@ops (127.0.0.1)", "maintenance")
		}
	}
	if r := late.wantReply(1); r.Err == nil || r.Err.Code != rendezvous.CodeClosed || !strings.Contains(r.Err.Text, "maintenance") {
		t.Errorf("the late node got %+v", r)
	}

	again, err := client.Ask(controltest.Context(t), s.addr, nil, "run", rendezvous.CloseRun{By: "x", Reason: "y"})
	if err != nil {
		t.Fatal(err)
	}
	wantParts(t, again, "nothing to do", "closed by admin root@ops", "maintenance")

	done, err = client.Ask(controltest.Context(t), s.addr, nil, "run", rendezvous.CloseRun{Reason: "now", Stop: true})
	if err != nil {
		t.Fatal(err)
	}
	wantParts(t, done, "closed as failed", "its 2 nodes of round 1 must stop")
	if n := a.next().(wire.Notice); n.Notice.Waiting == 0 || !strings.Contains(n.Notice.Reason, "failed by admin (127.0.0.1)") {
		t.Errorf("after the stop a member got %+v", n)
	}
	wantTexts(t, s.oneRun(t).Changes, "closed by admin root@ops (127.0.0.1)", "failed by admin (127.0.0.1)")
}

func TestAdminEvict(t *testing.T) {
	s := newFakeServer(t, Config{})
	a, b := twoNodes(t, s)
	done, err := client.Ask(controltest.Context(t), s.addr, nil, "run", rendezvous.Evict{Node: "b", By: "root@ops", Reason: "its GPU is broken"})
	if err != nil {
		t.Fatal(err)
	}
	wantParts(t, done, "node b, rank 1 of round 1, was evicted", `"run"`)
	f := b.next()
	if d, ok := f.(wire.Drop); !ok || d.Err.Code != rendezvous.CodeEvicted {
		t.Errorf("the evicted node got %+v", f)
	} else {
		wantParts(t, d.Err.Text, "evicted by admin root@ops (127.0.0.1): its GPU is broken")
	}
	f = a.next()
	if n, ok := f.(wire.Notice); !ok || n.Notice.Waiting == 0 {
		t.Errorf("the other got %+v", f)
	} else {
		wantParts(t, n.Notice.Reason, "its GPU is broken")
	}
	_, err = client.Ask(controltest.Context(t), s.addr, nil, "run", rendezvous.Evict{Node: "b", Reason: "again"})
	controltest.WantCode(t, err, rendezvous.CodeInvalid, `node "b" of run "run" is not alive any more`, "rank 1 of round 1", "its GPU is broken", `alive: "a"`)
	_, err = client.Ask(controltest.Context(t), s.addr, nil, "run", rendezvous.Evict{Node: "zz", Reason: "who?"})
	controltest.WantCode(t, err, rendezvous.CodeInvalid, `run "run" has no live node "zz"`, `alive: "a"`)
	if m := s.oneRun(t).Members[1]; m.State != "lost" || !strings.Contains(m.Cause, "evicted by admin") {
		t.Errorf("member %+v", m)
	}
}

// TestAdminEvictsNodesThatAreNoMembers evicts nodes that are no members.
func TestAdminEvictsNodesThatAreNoMembers(t *testing.T) {
	s := newFakeServer(t, Config{})
	twoNodes(t, s)
	waits, idle := dialNode(t, s.addr), dialNode(t, s.addr)
	waits.enter(testHello("waits", "s3", controltest.Params("", 2)))
	waits.ask(1, controltest.Join())
	awaitEvents[rendezvous.Join](t, s.rec, 3)
	idle.enter(testHello("idle", "s4", controltest.Params("", 2)))
	_, err := client.Ask(controltest.Context(t), s.addr, nil, "run", rendezvous.Evict{Node: "absent", Reason: "x"})
	controltest.WantCode(t, err, rendezvous.CodeInvalid, `alive: "a", "b", "idle", "waits"`)
	for node, says := range map[string]string{"waits": "which waited for a place", "idle": "node idle was evicted"} {
		done, err := client.Ask(controltest.Context(t), s.addr, nil, "run", rendezvous.Evict{Node: node, Reason: "x"})
		if err != nil {
			t.Fatal(err)
		}
		wantParts(t, done, says)
	}
	waits.awaitEnd()
	idle.awaitEnd()
}

func TestAdminUnknownRun(t *testing.T) {
	s := newFakeServer(t, Config{})
	_, err := client.Ask(controltest.Context(t), s.addr, nil, "j1", rendezvous.CloseRun{Reason: "x"})
	controltest.WantCode(t, err, rendezvous.CodeInvalid, `knows no run "j1"`, "it knows no run yet")
	twoNodes(t, s)
	_, err = client.Ask(controltest.Context(t), s.addr, nil, "j1", rendezvous.Evict{Node: "a", Reason: "x"})
	controltest.WantCode(t, err, rendezvous.CodeInvalid, `knows no run "j1": it knows "run"`)
	if st := s.Status(); st.RunsTotal != 1 {
		t.Errorf("%d runs: a request has made one", st.RunsTotal)
	}
	_, err = client.Ask(controltest.Context(t), s.addr, nil, strings.Repeat("x", wire.MaxName+1), rendezvous.CloseRun{})
	controltest.WantCode(t, err, rendezvous.CodeInvalid)
}

// TestAdminOfANewerRelease asks for what this one does not know.
func TestAdminOfANewerRelease(t *testing.T) {
	s := newFakeServer(t, Config{})
	twoNodes(t, s)
	answer, _ := dialNode(t, s.addr).greet(wire.Admin{Op: 99, RunID: "run"}).(wire.AdminAnswer)
	controltest.WantCode(t, answer.Err, rendezvous.CodeInvalid, "does not know admin request 99")
	n := dialNode(t, s.addr)
	n.write(wire.AppendFrame(wire.Preamble{High: 9, Low: 8}.Bytes(), wire.Admin{Op: wire.AdminOpClose, RunID: "run"}))
	var start [wire.PreambleLen]byte
	if _, err := n.frames.In.Read(start[:]); err != nil {
		t.Fatal(err)
	}
	if f, ok := n.next().(wire.Refuse); !ok || f.Err.Code != rendezvous.CodeState {
		t.Errorf("got %+v", f)
	}
}

// TestAdminServerIsNotOurs asks peers that cannot answer.
func TestAdminServerIsNotOurs(t *testing.T) {
	ours := wire.Preamble{High: 1, Low: 1}.Bytes()
	for name, test := range map[string]struct {
		sends []byte
		says  string
	}{
		"nothing":    {nil, "it is no Rallypoint control plane"},
		"HTTP":       {[]byte("HTTP/1.1 400 Bad Request\r\n"), "not our protocol"},
		"an older":   {ours, "an older release does not know this request"},
		"a notice":   {wire.AppendFrame(bytes.Clone(ours), wire.Notice{}), "malformed"},
		"a bare end": {wire.AppendFrame(bytes.Clone(ours), wire.Refuse{}), "malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			done := make(chan struct{})
			go func() {
				defer close(done)
				conn, err := l.Accept()
				if err != nil {
					return
				}
				conn.Read(make([]byte, 1024))
				conn.Write(test.sends)
				conn.Close()
			}()
			_, err = client.Ask(controltest.Context(t), l.Addr().String(), nil, "run", rendezvous.CloseRun{})
			controltest.WantCode(t, err, rendezvous.CodeConnection, test.says, l.Addr().String())
			<-done
		})
	}
}

func TestAdminGivesUpWithItsContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			conn.Read(make([]byte, 1)) // it has asked
		}
		cancel()
		accepted <- conn
	}()
	_, err = client.Ask(ctx, l.Addr().String(), nil, "run", rendezvous.CloseRun{})
	controltest.WantCode(t, err, rendezvous.CodeConnection, "no answer within")
	(<-accepted).Close()
	l.Close()
	_, err = client.Ask(controltest.Context(t), l.Addr().String(), nil, "run", rendezvous.CloseRun{})
	controltest.WantCode(t, err, rendezvous.CodeConnection, "connection refused")
}
