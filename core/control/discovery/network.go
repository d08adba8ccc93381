package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/internal/backoff"
	"rallypoint/internal/host"
)

// network is the client's access to the machine that it runs on. Tests replace it.
type network struct {
	resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	locals  func() ([]netip.Addr, error) // addresses of the interfaces
	dial    func(ctx context.Context, to netip.AddrPort) (net.Conn, error)
	listen  func(ctx context.Context, address string) (net.Listener, error)
	now     func() time.Time // with its monotonic reading
	timer   func(d time.Duration) (fired <-chan time.Time, stop func())
}

func systemNetwork() network {
	return network{
		resolve: wire.Resolve,
		locals:  host.Addrs,
		dial:    func(ctx context.Context, to netip.AddrPort) (net.Conn, error) { return wire.Dial(ctx, to.String()) },
		listen:  wire.Listen,
		now:     time.Now,
		timer: func(d time.Duration) (<-chan time.Time, func()) {
			t := time.NewTimer(d)
			return t.C, func() { t.Stop() }
		},
	}
}

// sleep waits for d; it reports false if ctx ended before.
func (n network) sleep(ctx context.Context, d time.Duration) bool { return n.await(ctx, nil, d) }

// await is sleep until something changes, if that comes first.
func (n network) await(ctx context.Context, changed <-chan struct{}, d time.Duration) bool {
	fired, stop := n.timer(d)
	defer stop()
	select {
	case <-changed:
		return true
	case <-fired:
		return true
	case <-ctx.Done():
		return false
	}
}

func (n network) since(t time.Time) time.Duration { return n.now().Sub(t) }

// Dialing several addresses: the next one is tried when the one before has failed
// or not answered for dialStagger; all together get dialTimeout.
const (
	dialStagger = 200 * time.Millisecond
	dialTimeout = 3 * time.Second
)

// dialAny connects to the first of the addresses that answers. The error names
// each failure.
func (n network) dialAny(ctx context.Context, to []netip.AddrPort) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, failed := backoff.First(ctx, to, dialStagger, func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
		conn, err := n.dial(ctx, addr)
		if err != nil && len(to) > 1 {
			err = fmt.Errorf("%s: %w", addr, err)
		}
		return conn, err
	}, func(error) bool { return false }, func(late net.Conn) { late.Close() })
	return conn, errors.Join(failed...)
}
