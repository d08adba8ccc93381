package control

import (
	"context"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"rallypoint/core/control/client"
	"rallypoint/core/control/controltest"
	"rallypoint/core/control/journal"
	"rallypoint/core/member"
	"rallypoint/core/rendezvous"
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

// fakeClock is a Clock that a test moves.
type fakeClock struct {
	mu     sync.Mutex
	now    time.Time
	timers map[*fakeTimer]struct{}
	seq    int
}

type fakeTimer struct {
	clock *fakeClock
	due   time.Time
	seq   int
	f     func()
}

func newFakeClock() *fakeClock {
	return &fakeClock{now: time.Unix(1e9, 0), timers: map[*fakeTimer]struct{}{}}
}

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) AfterFunc(d time.Duration, f func()) Stopper {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seq++
	t := &fakeTimer{c, c.now.Add(max(d, 0)), c.seq, f}
	c.timers[t] = struct{}{}
	return t
}

func (t *fakeTimer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	_, running := t.clock.timers[t]
	delete(t.clock.timers, t)
	return running
}

// Advance moves the clock by d and calls what falls due, each at its own time.
func (c *fakeClock) Advance(d time.Duration) {
	c.mu.Lock()
	end := c.now.Add(d)
	c.mu.Unlock()
	for c.fireNext(end, false) {
	}
	c.mu.Lock()
	c.now = end
	c.mu.Unlock()
}

// Jump moves the clock by d at once, as if the process had been stopped, and
// then calls what has fallen due.
func (c *fakeClock) Jump(d time.Duration) {
	c.mu.Lock()
	c.now = c.now.Add(d)
	end := c.now
	c.mu.Unlock()
	for c.fireNext(end, true) {
	}
}

func (c *fakeClock) fireNext(end time.Time, late bool) bool {
	c.mu.Lock()
	var next *fakeTimer
	for t := range c.timers {
		if t.due.After(end) {
			continue
		}
		if next == nil || t.due.Before(next.due) || t.due.Equal(next.due) && t.seq < next.seq {
			next = t
		}
	}
	if next == nil {
		c.mu.Unlock()
		return false
	}
	delete(c.timers, next)
	if !late {
		c.now = next.due
	}
	c.mu.Unlock()
	next.f()
	return true
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
func startHost(cfg client.HostConfig, listeners ...net.Listener) client.Host {
	return Start(Config{RunID: cfg.RunID, Node: &cfg.Params, Fixed: cfg.Fixed, Token: cfg.Token, HTTPNames: cfg.HTTPNames, Log: cfg.Log, Metrics: cfg.Metrics, Group: cfg.Group}, listeners...)
}

// newTestClient makes a client that is closed with the test.
func newTestClient(t *testing.T, p rendezvous.Params, obs member.Observer) *client.Client {
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
func connected(t *testing.T, p rendezvous.Params, obs member.Observer) *client.Client {
	t.Helper()
	c := newTestClient(t, p, obs)
	if err := c.Connect(controltest.Context(t)); err != nil {
		t.Fatal(err)
	}
	return c
}
