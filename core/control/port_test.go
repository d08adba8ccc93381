package control

import (
	"bytes"
	"encoding/binary"
	"io"
	"strings"
	"sync"
	"testing"

	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
)

// TestStrangersOnThePort sends what does not belong there: that connection is
// closed with one log line, and no other run notices.
func TestStrangersOnThePort(t *testing.T) {
	ours := wire.Preamble{High: wire.ProtocolVersion, Low: wire.OldestVersion}.Bytes()
	length := func(n uint32, body string) string {
		return string(binary.LittleEndian.AppendUint32(nil, n)) + body
	}
	hello := string(wire.AppendFrame(nil, testHello("x", "x", controltest.Params("", 2))))
	tests := map[string]struct{ sent, logged string }{
		"TCPStore client":       {"\x00\x85\x1d\x3c\x00", "PyTorch TCPStore client"},
		"TLS client":            {"\x16\x03\x01\x02\x00\x01", "this control plane has no token"},
		"garbage":               {"garbage", "67617262616765"},
		"nearly HTTP":           {"GOT ", "474f5420"},
		"nearly our magic":      {"\xd5RPX\x01\x01\x00\x00", "malformed"},
		"largest length":        {string(ours) + length(1<<32-1, "x"), "4294967295 bytes"},
		"length 2^63":           {string(ours) + "\x00\x00\x00\x00\x00\x00\x00\x80", "malformed"},
		"too large for a hello": {string(ours) + length(wire.MaxHelloFrame+1, ""), "65537 bytes"},
		"empty frame":           {string(ours) + length(0, ""), "malformed"},
		"no msgpack":            {string(ours) + length(1, "\xc1"), "malformed"},
		"request first":         {string(ours) + string(wire.AppendFrame(nil, wire.Request{Number: 1, Op: rendezvous.OpFinish, Event: rendezvous.Finish{}})), "before the hello"},
		"half a preamble":       {string(ours[:5]), "began with d5525054"},
		"half a hello":          {string(ours) + hello[:20], "ended inside a frame"},
		"half a length":         {string(ours) + hello[:2], "ended inside a frame"},
		"no hello":              {string(ours), "unexpected EOF"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newFakeServer(t, Config{})
			good := dialNode(t, s.addr)
			good.enter(testHello("a", "s1", controltest.Params("", 1)))
			n := dialNode(t, s.addr)
			n.write([]byte(test.sent))
			if strings.HasPrefix(name, "half") || name == "no hello" {
				n.conn.(interface{ CloseWrite() error }).CloseWrite()
			}
			n.awaitEnd()
			s.log.Await(t, test.logged, 1)
			if lines := s.log.Await(t, "closed a connection", 1); len(lines) != 1 {
				t.Errorf("%d log lines, want 1: %v", len(lines), lines)
			}
			good.ask(1, controltest.Join())
			good.wantReply(1)
		})
	}
}

func TestSilentConnectionIsClosed(t *testing.T) {
	for name, sent := range map[string][]byte{
		"nothing":  nil,
		"preamble": wire.Preamble{High: wire.ProtocolVersion, Low: wire.OldestVersion}.Bytes(),
		"G":        []byte("G"),
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeServer(t, Config{})
			n := dialNode(t, s.addr)
			n.write(sent)
			s.awaitPeers(t, 1)
			s.clock.Advance(helloTimeout)
			n.awaitEnd()
			s.log.Await(t, errSilent.Error(), 1)
		})
	}
}

// awaitPeers waits until n connections have their timer, beside the sweeper's.
func (f *fakeServer) awaitPeers(t *testing.T, n int) {
	t.Helper()
	f.clock.AwaitTimers(t, n+1)
}

// TestMalformedFrameAfterHello closes the connection; its node is in its grace.
func TestMalformedFrameAfterHello(t *testing.T) {
	s := newFakeServer(t, Config{})
	n := dialNode(t, s.addr)
	n.enter(testHello("a", "s1", controltest.Params("", 2)))
	n.write([]byte{1, 0, 0, 0, 0xc1})
	n.awaitEnd()
	s.log.Await(t, "malformed", 1)
	awaitEvents[rendezvous.Disconnect](t, s.rec, 1)
}

func FuzzServerConn(f *testing.F) {
	ours := wire.Preamble{High: wire.ProtocolVersion, Low: wire.OldestVersion}.Bytes()
	session := func(frames ...wire.Frame) []byte {
		out := append([]byte{}, ours...)
		for _, fr := range frames {
			out = wire.AppendFrame(out, fr)
		}
		return out
	}
	h := testHello("x", "x", controltest.Params("", 1))
	req := func(number uint64, ev rendezvous.Event) wire.Frame {
		r, _ := wire.NewRequest(ev, number, number-1)
		return r
	}
	f.Add([]byte("\x00\x85\x1d\x3c\x00"))
	f.Add([]byte("GET / HTTP/1.0\r\n\r\n"))
	f.Add(session(h))
	f.Add(session(h, wire.Beat{}, req(1, controltest.Join()), wire.Goodbye{}))
	f.Add(session(h, req(1, controltest.Join()), req(2, rendezvous.Leave{Ending: rendezvous.EndSuccess}), h))
	f.Add(session(h, req(1, controltest.Join()), req(2, rendezvous.KeyRequest{
		Round: 1, Op: store.OpSet, Keys: []string{"k"}, Values: [][]byte{{1}}})))
	f.Add(session(h, req(1, controltest.Join()), req(2, rendezvous.KeyRequest{Round: 1, Op: store.OpAdd, Keys: []string{"k"}, Amount: 1})))
	f.Add(session(h, req(1, controltest.Join()), req(2, rendezvous.KeyRequest{Round: 1, Op: store.OpAdd})))
	f.Add(session(h, req(1, rendezvous.CloseRun{By: "b", Stop: true}), req(2, rendezvous.Withdraw{Join: 1})))
	f.Add(session(h, req(1, rendezvous.AwaitPeers{}), req(2, rendezvous.Finish{}), wire.Unknown{Kind: 99}))
	f.Fuzz(func(t *testing.T, data []byte) {
		if bytes.HasPrefix(data, []byte("GET ")) {
			return // net/http's own matter, and slow
		}
		listener := newPipes()
		s := Start(Config{}, listener)
		defer s.Close()
		stranger := listener.dial(t)
		var wg sync.WaitGroup
		wg.Go(func() { io.Copy(io.Discard, stranger.conn) })
		stranger.conn.Write(data)
		stranger.conn.Close()
		wg.Wait()
		good := listener.dial(t)
		defer good.conn.Close()
		p := controltest.Params("", 1)
		p.RunID = "the good one's"
		good.enter(testHello("a", "s1", p))
		good.ask(1, controltest.Join())
		good.wantReply(1)
	})
}
