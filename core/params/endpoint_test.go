package params

import (
	"errors"
	"strings"
	"testing"

	"rallypoint/core/rendezvous"
)

func TestParseEndpoint(t *testing.T) {
	const standard = 29400
	for _, c := range []struct {
		endpoint string
		host     string
		port     int
	}{
		// R8
		{"", "localhost", standard},
		{"  \t", "localhost", standard},
		{" host0 ", "host0", standard},
		// R9
		{"host0", "host0", standard},
		{"host0:1234", "host0", 1234},
		{"[::1]", "::1", standard},
		{"[::1]:1234", "::1", 1234},
		{"[host0]:1234", "host0", 1234},
		{"[2001:db8::1]:29400", "2001:db8::1", 29400},
		{"10.0.0.1:29400", "10.0.0.1", 29400},
		// R10
		{"h:00080", "h", 80},
		{"h:0", "h", 0},
		{"h:65535", "h", 65535},
		// R11
		{"é", "é", standard},
		{".", ".", standard},
		{"-", "-", standard},
		{"my_host-0.example.com:1", "my_host-0.example.com", 1},
		// R12
		{"::1", "::1", standard},
		{"::", "::", standard},
		{"::1:29400", "::1", 29400}, // five digits are no group of an address
		{"2001:db8::1", "2001:db8::1", standard},
		{"1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8", standard},
		{"1:2:3:4:5:6:7:8:29400", "1:2:3:4:5:6:7:8", 29400},
		{"::ffff:10.0.0.1", "::ffff:10.0.0.1", standard},
		{"fe80::1%eth0", "fe80::1%eth0", standard},
		{"[fe80::1%eth0]", "fe80::1%eth0", standard},
		{"[fe80::1%eth0]:29400", "fe80::1%eth0", 29400},
		{"fe80::1%eth0:29401", "fe80::1%eth0", 29401},
		{"[fe80::1%br-12ab.3]:1", "fe80::1%br-12ab.3", 1},
	} {
		at, err := ParseEndpoint(c.endpoint, standard)
		if err != nil || at.Host != c.host || at.Port != c.port {
			t.Errorf("ParseEndpoint(%q) = %+v, %v; want %q, %d", c.endpoint, at, err, c.host, c.port)
		}
	}
}

func TestParseEndpointRefuses(t *testing.T) {
	for _, c := range []struct{ endpoint, says string }{
		{"h:", "port"},
		{"h:x", "port"},
		{"h:-1", "port"},
		{"h:+1", "port"},
		{"h:123456", "port"},
		{"h:65536", "port"},
		{"h: 1", "port"},
		{"h:１", "port"}, // digits, but not ASCII ones
		{"~:x", "port"}, // the port is checked before the host
		{"~", "host"},
		{"a b", "host"},
		{"tcp://h:1", "host"},
		{"tcp://h", "port"},
		{"[]", "host"},
		{"[", "host"},
		{"[]:1", "host"},
		{":29400", "host"},
		{"[a]:b]", "host"},
		{"host%eth0", "host"},
		{"[host%eth0]:1", "host"},
		{"fe80::1%", "port"}, // no zone, so what follows the last colon is the port
		{"h\xff", "host"},
	} {
		at, err := ParseEndpoint(c.endpoint, 29400)
		if !errors.Is(err, rendezvous.ErrInvalid) {
			t.Errorf("ParseEndpoint(%q) = %+v, %v; want ErrInvalid", c.endpoint, at, err)
			continue
		}
		if !strings.Contains(err.Error(), "its "+c.says) {
			t.Errorf("ParseEndpoint(%q): %v; want a word about its %s", c.endpoint, err, c.says)
		}
	}
}

func TestParseEndpointWithoutDefaultPort(t *testing.T) {
	if _, err := ParseEndpoint("host0", -1); !errors.Is(err, rendezvous.ErrInvalid) || !strings.Contains(err.Error(), `"host0"`) {
		t.Errorf("got %v; want ErrInvalid that quotes the endpoint", err)
	}
	if at, err := ParseEndpoint("host0:1", -1); err != nil || at.String() != "host0:1" {
		t.Errorf("got %v, %v", at, err)
	}
}

func FuzzParseEndpoint(f *testing.F) {
	for _, s := range []string{"", "h:1", "[::1]:2", "fe80::1%eth0:3", "[", ":"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, endpoint string) {
		at, err := ParseEndpoint(endpoint, 29400)
		switch {
		case err != nil && (at != HostPort{} || !errors.Is(err, rendezvous.ErrInvalid)):
			t.Errorf("%q: %+v beside %v", endpoint, at, err)
		case err == nil && (at.Host == "" || at.Port < 0 || at.Port > 65535):
			t.Errorf("%q: %+v", endpoint, at)
		}
	})
}
