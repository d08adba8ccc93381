package control

import (
	"net"
	"testing"

	"rallypoint/core/control/client"
	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
)

// BenchmarkProof makes connections that prove themselves: the handshake, both proofs, at
// both ends.
func BenchmarkProof(b *testing.B) {
	token := openToken(b, goodToken)
	s, addr := startForBench(b, Config{Token: token})
	defer s.Close()
	for b.Loop() {
		conn, err := client.DialHTTP(b.Context(), addr, token)
		if err != nil {
			b.Fatal(err)
		}
		conn.Close()
	}
}

// BenchmarkHello has a node come back by a token, up to the answer to its hello, which it says
// once the server has proven itself.
func BenchmarkHello(b *testing.B) {
	token := openToken(b, goodToken)
	s, addr := startForBench(b, Config{Token: token})
	defer s.Close()
	for b.Loop() {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			b.Fatal(err)
		}
		f, err := openAs(conn, token, testHello("node", "session", controltest.Params("", 2)))
		if _, ok := f.(wire.Welcome); !ok {
			b.Fatal(f, err)
		}
		conn.Close()
	}
}

func startForBench(b *testing.B, config Config) (s *Server, addr string) {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	return Start(config, l), l.Addr().String()
}
