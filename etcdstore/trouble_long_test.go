//go:build long

package etcdstore

import (
	"testing"
	"time"
)

// A server that punishes frequent pings, and one of them is ours, ends no watch for good.
func TestPunishedPings(t *testing.T) {
	t.Parallel()
	s, err := StartServer(within(t, time.Minute), ServerConfig{
		Binary: testBinary(t), Args: append([]string{"--grpc-keepalive-min-time", "1m"}, testArgs...),
	})
	check(t, err)
	t.Cleanup(s.Stop)
	config := Config{Endpoints: []string{s.Endpoint()}, Prefix: "/test", Timeout: 20 * time.Second}
	a, b := aLog(t, config), aLog(t, config)
	r := &reader{l: b}
	for i := range 4 {
		time.Sleep(15 * time.Second) // each connection is at rest, and pings
		appendText(t, a, "x")
		equal(t, len(r.read(t, i+1)), i+1)
	}
}
