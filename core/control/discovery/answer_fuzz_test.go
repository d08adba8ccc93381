package discovery

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"

	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/secret"
	"rallypoint/internal/testkit"
)

// FuzzAnswer lets whatever listens at the endpoint say anything to a node, with
// and without a token: it accepts a connection or reports an error, and with a
// token it accepts none, since no server there knows it.
func FuzzAnswer(f *testing.F) {
	plain := wire.Preamble{High: wire.ProtocolVersion, Low: wire.OldestVersion}.Bytes()
	guarded := wire.Preamble{High: wire.ProtocolVersion, Low: wire.OldestVersion, Token: true}.Bytes()
	good := wire.Welcome{Version: 1, Lease: int64(time.Hour)}
	f.Add(wire.AppendFrame(plain, good), false)
	f.Add(wire.AppendFrame(plain, wire.Refuse{Err: wire.ErrAuth}), false)
	f.Add(wire.AppendFrame(plain, good), true)
	f.Add(wire.AppendFrame(wire.AppendFrame(guarded, wire.Proof{MACs: [][]byte{make([]byte, 32)}, Purpose: 1}), good), true)
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), false)
	token, err := secret.OpenToken(testkit.TokenFile(f), nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), true)
	settings, err := secret.ServerTLS()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte, knows bool) {
		ours, theirs := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			answering := theirs
			if knows {
				secured := tls.Server(theirs, settings)
				if secured.Handshake() == nil {
					answering = secured
				}
			}
			go io.Copy(io.Discard, answering)
			_, _ = answering.Write(data)
			theirs.Close()
		}()
		var known *secret.Token
		if knows {
			known = token
		}
		l, err := openConn(context.Background(), addressed{ours}, wire.Hello{Version: wire.ProtocolVersion, RunID: "run", Session: "s", Node: "a", Incarnation: 1, Policy: controltest.Params("", 1).Policy}, known, func(net.Conn) error { return nil })
		if (l == nil) == (err == nil) {
			t.Fatalf("%v, %v", l, err)
		}
		if l != nil {
			l.Close()
		}
		if l != nil && knows {
			t.Error("a stranger is taken for the control plane")
		}
		ours.Close()
		<-done
	})
}

// addressed is a pipe that has an address, as texts need one.
type addressed struct{ net.Conn }

func (addressed) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv6loopback, Port: 1} }
