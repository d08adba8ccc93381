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

// TestLoopbackLists: a list is this machine's only if each of its servers is.
func TestLoopbackLists(t *testing.T) {
	for text, want := range map[string]bool{"127.0.0.1:1,localhost:2": true, "127.0.0.1:1,10.0.0.1:2": false, "a,b": false, "": true} {
		if LoopbackEndpoint(text) != want {
			t.Errorf("%q: not %v", text, want)
		}
	}
}
