package backend

import (
	"net/url"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"rallypoint/core/params"
	"rallypoint/internal/etcdclient"
	"rallypoint/internal/testkit"
)

// TestShortTTL: a record outlives the lease of a leader that is cut off from the etcd, whatever the ttl is: without
// one another node would begin the run anew.
func TestShortTTL(t *testing.T) {
	t.Parallel()
	config := etcdclient.Config{Endpoints: []string{etcd.Endpoint(t)}, Prefix: "/" + t.Name()}
	p := params.Default()
	p.RunID, p.Endpoint = "job", "etcd://"+config.Endpoints[0]+"?ttl=1&key_prefix="+url.QueryEscape(config.Prefix)
	p.Min, p.Max, p.LeaseTimeout = 1, 1, 4*time.Second
	m := testkit.Must(Open(p, nil))(t)
	defer m.Close()
	ctx := testkit.Within(t, patience)
	testkit.Must(m.Next(ctx))(t)
	c := testkit.Must(etcdclient.New(config))(t)
	defer c.Close()
	lease := int64(0)
	testkit.Eventually(t, "the record is on a lease", func() bool {
		found := testkit.Must(c.Get(ctx, "reading", config.Prefix+"/job/leader"))(t)
		lease = etcdclient.First(found.Kvs).GetLease()
		return lease != 0
	})
	ttl := testkit.Must(c.Etcd.TimeToLive(ctx, clientv3.LeaseID(lease)))(t).GrantedTTL
	if kept := time.Duration(ttl) * time.Second; kept < 2*p.LeaseTimeout {
		t.Errorf("the record is kept for %v, the leader's lease is %v", kept, p.LeaseTimeout)
	}
}
