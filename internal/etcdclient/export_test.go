package etcdclient

// What the tests of package etcdclient_test, which start an etcd, see.
const (
	PingAfter   = pingAfter
	PingTimeout = pingTimeout
)

// LeaseNumber draws the number of a lease.
var LeaseNumber = &leaseNumber
