package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"

	"rallypoint/core/params"
	"rallypoint/core/store"
)

// listenAddr is the value of --listen; without a host it is the wildcard.
type listenAddr struct{ params.HostPort }

// parseListen accepts an endpoint, :PORT for the wildcard address, and a PORT alone, which
// listens on this machine only, as the default does.
func parseListen(text string, defaultPort int) (listenAddr, error) {
	endpoint, wildcard := text, strings.HasPrefix(text, ":") && strings.Count(text, ":") == 1
	switch {
	case wildcard:
		endpoint = "[::]" + text
	case isNumber(text):
		endpoint = "127.0.0.1:" + strings.TrimSpace(text)
	}
	at, err := params.ParseEndpoint(endpoint, defaultPort)
	switch {
	case strings.TrimSpace(text) == "", err != nil:
		return listenAddr{}, fmt.Errorf("--listen is %q, expected HOST:PORT, such as 127.0.0.1:%d, or 0.0.0.0:%d for every interface",
			text, defaultPort, defaultPort)
	case wildcard:
		at.Host = ""
	}
	return listenAddr{at}, nil
}

func isNumber(text string) bool {
	text = strings.TrimSpace(text)
	return text != "" && strings.Trim(text, "0123456789") == ""
}

// open listens there, with config for the connections.
func (la listenAddr) open(ctx context.Context, config net.ListenConfig) (net.Listener, error) {
	network := "tcp"
	if ip, err := netip.ParseAddr(la.Host); err == nil && ip.Is4() {
		network = "tcp4" // 0.0.0.0 would be both families otherwise
	}
	config.SetMultipathTCP(false) // clients are plain TCP
	l, err := config.Listen(ctx, network, la.String())
	var name *net.DNSError
	switch {
	case err == nil:
		return l, nil
	case errors.As(err, &name):
		return nil, failed("cannot listen on %s: cannot resolve %q: %s; name an address of this machine with --listen", la, name.Name, name.Err)
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, failed("cannot listen on %s: another process has the port (`ss -ltnp 'sport = :%d'` shows which); end it, or choose another port with --listen", la, la.Port)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, failed("cannot listen on %s: this machine does not have that address; choose one of its own with --listen, or 0.0.0.0 for all", la)
	case errors.Is(err, syscall.EACCES):
		return nil, failed("cannot listen on %s: not permitted; choose a port above 1023 with --listen", la)
	}
	return nil, failed("cannot listen on %s: %w", la, store.PlainNetError(err))
}
