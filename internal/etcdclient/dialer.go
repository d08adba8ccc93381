package etcdclient

import (
	"context"
	"errors"
	"net"
	"sync"

	"google.golang.org/grpc/credentials"
)

// dialer makes the connections to an etcd, and keeps why the last of each endpoint could
// not be made: gRPC tells that in words only.
//
// Certificates are read again for each connection, so that those that are exchanged while
// a job runs are used.
type dialer struct {
	config    *Config
	endpoints int // how many

	mu     sync.Mutex
	failed map[string]error // by endpoint
	local  net.Addr         // of the last connection
	remote net.Addr
}

var _ credentials.TransportCredentials = (*dialer)(nil)

func (d *dialer) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", address)
	d.record(address, err)
	if err == nil {
		d.mu.Lock()
		d.local, d.remote = conn.LocalAddr(), conn.RemoteAddr()
		d.mu.Unlock()
	}
	return conn, err
}

// ClientHandshake implements credentials.TransportCredentials.
func (d *dialer) ClientHandshake(ctx context.Context, endpoint string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	t, err := d.config.tlsConfig()
	if err != nil {
		d.record(endpoint, err)
		return nil, nil, err
	}
	secure, info, err := credentials.NewTLS(t).ClientHandshake(ctx, endpoint, conn)
	d.record(endpoint, err)
	return secure, info, err
}

// ServerHandshake implements credentials.TransportCredentials.
func (d *dialer) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.ErrUnsupported
}

// Info implements credentials.TransportCredentials.
func (d *dialer) Info() credentials.ProtocolInfo { return credentials.NewTLS(nil).Info() }

// Clone implements credentials.TransportCredentials.
func (d *dialer) Clone() credentials.TransportCredentials { return d }

// OverrideServerName implements credentials.TransportCredentials.
func (d *dialer) OverrideServerName(string) error { return errors.ErrUnsupported }

// record keeps what became of the last try to connect to an endpoint. One that was given up
// says nothing new.
func (d *dialer) record(endpoint string, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failed == nil {
		d.failed = make(map[string]error)
	}
	if err == nil {
		delete(d.failed, endpoint)
	} else {
		d.failed[endpoint] = err
	}
}

// failure returns why no endpoint can be connected to; nil if that is not known of each.
// It is final if all are.
func (d *dialer) failure() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.failed) < d.endpoints {
		return nil
	}
	var worst error
	for _, err := range d.failed {
		if worst == nil || !IsFinal(err) {
			worst = err
		}
	}
	return worst
}

// addresses returns both ends of the last connection as IP addresses, "" if there
// was none.
func (d *dialer) addresses() (local, remote string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ip := func(a net.Addr) string {
		if tcp, ok := a.(*net.TCPAddr); ok {
			return tcp.IP.String()
		}
		return ""
	}
	return ip(d.local), ip(d.remote)
}
