package etcdclient

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
)

// Defaults of a Config.
const (
	DefaultPort    = 2379
	defaultTimeout = params.DefaultReadTimeout

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

	// PasswordFile holds the password, whose last line end is left out, instead of
	// Password. It is read again for each authentication.
	PasswordFile string

	Prefix string        // put in front of all keys
	TTL    time.Duration // a store's keys vanish so long after its last use; 0: never

	// Timeout bounds one request with all its repetitions if its context does not
	// do so earlier; 0 is defaultTimeout.
	Timeout time.Duration

	Logger *slog.Logger // nil: none
}

// Where names the etcd in messages, without the password.
func (c *Config) Where() string { return strings.Join(c.Endpoints, ",") }

// Log returns Logger, or one that drops everything.
func (c *Config) Log() *slog.Logger {
	return cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
}

// bases returns the URLs of the endpoints, each once.
func (c *Config) bases() ([]string, error) {
	if len(c.Endpoints) == 0 {
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "the endpoint names no etcd; write etcd://HOST:PORT")
	}
	scheme := "http://"
	if c.TLS {
		scheme = "https://"
	}
	var urls []string
	for _, endpoint := range c.Endpoints {
		at, err := params.ParseEndpoint(endpoint, DefaultPort)
		if err != nil {
			return nil, err
		}
		if url := scheme + at.String(); !slices.Contains(urls, url) {
			urls = append(urls, url)
		}
	}
	return urls, nil
}

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
	pair, err := tls.LoadX509KeyPair(c.Cert, cmp.Or(c.Key, c.Cert)) // one file may hold both
	if err != nil {
		return nil, badFile("ssl_cert, ssl_cert_key", err)
	}
	if leaf := pair.Leaf; leaf != nil && time.Now().After(leaf.NotAfter) {
		return nil, badFile("ssl_cert", fmt.Errorf("the certificate in %s expired on %s; renew it", c.Cert, leaf.NotAfter.UTC().Format(time.DateTime)))
	}
	t.Certificates = []tls.Certificate{pair}
	return t, nil
}

const maxPassword = 4 << 10

func (c *Config) password() (string, error) {
	if c.PasswordFile == "" {
		return c.Password, nil
	}
	if c.Password != "" {
		return "", rendezvous.Errorf(rendezvous.CodeInvalid, "the password is given, and a password_file too; leave one of them out")
	}
	f, err := os.Open(c.PasswordFile)
	if err != nil {
		return "", badFile("password_file", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxPassword+1))
	if err != nil {
		return "", badFile("password_file", err)
	}
	password := strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
	switch {
	case password == "":
		return "", badFile("password_file", fmt.Errorf("%s is empty", c.PasswordFile))
	case len(text) > maxPassword:
		return "", badFile("password_file", fmt.Errorf("%s has more than %d bytes", c.PasswordFile, maxPassword))
	}
	return password, nil
}

func badFile(option string, err error) error {
	return rendezvous.Errorf(rendezvous.CodeInvalid, "option %s: %v", option, err)
}
