package control

import (
	"context"
	"net"
	"os"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"rallypoint/core/control/client"
	"rallypoint/core/control/controltest"
	"rallypoint/core/control/discovery"
	"rallypoint/core/control/journal"
	"rallypoint/core/member"
	"rallypoint/core/params"
)

func TestMain(m *testing.M) {
	unix.Umask(0o022) // a data directory that a group may write to is refused
	if dir := os.Getenv(serveIn); dir != "" {
		serveUntilKilled(dir, os.Getenv(serveAt))
	}
	if descriptors := os.Getenv(serveWith); descriptors != "" {
		serveCrowd(descriptors)
		return
	}
	goleak.VerifyTestMain(m)
}

// durably makes all servers of the tests keep their runs on the disk: the same
// must be seen from outside.
var durably = os.Getenv("RALLYPOINT_TEST_DURABLY") != ""

// atOnce skips a test that moves the clock and looks at what has come of it: with
// a disk in between that takes its time.
func atOnce(t *testing.T) {
	if durably {
		t.Skip("events are applied when they are stored")
	}
}

// testServer starts a server on a port of its own.
func testServer(t *testing.T, cfg Config) (*Server, string) {
	t.Helper()
	if durably && cfg.Data == nil {
		cfg.Data = testData(t, t.TempDir())
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := Start(cfg, l)
	t.Cleanup(func() { s.Close() })
	return s, l.Addr().String()
}

// testData opens a data directory that is closed with the test.
func testData(t *testing.T, dir string) *Data {
	t.Helper()
	d, err := OpenData(dir, journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// startHost starts a server as a client's host.
func startHost(cfg discovery.HostConfig, listeners ...net.Listener) discovery.Host {
	return Start(Config{RunID: cfg.Params.RunID, Node: &cfg.Params, Fixed: cfg.Fixed, Token: cfg.Token, HTTPNames: cfg.HTTPNames, Log: cfg.Log, Group: cfg.Group}, listeners...)
}

// newTestClient makes a client that is closed with the test.
func newTestClient(t *testing.T, p params.Params, obs member.Observer) *client.Client {
	t.Helper()
	c := client.New(p, obs, nil, startHost)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		c.Close(ctx)
	})
	return c
}

// connected makes a client and connects it.
func connected(t *testing.T, p params.Params, obs member.Observer) *client.Client {
	t.Helper()
	c := newTestClient(t, p, obs)
	if err := c.Connect(controltest.Context(t)); err != nil {
		t.Fatal(err)
	}
	return c
}
