package etcdclient

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
)

// The schemes of endpoints.
const (
	Scheme    = "etcd"
	SchemeTLS = "etcds"
)

// DefaultPrefix is in front of the keys of runs, unless an option says another.
const DefaultPrefix = "/rallypoint"

// urlPrefix is the default of an endpoint that says the run id: the reference's older handler's.
const urlPrefix = "/torchelastic/p2p"

// Endpoint is an etcd as users write it:
//
//	etcd://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]...][/RUN_ID][?OPTION=VALUE&...]
//
// and with etcds:// for TLS. Run id and options are the form of the reference's
// older handler (docs/spec/rendezvous.md R103).
type Endpoint struct {
	Hosts          params.Servers
	TLS            bool
	User, Password string
	RunID          string            // "": not said
	Query          map[string]string // the options after the question mark
}

// ParseEndpoint reads an endpoint. Errors are rendezvous.ErrInvalid; they quote it
// without its password.
func ParseEndpoint(text string) (*Endpoint, error) {
	scheme, rest, _ := strings.Cut(strings.TrimSpace(text), "://")
	e := &Endpoint{Query: make(map[string]string)}
	switch strings.ToLower(scheme) {
	case Scheme:
	case SchemeTLS:
		e.TLS = true
	default:
		return nil, wrongEndpoint(text, "its scheme is not etcd or etcds")
	}
	rest, query, _ := strings.Cut(rest, "?")
	hosts, runID, _ := strings.Cut(rest, "/")
	if strings.Contains(runID, "@") || strings.Contains(query, "@") {
		return nil, wrongEndpoint(text, "there is an @ behind its hosts; write the special characters of a password, and an @ elsewhere, as %XX")
	}
	if at := strings.LastIndexByte(hosts, '@'); at >= 0 {
		if err := e.setUser(hosts[:at]); err != nil {
			return nil, wrongEndpoint(text, err.Error())
		}
		hosts = hosts[at+1:]
	}
	for host := range strings.SplitSeq(hosts, ",") {
		if strings.TrimSpace(host) == "" {
			return nil, wrongEndpoint(text, "it lacks a host")
		}
		at, err := params.ParseEndpoint(host, DefaultPort)
		if err != nil || at.Port == 0 {
			// Text that is no port may be a password whose @ was left out.
			name, _, _ := strings.Cut(host, ":")
			return nil, wrongEndpoint(text, fmt.Sprintf("its part %q is not HOST or HOST:PORT, with a port from 1 to 65535", name+":..."))
		}
		e.Hosts = append(e.Hosts, at)
	}
	var err error
	if e.RunID, err = url.PathUnescape(runID); err != nil {
		return nil, wrongEndpoint(text, "its run id holds a bad % escape")
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, wrongEndpoint(text, "its options hold a bad % escape, or a semicolon")
	}
	for name, list := range values {
		if optionTable[name] == nil && values.Has("password") && !slices.Contains(ownOptions, name) {
			return nil, wrongEndpoint(text, "one of its options is not known; write an & in a password as %26")
		}
		if len(list) > 1 {
			return nil, wrongEndpoint(text, fmt.Sprintf("it says %s twice", name))
		}
		e.Query[name] = list[0]
	}
	return e, nil
}

func (e *Endpoint) setUser(text string) error {
	user, password, _ := strings.Cut(text, ":")
	var err error
	if e.User, err = url.PathUnescape(user); err != nil {
		return fmt.Errorf("its user holds a bad %% escape")
	}
	if e.Password, err = url.PathUnescape(password); err != nil {
		return fmt.Errorf("its password holds a bad %% escape")
	}
	if e.User == "" {
		return fmt.Errorf("its user has no name")
	}
	return nil
}

func wrongEndpoint(text, what string) error {
	scheme, _, ok := strings.Cut(text, "://")
	if !ok || strings.ContainsAny(scheme, "@?:/") {
		scheme = Scheme
	}
	return rendezvous.Errorf(rendezvous.CodeInvalid,
		"the endpoint %q is not valid: %s; write etcd://HOST[:PORT][,HOST[:PORT]...], or etcds:// with TLS", scheme+"://...", what)
}

// String returns the endpoint without user, run id and options.
func (e *Endpoint) String() string {
	scheme := Scheme
	if e.TLS {
		scheme = SchemeTLS
	}
	return scheme + "://" + e.Hosts.String()
}

// Apply sets the parameters of a node that the endpoint itself carries: run id,
// min_workers, max_workers, timeout and last_call_timeout. What p says already, and
// is not a default, must be the same. The other options, and the user, join
// p.BackendOptions; so does the prefix of an endpoint with a run id, if no option says one.
func (e *Endpoint) Apply(p *params.Params) error {
	if e.RunID != "" {
		if p.RunID != "" && p.RunID != "none" && p.RunID != e.RunID {
			return contradiction("the run id", e.RunID, p.RunID)
		}
		p.RunID = e.RunID
	}
	said := maps.Clone(e.Query)
	if e.User != "" {
		said["user"] = e.User
		if e.Password != "" {
			said["password"] = e.Password
		}
	}
	defaults := params.Default()
	given := p.Min != 1 || p.Max != 1
	options := make(map[string]string)
	maps.Copy(options, p.BackendOptions)
	for _, name := range slices.Sorted(maps.Keys(said)) {
		var err error
		switch text := said[name]; name {
		case "min_workers":
			err = applyNumber(name, text, &p.Min, given)
		case "max_workers":
			err = applyNumber(name, text, &p.Max, given)
		case "timeout":
			err = applySeconds(name, text, &p.JoinTimeout, defaults.JoinTimeout)
		case "last_call_timeout":
			err = applySeconds(name, text, &p.LastCallTimeout, defaults.LastCallTimeout)
		default:
			if optionTable[name] == nil && text == "" { // it may be the rest of a password
				return rendezvous.Errorf(rendezvous.CodeInvalid, "an option of the endpoint is not known, and has no value; there are %s", strings.Join(queryNames(), ", "))
			}
			if optionTable[name] == nil {
				return rendezvous.Errorf(rendezvous.CodeInvalid, "the endpoint's option %q is not known; there are %s", name, strings.Join(queryNames(), ", "))
			}
			if old, ok := options[name]; ok && old != text {
				if name == "password" {
					text, old = "one", "another"
				}
				return contradiction(name, text, old)
			}
			options[name] = text
		}
		if err != nil {
			return err
		}
	}
	_, ours := options["key_prefix"]
	if _, theirs := options["etcd_prefix"]; e.RunID != "" && !ours && !theirs {
		options["etcd_prefix"] = urlPrefix
	}
	p.BackendOptions = options
	return nil
}

