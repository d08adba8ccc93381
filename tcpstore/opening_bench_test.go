package tcpstore

import (
	"net"
	"testing"

	"rallypoint/core/secret"
)

// BenchmarkOpening opens connections: the handshake, both proofs, at both ends.
func BenchmarkOpening(b *testing.B) {
	s, _ := newSecureServer(b, Options{})
	token := openToken(b, goodKey)
	for b.Loop() {
		conn, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		if _, err := secret.DialStore(b.Context(), conn, token, thisRound, secret.PurposeStore); err != nil {
			b.Fatal(err)
		}
		conn.Close()
	}
}
