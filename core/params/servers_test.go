package params

import (
	"errors"
	"strings"
	"testing"

	"rallypoint/core/rendezvous"
)

// TestParseServers: an endpoint may be a list, each part as a single one has it.
func TestParseServers(t *testing.T) {
	for text, want := range map[string]string{
		"a":                           "a:29400",
		"":                            "localhost:29400",
		"a:1,b,[::1]:3":               "a:1,b:29400,[::1]:3",
		" a:1 , b:2 ":                 "a:1,b:2",
		"10.0.0.1,10.0.0.2:5,fd00::1": "10.0.0.1:29400,10.0.0.2:5,[fd00::1]:29400",
	} {
		list, err := ParseServers(text, DefaultPort)
		if err != nil || list.String() != want {
			t.Errorf("%q: %v, %v", text, list, err)
		}
	}
	for text, want := range map[string]string{
		"a,":                "is empty",
		",":                 "is empty",
		"a:1,b:0":           "needs a port",
		"a:1,b,a:1":         "twice",
		"a,b,c,d,e,f":       "more than 5",
		"a:x,b":             "port",
		"a,user:secret@b":   "no user",
		"a:1,b:2?token=abc": "no user",
	} {
		_, err := ParseServers(text, DefaultPort)
		if !errors.Is(err, rendezvous.ErrInvalid) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestLoopback: a list is this machine's only if each of its servers is.
func TestLoopback(t *testing.T) {
	for text, want := range map[string]bool{
		"": true, "localhost": true, "LOCALHOST.:1": true, "a.localhost": true, "127.3.2.1:5": true, "[::1]:5": true, "::1": true,
		"::ffff:127.0.0.1": true, "host0": false, "10.0.0.1": false, "0.0.0.0:1": false,
		"127.0.0.1:1,localhost:2": true, "127.0.0.1:1,10.0.0.1:2": false, "a,b": false,
	} {
		if s, err := ParseServers(text, DefaultPort); err != nil || s.Loopback() != want {
			t.Errorf("%q: not %v, %v", text, want, err)
		}
	}
	if Servers(nil).Loopback() {
		t.Error("where no server is known, the machine is taken for this one")
	}
}