// ownOptions are those of an endpoint that are no options of an etcd.
var ownOptions = []string{"min_workers", "max_workers", "timeout", "last_call_timeout"}

func queryNames() []string {
	return append(slices.Clone(ownOptions), slices.Sorted(maps.Keys(optionTable))...)
}

func contradiction(what string, url, given any) error {
	return rendezvous.Errorf(rendezvous.CodeInvalid, "%s is %v in the endpoint, but %v is given beside it", what, url, given)
}

func applyNumber(name, text string, to *int, given bool) error {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 1 {
		return rendezvous.Errorf(rendezvous.CodeInvalid, "the endpoint says %s=%q: expected a whole number, 1 or more", name, text)
	}
	if given && *to != int(n) {
		return contradiction(name, n, *to)
	}
	*to = int(n)
	return nil
}

func applySeconds(name, text string, to *time.Duration, byDefault time.Duration) error {
	d, expected := parseSeconds(text)
	if expected == "" && d <= 0 {
		expected = "more than 0 seconds"
	}
	if expected != "" {
		return rendezvous.Errorf(rendezvous.CodeInvalid, "the endpoint says %s=%q: expected %s", name, text, expected)
	}
	if *to != byDefault && *to != d {
		return contradiction(name, d, *to)
	}
	*to = d
	return nil
}

// parseSeconds reads decimal seconds; expected says what is wrong.
func parseSeconds(text string) (d time.Duration, expected string) {
	d, err := time.ParseDuration(strings.TrimSpace(text) + "s")
	if err != nil || strings.Trim(strings.TrimSpace(text), "0123456789.-") != "" {
		return 0, "seconds, such as 30 or 0.5"
	}
	return d, ""
}

// optionTable holds for each option of an etcd how it is set: the options of torch's backend etcd-v2
// and those of its older handler. A setter returns what it expects, "" if the value is right.
var optionTable = map[string]func(c *Config, value string) (expected string){
	"protocol":     setProtocol,
	"ssl_cert":     setText(func(c *Config) *string { return &c.Cert }),
	"ssl_cert_key": setText(func(c *Config) *string { return &c.Key }),
	"ca_cert":      setText(func(c *Config) *string { return &c.CACert }),
	"cert":         setText(func(c *Config) *string { return &c.Cert }),
	"key":          setText(func(c *Config) *string { return &c.Key }),
	"cacert":       setText(func(c *Config) *string { return &c.CACert }),
	"user":         setText(func(c *Config) *string { return &c.User }),
	"password":     setText(func(c *Config) *string { return &c.Password }),

	"password_file": setText(func(c *Config) *string { return &c.PasswordFile }),

	"key_prefix":  setPrefix,
	"etcd_prefix": setPrefix,
	"ttl":         setTTL,
}

func setText(field func(*Config) *string) func(*Config, string) string {
	return func(c *Config, value string) string {
		*field(c) = value
		return ""
	}
}

func setProtocol(c *Config, value string) string {
	switch protocol := strings.ToLower(strings.TrimSpace(value)); {
	case protocol == "https":
		c.TLS = true
	case protocol == "http" && c.TLS:
		return "https, as the endpoint begins with etcds://"
	case protocol != "http":
		return "http or https"
	}
	return ""
}

func setPrefix(c *Config, value string) string {
	c.Prefix = strings.TrimRight(value, "/")
	return ""
}

func setTTL(c *Config, value string) (expected string) {
	c.TTL, expected = parseSeconds(value)
	if c.TTL <= 0 {
		c.TTL = 0 // the default, as in the reference
	}
	return expected
}

// Config returns how to reach the etcd, with the options that are given. An unknown
// one, or a malformed value, is rendezvous.ErrInvalid.
func (e *Endpoint) Config(options map[string]string) (Config, error) {
	c := Config{Endpoints: e.Hosts.Texts(), TLS: e.TLS, User: e.User, Password: e.Password, Prefix: DefaultPrefix}
	for _, name := range slices.Sorted(maps.Keys(options)) {
		set := optionTable[name]
		if set == nil {
			return Config{}, rendezvous.Errorf(rendezvous.CodeInvalid, "etcd has no option %q; there are %s",
				name, strings.Join(slices.Sorted(maps.Keys(optionTable)), ", "))
		}
		if expected := set(&c, options[name]); expected != "" {
			return Config{}, rendezvous.Errorf(rendezvous.CodeInvalid, "option %s=%q: expected %s", name, options[name], expected)
		}
	}
	return c, nil
}
