package otlp

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// Config says where spans go. The zero value says nowhere.
type Config struct {
	url      *url.URL
	headers  http.Header
	timeout  time.Duration // of a request
	gzip     bool
	roots    *x509.CertPool // nil: the system's
	resource []Attribute    // of the environment
}

// Enabled reports whether there is a collector.
func (c *Config) Enabled() bool { return c.url != nil }

// String is the collector's address without a password.
func (c *Config) String() string { return c.url.Redacted() }

const (
	tracesPath     = "/v1/traces"
	defaultTimeout = 10 * time.Second
	longestTimeout = time.Minute

	maxAttributes = 64 // of OTEL_RESOURCE_ATTRIBUTES
)

// Endpoint is the collector of an option: a URL, to which /v1/traces is added where it is missing. The
// environment has the rest, see FromEnvironment.
func Endpoint(text string, getenv func(string) string) (Config, error) {
	u, err := parseURL(text)
	if err != nil {
		return Config{}, err
	}
	if !strings.HasSuffix(u.Path, tracesPath) {
		u = u.JoinPath(tracesPath)
	}
	c := Config{url: u}
	return c, c.read(getenv)
}

// FromEnvironment reads the variables of OpenTelemetry's specification that are about the exporter
// of traces. It returns a Config that is not Enabled where they name no collector or switch traces
// off, and an error where one of them has a value that means nothing here.
func FromEnvironment(getenv func(string) string) (Config, error) {
	if strings.EqualFold(getenv("OTEL_SDK_DISABLED"), "true") {
		return Config{}, nil
	}
	switch exporter := getenv("OTEL_TRACES_EXPORTER"); exporter {
	case "", "otlp":
	default:
		return Config{}, nil
	}
	name, text := either(getenv, "ENDPOINT")
	if text == "" {
		return Config{}, nil
	}
	u, err := parseURL(text)
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", name, err)
	}
	if protocolName, protocol := either(getenv, "PROTOCOL"); protocol == "grpc" {
		return Config{}, fmt.Errorf("%s is grpc: traces go by HTTP, usually to port 4318 (http/json)", protocolName)
	}
	if name == general+"ENDPOINT" {
		u = u.JoinPath(tracesPath)
	}
	c := Config{url: u}
	return c, c.read(getenv)
}

const general, special = "OTEL_EXPORTER_OTLP_", "OTEL_EXPORTER_OTLP_TRACES_"

// either is the variable of traces, or else of all signals.
func either(getenv func(string) string, name string) (variable, value string) {
	if value := getenv(special + name); value != "" {
		return special + name, value
	}
	return general + name, getenv(general + name)
}

func parseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("not a URL, such as http://HOST:4318") // url's error has the password
	}
	port := u.Port()
	_, err = strconv.ParseUint(port, 10, 16)
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("%q is not an http or https URL, such as http://HOST:4318", u.Redacted())
	case u.Hostname() == "" || port != "" && err != nil || u.Fragment != "" || u.RawQuery != "":
		return nil, fmt.Errorf("%q is not the URL of a collector, such as http://HOST:4318", u.Redacted())
	}
	return u, nil
}

// read reads the variables that hold beside any endpoint.
func (c *Config) read(getenv func(string) string) error {
	c.timeout = defaultTimeout
	if name, text := either(getenv, "TIMEOUT"); text != "" {
		ms, err := strconv.ParseUint(text, 10, 31)
		if err != nil || ms == 0 {
			return fmt.Errorf("%s is %q: it takes milliseconds", name, text)
		}
		c.timeout = min(time.Duration(ms)*time.Millisecond, longestTimeout)
	}
	switch name, text := either(getenv, "COMPRESSION"); text {
	case "", "none":
	case "gzip":
		c.gzip = true
	default:
		return fmt.Errorf("%s is %q: there are gzip and none", name, text)
	}
	if name, path := either(getenv, "CERTIFICATE"); path != "" {
		pem, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		c.roots = x509.NewCertPool()
		if !c.roots.AppendCertsFromPEM(pem) {
			return fmt.Errorf("%s: %s has no certificate", name, path)
		}
	}
	c.headers = http.Header{}
	name, text := either(getenv, "HEADERS")
	pairs, err := parsePairs(text)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err) // which has no value: it may be a password
	}
	for _, p := range pairs {
		if !validHeader(p.Key, p.Value.(string)) {
			return fmt.Errorf("%s: %q cannot be a header", name, p.Key)
		}
		c.headers.Set(p.Key, p.Value.(string))
	}
	if c.resource, err = parsePairs(getenv("OTEL_RESOURCE_ATTRIBUTES")); err != nil {
		return fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	if service := getenv("OTEL_SERVICE_NAME"); service != "" {
		c.resource = append(c.resource, Attribute{"service.name", service})
	}
	return nil
}

// parsePairs reads KEY=VALUE,..., with %XX for other characters, as the values of W3C Baggage.
func parsePairs(text string) (pairs []Attribute, err error) {
	for item := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(item) == "" {
			continue
		}
		key, value, found := strings.Cut(item, "=")
		key = strings.TrimSpace(key)
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if !found || key == "" || err != nil {
			return nil, fmt.Errorf("item %d is not KEY=VALUE, with %%XX for special characters", len(pairs)+1)
		}
		if len(pairs) == maxAttributes {
			return nil, fmt.Errorf("more than %d items", maxAttributes)
		}
		pairs = append(pairs, Attribute{key, value})
	}
	return pairs, nil
}

// validHeader reports whether net/http would send a header, and whether it is not one that the
// request has itself.
func validHeader(key, value string) bool {
	for _, r := range key {
		if r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r) {
			return false
		}
	}
	for _, r := range value {
		if r < ' ' && r != '\t' || r == 0x7f {
			return false
		}
	}
	switch http.CanonicalHeaderKey(key) {
	case "Content-Type", "Content-Encoding", "Content-Length", "Transfer-Encoding", "Host", "Connection":
		return false
	}
	return true
}

func (c *Config) transport() *http.Transport {
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: c.timeout}).DialContext,
		TLSClientConfig:     &tls.Config{RootCAs: c.roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: c.timeout,
		MaxConnsPerHost:     1,
		IdleConnTimeout:     time.Minute,
	}
}
