package client

import (
	"context"
	"net"
	"testing"

	"go.uber.org/goleak"

	"rallypoint/core/control"
	"rallypoint/core/control/controltest"
	"rallypoint/core/control/discovery"
	"rallypoint/core/member"
	"rallypoint/core/params"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startServer starts a control plane on a port of its own and returns its address.
func startServer(t *testing.T, cfg control.Config) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := control.Start(cfg, l)
	t.Cleanup(func() { s.Close() })
	return l.Addr().String()
}

// startHost starts a server as a client's host.
func startHost(cfg discovery.HostConfig, listeners ...net.Listener) discovery.Host {
	return control.Start(control.Config{RunID: cfg.Params.RunID, Fixed: cfg.Fixed, Token: cfg.Token, HTTPNames: cfg.HTTPNames, Log: cfg.Log, Group: cfg.Group}, listeners...)
}

// newTestClient makes a client that is closed with the test.
func newTestClient(t *testing.T, p params.Params, obs member.Observer) *Client {
	t.Helper()
	c := New(p, obs, nil, startHost)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		c.Close(ctx)
	})
	return c
}

// connected makes a client and connects it.
func connected(t *testing.T, p params.Params, obs member.Observer) *Client {
	t.Helper()
	c := newTestClient(t, p, obs)
	if err := c.Connect(controltest.Context(t)); err != nil {
		t.Fatal(err)
	}
	return c
}
