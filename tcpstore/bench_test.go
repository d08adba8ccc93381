package tcpstore

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"rallypoint/core/store"
	"rallypoint/internal/testkit"
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

// BenchmarkClient makes calls of a server in this process, or at the address in
// RALLYPOINT_BENCH_STORE.
func BenchmarkClient(b *testing.B) {
	s, _ := newServer(b, Options{})
	ctx := b.Context()
	c := testkit.Must(Dial(ctx, cmp.Or(os.Getenv("RALLYPOINT_BENCH_STORE"), s.Addr().String()), ClientOptions{}))(b)
	defer c.Close()
	value := []byte("0123456789abcdef")
	keys, values := make([]string, 10), make([][]byte, 10)
	for i := range keys {
		keys[i], values[i] = fmt.Sprint("k", i), value
	}
	testkit.Check(b, c.MultiSet(ctx, keys, values))
	for name, call := range map[string]func() error{
		"get":         func() error { _, err := c.Get(ctx, "k0"); return err },
		"multi_get":   func() error { _, err := c.MultiGet(ctx, keys); return err },
		"set":         func() error { return c.Set(ctx, "k0", value) },
		"add":         func() error { _, err := c.Add(ctx, "n", 1); return err },
		"check":       func() error { _, err := c.Check(ctx, keys[:1]); return err },
		"wait":        func() error { return c.Wait(ctx, keys[:1]) },
		"compare_set": func() error { _, err := c.CompareSet(ctx, "k0", value, value); return err },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				testkit.Check(b, call())
			}
		})
	}
}
