package tcpstore

import (
	"net"
	"testing"

	"rallypoint/core/secret"
	"rallypoint/internal/testkit"
)

// BenchmarkOpening opens connections, both ends in this process: with a handshake and both proofs,
// and plain ones, for what TLS adds.
func BenchmarkOpening(b *testing.B) {
	secured, _ := newSecureServer(b, Options{})
	token := openToken(b, goodKey)
	b.Run("tls", func(b *testing.B) { benchmarkOpening(b, secured, token) })
	plain, _ := newServer(b, Options{})
	b.Run("plain", func(b *testing.B) { benchmarkOpening(b, plain, nil) })
}

func benchmarkOpening(b *testing.B, s *Server, token *secret.Token) {
	defer testkit.ReportCPU(b)()
	for b.Loop() {
		conn := testkit.Must(net.Dial("tcp", s.Addr().String()))(b)
		opened := conn
		if token != nil {
			opened = testkit.Must(secret.DialStore(b.Context(), conn, token, thisRound, secret.PurposeStore))(b)
		}
		testkit.Must(opened.Write([]byte("\x00\xce\xf7\x85\x3c\x0dping")))(b) // is it served?
		testkit.Must(opened.Read(make([]byte, 4)))(b)
		conn.Close()
	}
}
