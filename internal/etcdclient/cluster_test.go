package etcdclient_test

import (
	"context"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"rallypoint/internal/etcdclient"
	"rallypoint/internal/etcdserver"
	"rallypoint/internal/etcdtest"
)

var shared etcdtest.Shared

func TestMain(m *testing.M) {
	shared.M = m
	goleak.VerifyTestMain(&shared)
}

// testArgs keep the disk of the machine that tests out of it.
var testArgs = []string{"--unsafe-no-fsync"}

func aConfig(t testing.TB) etcdclient.Config {
	t.Helper()
	return etcdclient.Config{Endpoints: []string{shared.Endpoint(t)}, Prefix: "/test", Timeout: 20 * time.Second}
}

// within returns a context for a test that hangs if it fails.
func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func must[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		check(t, err)
		return value
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[T comparable](t testing.TB, have, want T) {
	t.Helper()
	if have != want {
		t.Fatalf("have %v, want %v", have, want)
	}
}

// A lost answer leaves no lease behind.
func TestLeasesAreGrantedOnce(t *testing.T) {
	server, err := etcdserver.Start(within(t, time.Minute), etcdserver.Config{Binary: etcdtest.Binary(t), Args: testArgs})
	check(t, err)
	t.Cleanup(server.Stop)
	c := must(etcdclient.New(etcdclient.Config{Endpoints: []string{server.Endpoint()}}))(t)
	defer c.Close()
	n := etcdtest.MakeLossy(c, t)
	ctx := within(t, time.Minute)
	const grants = 20
	for range grants {
		lease := must(c.Grant(ctx, time.Hour))(t)
		check(t, c.KeepAlive(ctx, lease))
	}
	n.Deliver(1 << 10)
	c.Interceptor.Store(nil)
	equal(t, len(must(c.Etcd.Leases(ctx))(t).Leases), grants)
}

// A number that is taken is no sign that this client took it, unless it asked before.
func TestLeasesOfOthersAreNotTakenOver(t *testing.T) {
	config := aConfig(t)
	a, b := must(etcdclient.New(config))(t), must(etcdclient.New(config))(t)
	defer a.Close()
	defer b.Close()
	ctx := within(t, time.Minute)
	taken := must(a.Grant(ctx, time.Hour))(t)
	draw := *etcdclient.LeaseNumber
	defer func() { *etcdclient.LeaseNumber = draw }()
	drawn := 0
	*etcdclient.LeaseNumber = func() int64 {
		if drawn++; drawn == 1 {
			return taken
		}
		return draw()
	}
	own := must(b.Grant(ctx, time.Hour))(t)
	if own == taken || drawn != 2 {
		t.Fatalf("the lease %d after %d of another, %d numbers drawn", own, taken, drawn)
	}
	check(t, b.Revoke(ctx, own))
	check(t, a.KeepAlive(ctx, taken))
	check(t, a.Revoke(ctx, taken))
}

// A watch ends when its member dies, and when it does not answer any more.
func TestWatchEndsWithItsMember(t *testing.T) {
	t.Parallel()
	for name, sig := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := etcdserver.Start(within(t, time.Minute), etcdserver.Config{Binary: etcdtest.Binary(t), Args: testArgs})
			check(t, err)
			t.Cleanup(s.Stop)
			c := must(etcdclient.New(etcdclient.Config{Endpoints: []string{s.Endpoint()}}))(t)
			defer c.Close()
			w, err := c.Watch(within(t, time.Minute), etcdclient.WatchRequest{Key: "k", Revision: 1})
			check(t, err)
			defer w.Close()
			must(w.Next())(t)
			ended := make(chan error, 1)
			go func() { _, err := w.Next(); ended <- err }()
			s.Signal(sig)
			select {
			case err := <-ended:
				if err == nil {
					t.Fatal("it goes on")
				}
			case <-time.After(2 * (etcdclient.PingAfter + etcdclient.PingTimeout)):
				t.Fatal("it does not end")
			}
		})
	}
}
