package etcdstore

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"rallypoint/core/rendezvous"
)

// Defaults of a Config.
const (
	DefaultPort    = 2379
	DefaultTimeout = rendezvous.DefaultReadTimeout

	// DefaultTTL is how long a run's keys outlive its last node
	// (docs/spec/rendezvous.md R93).
	DefaultTTL = 2 * time.Hour
)

// Config says which etcd is meant and how to speak to it.
type Config struct {
	Endpoints []string // members of one cluster, as host:port; at least one
	TLS       bool     // https

	// Files in PEM. CACert holds the authorities that may have signed the server's
	// certificate ("": those of the system), Cert and Key this client's own.
	CACert, Cert, Key string

	User, Password string // "": none

	Prefix string        // put in front of all keys
	TTL    time.Duration // a store's keys vanish so long after its last use; 0: never

	// Timeout bounds one request with all its repetitions if its context does not
	// do so earlier; 0 is DefaultTimeout.
	Timeout time.Duration

	Logger *slog.Logger // nil: none
}

// where names the etcd in messages, without the password.
func (c *Config) where() string { return strings.Join(c.Endpoints, ",") }

// timeout returns Timeout or its default.
func (c *Config) timeout() time.Duration {
	if c.Timeout > 0 {
		return c.Timeout
	}
	return DefaultTimeout
}

func (c *Config) logger() *slog.Logger {
	if c.Logger != nil {
		return c.Logger
	}
	return slog.New(slog.DiscardHandler)
}

// bases returns the URLs of the endpoints.
func (c *Config) bases() ([]string, error) {
	if len(c.Endpoints) == 0 {
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "the endpoint names no etcd; write etcd://HOST:PORT")
	}
	scheme := "http://"
	if c.TLS {
		scheme = "https://"
	}
	urls := make([]string, len(c.Endpoints))
	for i, endpoint := range c.Endpoints {
		host, port, err := rendezvous.ParseEndpoint(endpoint, DefaultPort)
		if err != nil {
			return nil, err
		}
		urls[i] = scheme + net.JoinHostPort(host, strconv.Itoa(port))
	}
	return urls, nil
}

// tlsConfig reads the certificates.
func (c *Config) tlsConfig() (*tls.Config, error) {
	if !c.TLS {
		if c.CACert != "" || c.Cert != "" || c.Key != "" {
			return nil, rendezvous.Errorf(rendezvous.CodeInvalid,
				"certificates are given, but the endpoint is not https; write etcds:// or give the option protocol=https")
		}
		return nil, nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CACert != "" {
		pem, err := os.ReadFile(c.CACert)
		if err != nil {
			return nil, badFile("ca_cert", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, badFile("ca_cert", fmt.Errorf("%s holds no certificate in PEM", c.CACert))
		}
	}
	switch {
	case c.Cert == "" && c.Key == "":
		return t, nil
	case c.Cert == "":
		return nil, badFile("ssl_cert", fmt.Errorf("it is missing, but ssl_cert_key is given"))
	}
	key := c.Key
	if key == "" {
		key = c.Cert // one file may hold both
	}
	pair, err := tls.LoadX509KeyPair(c.Cert, key)
	if err != nil {
		return nil, badFile("ssl_cert, ssl_cert_key", err)
	}
	if leaf := pair.Leaf; leaf != nil && time.Now().After(leaf.NotAfter) {
		return nil, badFile("ssl_cert", fmt.Errorf("the certificate in %s expired on %s; renew it", c.Cert, leaf.NotAfter.UTC().Format(time.DateTime)))
	}
	t.Certificates = []tls.Certificate{pair}
	return t, nil
}

func badFile(option string, err error) error {
	return rendezvous.Errorf(rendezvous.CodeInvalid, "option %s: %v", option, err)
}
