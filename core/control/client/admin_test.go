package client

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

// TestAdminRefusesWhatNoFrameHolds at once: a control plane would take it for malformed and
// close the connection, which looks as if it could not be reached.
func TestAdminRefusesWhatNoFrameHolds(t *testing.T) {
	for text, nodes := range map[string][]string{
		"has more than 512 bytes":                 {"n0", strings.Repeat("n", wire.MaxName+1)},
		"a drain names 1 to 1024 nodes, not 1025": make([]string, rendezvous.MaxDirectiveNodes+1),
	} {
		_, err := AdminDrain(t.Context(), "127.0.0.1:1", nil, "job", "d", nodes, time.Second, 0, "carol", "why")
		if rendezvous.CodeOf(err) != rendezvous.CodeInvalid || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want %q", err, text)
		}
	}
}

// TestAdminTellsAMalformedAnswer from none, which an older release gives.
func TestAdminTellsAMalformedAnswer(t *testing.T) {
	for answer, want := range map[string]string{"": "an older release does not know this request", "\x00\x00\x00\x03\xff\xff\xff": "malformed data"} {
		l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
		served := make(chan error, 1)
		go func() {
			conn, err := l.Accept()
			if err == nil {
				_, err = conn.Write(append(wire.Preamble{High: wire.ProtocolVersion, Low: wire.OldestVersion}.Bytes(), answer...))
				_ = conn.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, conn)
				conn.Close()
			}
			served <- err
		}()
		_, err := AdminEvict(t.Context(), l.Addr().String(), nil, "job", "n0", "carol", "why")
		testkit.Check(t, <-served)
		l.Close()
		if rendezvous.CodeOf(err) != rendezvous.CodeConnection || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "older") != (answer == "") {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
