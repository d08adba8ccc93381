package control

import (
	"net"
	"testing"

	"rallypoint/core/control/client"
)

// BenchmarkProof makes connections that prove themselves: the handshake, both proofs, at
// both ends.
func BenchmarkProof(b *testing.B) {
	token := openToken(b, goodToken)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := Start(Config{Token: token}, l)
	defer s.Close()
	for b.Loop() {
		conn, err := client.DialHTTP(b.Context(), l.Addr().String(), token)
		if err != nil {
			b.Fatal(err)
		}
		conn.Close()
	}
}
