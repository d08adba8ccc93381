package etcdclient

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

func TestParseEndpoint(t *testing.T) {
	for text, want := range map[string]string{
		"etcd://h1":                          "etcd://h1:2379 ",
		" ETCD://h1:2379,h2:4001 ":           "etcd://h1:2379,h2:4001 ",
		"etcds://[::1]:1,10.0.0.1":           "etcds://[::1]:1,10.0.0.1:2379 ",
		"etcd://u:p%40:x@h/job/1?ttl=5&a=":   "etcd://h:2379 u p@:x job/1 a= ttl=5",
		"etcd://localhost:2379/1234?timeout": "etcd://localhost:2379   1234 timeout=",
	} {
		e, err := ParseEndpoint(text)
		testkit.Check(t, err)
		have := e.String() + " " + strings.TrimSpace(fmt.Sprint(e.User, " ", e.Password, " ", e.RunID))
		if e.RunID != "" && e.User == "" {
			have = e.String() + "   " + e.RunID
		}
		if len(e.Query) > 0 {
			have += " " + strings.NewReplacer("map[", "", "]", "", ":", "=").Replace(fmt.Sprint(e.Query))
		}
		testkit.Equal(t, have, want)
	}
	for _, text := range []string{
		"", "h1:2379", "http://h1", "etcd://", "etcd:///job", "etcd://h1,", "etcd://h1:99999", "etcd://h1:0", "etcd://h 1", "etcd://:secret@h",
		"etcd://u:secret%zz@h", "etcd://u:secret@h:x", "etcd://h/%zz", "etcd://h?a=1&a=2", "etcd://h?%zz",
	} {
		_, err := ParseEndpoint(text)
		if !errors.Is(err, rendezvous.ErrInvalid) || !strings.Contains(err.Error(), "etcd://HOST") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// No part of a password is in an error, in whatever place it stands.
func TestErrorsHidePasswords(t *testing.T) {
	for _, password := range []string{
		"s3cret", "s3/cret", "s3?cret", "s3&cret", "s3#cret", "s3@cret", "s3:cret", "s3%cret", "s3%zzcret", "s3,cret", "s3;cret", "s3 cret",
		"1/s3cret", "1?s3cret", "1/s3?cret=x&a=s3cret", "s3://cret",
	} {
		for _, form := range []string{
			"etcd://u:%s@h", "etcd://u:%s@h:x", "etcd://u:%s@h:0,", "etcd:u:%s@h", "etcd:/u:%s@h", "u:%s@h", "http://u:%s@h", "etcd://u:%s", "etcd://%s@h,,",
			"etcd://h?user=u&password=%s", "etcd://h?password=%s&password=%s", "etcd://h/job?password=%s&min_worker=1", "etcd://h?user=u&pasword=%s@x",
		} {
			text := strings.ReplaceAll(form, "%s", password)
			e, err := ParseEndpoint(text)
			if err == nil {
				p := params.Default()
				p.BackendOptions = map[string]string{"password": "another", "user": "u"}
				if err = e.Apply(&p); err == nil {
					_, err = e.Config(p.BackendOptions)
				}
			}
			for _, part := range []string{"s3", "cret"} {
				if err != nil && strings.Contains(err.Error(), part) {
					t.Errorf("%s: %v", text, err)
				}
			}
			if _, err := params.ParseEndpoint(text, 1); err == nil || strings.ContainsAny(text, "@?") && strings.Contains(err.Error(), "cret") {
				t.Errorf("as a host, %s: %v", text, err)
			}
		}
	}
}

// The older handler's URL says everything itself; other settings must agree with it.
func TestEndpointOfTheOlderHandler(t *testing.T) {
	const text = "etcd://h:2379/job?min_workers=1&max_workers=3&timeout=60&last_call_timeout=0.5&etcd_prefix=/torchelastic/p2p/"
	nodeParams := func(change func(*params.Params)) params.Params {
		p := params.Default()
		p.RunID, p.Min, p.Max = "none", 1, 1
		change(&p)
		return p
	}
	for name, change := range map[string]func(*params.Params){
		"nothing": func(*params.Params) {},
		"the same": func(p *params.Params) {
			p.RunID, p.Min, p.Max, p.JoinTimeout, p.LastCallTimeout = "job", 1, 3, time.Minute, time.Second/2
			p.BackendOptions = map[string]string{"etcd_prefix": "/torchelastic/p2p/"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := ParseEndpoint(text)
			testkit.Check(t, err)
			p := nodeParams(change)
			for range 2 { // applying it again changes nothing
				testkit.Check(t, e.Apply(&p))
				testkit.Equal(t, fmt.Sprint(p.RunID, p.Min, p.Max, p.JoinTimeout, p.LastCallTimeout), "job1 3 1m0s 500ms")
			}
			c, err := e.Config(p.BackendOptions)
			testkit.Check(t, err)
			testkit.Equal(t, c.Prefix, "/torchelastic/p2p")
		})
	}
	for name, change := range map[string]func(*params.Params){
		"run id":            func(p *params.Params) { p.RunID = "other" },
		"max_workers":       func(p *params.Params) { p.Max = 4 },
		"timeout":           func(p *params.Params) { p.JoinTimeout = time.Second },
		"last_call_timeout": func(p *params.Params) { p.LastCallTimeout = time.Second },
		"etcd_prefix":       func(p *params.Params) { p.BackendOptions = map[string]string{"etcd_prefix": "/x"} },
	} {
		e, _ := ParseEndpoint(text)
		p := nodeParams(change)
		if err := e.Apply(&p); !errors.Is(err, rendezvous.ErrInvalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for query, want := range map[string]string{
		"min_workers=0": "1 or more", "max_workers=x": "1 or more", "timeout=0": "more than 0", "timeout=1h": "seconds",
		"ttl=x": "seconds", "min_worker=1": "min_workers", "protocol=ftp": "http or https",
	} {
		e, err := ParseEndpoint("etcd://h/job?" + query)
		testkit.Check(t, err)
		p := nodeParams(func(*params.Params) {})
		err = e.Apply(&p)
		if err == nil {
			_, err = e.Config(p.BackendOptions)
		}
		if !errors.Is(err, rendezvous.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", query, err)
		}
	}
}

// An endpoint with a run id is the older handler's, and so is its prefix, unless one is given.
func TestPrefixOfTheOlderHandler(t *testing.T) {
	for _, c := range []struct {
		endpoint string
		options  map[string]string
		want     string
	}{
		{"etcd://h/job?min_workers=1&max_workers=3", nil, "/torchelastic/p2p"},
		{"etcd://h/job", map[string]string{"ttl": "5"}, "/torchelastic/p2p"},
		{"etcd://h/job?key_prefix=", nil, ""},
		{"etcd://h/job?etcd_prefix=/a/", nil, "/a"},
		{"etcd://h/job", map[string]string{"key_prefix": "/b"}, "/b"},
		{"etcd://h?ttl=5", nil, DefaultPrefix},
		{"etcd://h", nil, DefaultPrefix},
	} {
		e, err := ParseEndpoint(c.endpoint)
		testkit.Check(t, err)
		p := params.Default()
		p.RunID, p.Min, p.Max, p.BackendOptions = "none", 1, 1, c.options
		for range 2 { // applying it again changes nothing
			testkit.Check(t, e.Apply(&p))
		}
		config, err := e.Config(p.BackendOptions)
		testkit.Check(t, err)
		if config.Prefix != c.want {
			t.Errorf("%s, %v: prefix %q, want %q", c.endpoint, c.options, config.Prefix, c.want)
		}
	}
}

func TestEndpointOptions(t *testing.T) {
	e, err := ParseEndpoint("etcd://h")
	testkit.Check(t, err)
	c, err := e.Config(map[string]string{
		"protocol": " HTTPS", "ssl_cert": "/c", "ssl_cert_key": "/k", "ca_cert": "/a", "user": "u", "password": "p", "key_prefix": "/x", "ttl": "90",
	})
	testkit.Check(t, err)
	testkit.Equal(t, fmt.Sprint(c.TLS, c.Cert, c.Key, c.CACert, c.User, c.Password, c.Prefix, c.TTL), "true/c/k/aup/x1m30s")
	c, err = e.Config(map[string]string{"ttl": "-1"})
	testkit.Check(t, err)
	testkit.Equal(t, c.TTL, 0)
	testkit.Equal(t, c.Prefix, DefaultPrefix)
	e.TLS = true
	if _, err := e.Config(map[string]string{"protocol": "http"}); !errors.Is(err, rendezvous.ErrInvalid) {
		t.Fatal(err)
	}
	if _, err := e.Config(map[string]string{"ssl_certificate": "x"}); err == nil || !strings.Contains(err.Error(), "ssl_cert_key") {
		t.Fatal(err)
	}
}
