package tcpstore

import (
	"net"
	"syscall"
	"testing"
	"time"

	"rallypoint/core/secret"
)

// BenchmarkOpening opens connections: the handshake, both proofs, at both ends. What counts
// is the CPU time of both, also where others are on the machine.
func BenchmarkOpening(b *testing.B) {
	s, _ := newSecureServer(b, Options{})
	token := openToken(b, goodKey)
	before := cpuTime(b)
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
	b.ReportMetric(float64((cpuTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
}

// cpuTime is what this process has used.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
