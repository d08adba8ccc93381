//go:build long

package etcdregister

import (
	"fmt"
	"testing"
	"time"

	"rallypoint/internal/etcdclient"
	"rallypoint/internal/etcdtest"
)

// A server that punishes frequent pings, and one of them is ours, ends no watch for good.
func TestPunishedPings(t *testing.T) {
	t.Parallel()
	s := etcdtest.Start(t, "--grpc-keepalive-min-time", "1m")
	config := etcdclient.Config{Endpoints: []string{s.Endpoint()}, Prefix: "/test", Timeout: 20 * time.Second}
	a, b := aRegister(t, config), aRegister(t, config)
	await := watched(t, b)
	for i := range 4 {
		time.Sleep(15 * time.Second) // each connection is at rest, and pings
		addTexts(t, a, fmt.Sprint(i))
		await(fmt.Sprint(i))
	}
}
