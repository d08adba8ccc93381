package etcdclient_test

import (
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"rallypoint/internal/etcdclient"
	"rallypoint/internal/etcdtest"
	"rallypoint/internal/testkit"
)

var shared etcdtest.Shared

func TestMain(m *testing.M) {
	shared.M = m
	goleak.VerifyTestMain(&shared)
}

// A lost answer leaves no lease behind.
func TestLeasesAreGrantedOnce(t *testing.T) {
	server := etcdtest.Start(t)
	c := testkit.Must(etcdclient.New(etcdclient.Config{Endpoints: []string{server.Endpoint()}}))(t)
	defer c.Close()
	n := etcdtest.MakeLossy(c, t)
	ctx := testkit.Within(t, time.Minute)
	const grants = 20
	for range grants {
		lease := testkit.Must(c.Grant(ctx, time.Hour))(t)
		testkit.Check(t, c.KeepAlive(ctx, lease))
	}
	n.Deliver(1 << 10)
	c.Interceptor.Store(nil)
	testkit.Equal(t, len(testkit.Must(c.Etcd.Leases(ctx))(t).Leases), grants)
}

// A number that is taken is no sign that this client took it, unless it asked before.
func TestLeasesOfOthersAreNotTakenOver(t *testing.T) {
	config := shared.Config(t)
	a, b := testkit.Must(etcdclient.New(config))(t), testkit.Must(etcdclient.New(config))(t)
	defer a.Close()
	defer b.Close()
	ctx := testkit.Within(t, time.Minute)
	taken := testkit.Must(a.Grant(ctx, time.Hour))(t)
	draw := *etcdclient.LeaseNumber
	defer func() { *etcdclient.LeaseNumber = draw }()
	drawn := 0
	*etcdclient.LeaseNumber = func() int64 {
		if drawn++; drawn == 1 {
			return taken
		}
		return draw()
	}
	own := testkit.Must(b.Grant(ctx, time.Hour))(t)
	if own == taken || drawn != 2 {
		t.Fatalf("the lease %d after %d of another, %d numbers drawn", own, taken, drawn)
	}
	testkit.Must(b.Etcd.Revoke(ctx, clientv3.LeaseID(own)))(t)
	testkit.Check(t, a.KeepAlive(ctx, taken))
	testkit.Must(a.Etcd.Revoke(ctx, clientv3.LeaseID(taken)))(t)
}

// A watch ends when its member dies, and when it does not answer any more.
func TestWatchEndsWithItsMember(t *testing.T) {
	t.Parallel()
	for name, sig := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := etcdtest.Start(t)
			c := testkit.Must(etcdclient.New(etcdclient.Config{Endpoints: []string{s.Endpoint()}}))(t)
			defer c.Close()
			w, err := c.Watch(testkit.Within(t, time.Minute), &pb.WatchCreateRequest{Key: []byte("k"), StartRevision: 1})
			testkit.Check(t, err)
			defer w.Close()
			testkit.Must(w.Next())(t)
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
