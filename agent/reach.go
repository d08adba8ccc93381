package agent

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"
)

// How long workers have run before the agent tries whether their store can be reached
// from this node, how long it tries, and how long it keeps the connection: a store that checks
// whose connections it gets may look late, and takes one that is closed by then for a stranger's.
const (
	reachAfter    = 5 * time.Second
	reachPatience = 5 * time.Second
	reachHold     = 5 * time.Second
)

// watchStore tries once, some seconds after the workers were started, whether the store of
// the round can be reached from this node, and says so if not: workers that cannot connect
// say nothing for minutes. The function that it returns ends that. A store that they reach by
// a loopback address of this machine is not tried: what carries them there logs it.
func (a *Agent) watchStore() (stop func()) {
	if s := a.assignment; s.AdvertisedAddr != "" && s.AdvertisedAddr != s.StoreAddr {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { // ends with stop
		defer close(done)
		timer := time.NewTimer(a.reachAfter)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		where := net.JoinHostPort(a.assignment.StoreAddr, strconv.Itoa(a.assignment.StorePort))
		dialer := net.Dialer{Timeout: reachPatience}
		dialer.SetMultipathTCP(false) // as workers do
		began := time.Now()
		conn, err := dialer.DialContext(ctx, "tcp", where)
		switch {
		case err == nil:
			keepOpen(ctx, conn, reachHold)
		case ctx.Err() == nil:
			a.log.Warn(fmt.Sprintf("the workers' store at %s (MASTER_ADDR and MASTER_PORT) cannot be reached from this node, tried for %v: %v; "+
				"workers that use it hang until they time out. Its address is what the node of rank 0 announces: give advertise_addr= or --local-addr there, "+
				"an address under which the others reach it, and store_port= if a firewall is between them", where, time.Since(began).Round(time.Millisecond), err))
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// keepOpen closes a connection after a time, or when the peer closes it or ctx ends.
func keepOpen(ctx context.Context, conn net.Conn, limit time.Duration) {
	unhook := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer unhook()
	_ = conn.SetDeadline(time.Now().Add(limit))
	_, _ = conn.Read(make([]byte, 1))
	_ = conn.Close()
}
