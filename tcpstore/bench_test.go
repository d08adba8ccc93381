package tcpstore

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"rallypoint/core/store"
)

// BenchmarkSession carries out a request that came in whole: parsing, the engine, the reply.
func BenchmarkSession(b *testing.B) {
	for _, size := range []int{64, 4 << 10} {
		value := strings.Repeat("v", size)
		for _, r := range []struct {
			name    string
			request []byte
		}{
			{"set", msg(opSet, "/key", value)},
			{"get", msg(opGet, "/key")},
			{"add", msg(opAdd, "/number", uint64(1))},
			{"check", msg(opCheck, 1, "/key")},
		} {
			b.Run(fmt.Sprintf("%s/%d", r.name, size), func(b *testing.B) {
				s := &newPeer(store.NewEngine(store.Limits{}), sessionConfig{}).session
				var out []byte
				feed := func(bytes []byte) {
					s.parser.received(copy(s.parser.space(), bytes))
					if _, err := s.process(math.MaxInt); err != nil {
						b.Fatal(err)
					}
					out, _ = s.takeOut(out)
				}
				feed(hello)
				for rest := msg(opSet, "/key", value); len(rest) > 0; {
					n := min(len(rest), minRead)
					feed(rest[:n])
					rest = rest[n:]
				}
				b.ReportAllocs()
				for b.Loop() {
					for rest := r.request; len(rest) > 0; {
						n := copy(s.parser.space(), rest)
						feed(rest[:n])
						rest = rest[n:]
					}
				}
			})
		}
	}
}
