//go:build long

package etcdlog

import (
	"testing"
	"time"

	"rallypoint/internal/etcdclient"
	"rallypoint/internal/etcdtest"
	"rallypoint/internal/testkit"
)

// A server that punishes frequent pings, and one of them is ours, ends no watch for good.
func TestPunishedPings(t *testing.T) {
	t.Parallel()
	s := etcdtest.Start(t, "--grpc-keepalive-min-time", "1m")
	config := etcdclient.Config{Endpoints: []string{s.Endpoint()}, Prefix: "/test", Timeout: 20 * time.Second}
	a, b := aLog(t, config), aLog(t, config)
	r := &reader{l: b}
	for i := range 4 {
		time.Sleep(15 * time.Second) // each connection is at rest, and pings
		appendText(t, a, "x")
		testkit.Equal(t, len(r.read(t, i+1)), i+1)
	}
}
