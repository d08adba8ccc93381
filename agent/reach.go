package agent

import (
	"context"
	"fmt"
	"net"
	"time"

	"rallypoint/internal/background"
	"rallypoint/internal/backoff"
)

// The agent tries to reach the round's store from this node once its workers have run for
// reachAfter: reachTries times, reachPatience each. It keeps the connection open for reachHold,
// because a store that checks the user of its clients may check late, and counts a connection
// that is closed by then as a stranger's.
const (
	reachAfter    = 5 * time.Second
	reachPatience = 5 * time.Second
	reachTries    = 2
	reachHold     = 5 * time.Second
)

// watchStore checks, some seconds after the workers were started, whether this node can reach the
// round's store, and logs a warning if not, since workers that cannot connect print nothing for
// minutes. The returned function ends that. It does not check a store that workers reach through
// a loopback address of this machine: the forwarder there logs failures.
//
// One failed try says nothing: in a process that was stopped (SIGSTOP) meanwhile it may come before
// the news that the round and its store are over.
func (n *node) watchStore() (stop func()) {
	if s := n.assignment; s.AdvertisedAddr != "" && s.AdvertisedAddr != s.StoreAddr {
		return func() {}
	}
	return background.Run(context.Background(), func(ctx context.Context) {
		where := n.assignment.StoreEndpoint()
		var took time.Duration
		for tries := 1; ; tries++ {
			if !backoff.Sleep(ctx, n.reachAfter) {
				return
			}
			began := time.Now()
			conn, err := n.dialStore(ctx, where)
			took += time.Since(began)
			switch {
			case err == nil:
				keepOpen(ctx, conn, reachHold)
				return
			case ctx.Err() != nil:
				return
			case tries == reachTries:
				n.log.Warn(fmt.Sprintf("the workers' store at %s (MASTER_ADDR and MASTER_PORT) cannot be reached from this node, tried %d times for %v: %v; "+
					"workers that use it hang until they time out. Its address is what the node of rank 0 announces: give advertise_addr= or --local-addr there, "+
					"an address under which the others reach it, and store_port= if a firewall is between them", where, tries, took.Round(time.Millisecond), err))
				return
			}
		}
	})
}

// dialStore connects as workers do.
func dialStore(ctx context.Context, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: reachPatience}
	dialer.SetMultipathTCP(false)
	return dialer.DialContext(ctx, "tcp", address)
}

// keepOpen closes a connection after a time, or when the peer closes it or ctx ends.
func keepOpen(ctx context.Context, conn net.Conn, limit time.Duration) {
	unhook := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer unhook()
	_ = conn.SetDeadline(time.Now().Add(limit))
	_, _ = conn.Read(make([]byte, 1))
	_ = conn.Close()
}
