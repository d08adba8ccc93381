package discovery

import (
	"context"
	"net"
	"testing"

	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
)

// TestStoppedServer has a server that accepts, and takes in the hello, but does
// not answer.
func TestStoppedServer(t *testing.T) {
	ctx, expire := controltest.Expiring()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		conn.Read(make([]byte, 1))
		expire()
		conn.Read(make([]byte, 1<<20)) // the rest
		conn.Read(make([]byte, 1))     // until the client has given up
	}()
	c := newNode(t, controltest.Guest(l.Addr().String(), 2), controltest.NewObserver())
	controltest.WantCode(t, c.connect(ctx), rendezvous.CodeConnection, l.Addr().String(), "no answer")
	l.Close()
	<-done
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	controltest.WantCode(t, c.connect(canceled), rendezvous.CodeCanceled, "canceled")
}

// TestSegmentsNeedAServerThatKnowsThem: an older one would give ranks without them.
func TestSegmentsNeedAServerThatKnowsThem(t *testing.T) {
	for _, features := range [][]string{nil, {wire.FeatureSegments}} {
		server := serveHellos(t, func(n *controltest.Peer, _ wire.Hello) {
			n.Say(wire.Welcome{Version: 1, Lease: int64(60e9), Software: "0.0.9", Features: features})
			_, _ = n.Frames.NextFrame(wire.MaxFrame)
		})
		p := controltest.Guest(server.addr, 2)
		p.Segment, p.Topology = 2, "rack7"
		err := newNode(t, p, controltest.NewObserver()).connect(controltest.Context(t))
		if features == nil {
			controltest.WantCode(t, err, rendezvous.CodeState, "release 0.0.9", "knows no segments")
		} else if err != nil {
			t.Error(err)
		}
	}
}

func TestConnectToSomethingElse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Write([]byte("SSH-2.0-OpenSSH"))
			conn.(*net.TCPConn).CloseWrite()
			t.Cleanup(func() { conn.Close() })
		}
	}()
	c := newNode(t, controltest.Guest(l.Addr().String(), 2), controltest.NewObserver())
	err = c.connect(afterDials(t, c, 1))
	controltest.WantCode(t, err, rendezvous.CodeConnection, "is no Rallypoint control plane", "5353482d")
}
