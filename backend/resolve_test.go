package backend

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"rallypoint/core/rendezvous"
)

func TestResolve(t *testing.T) {
	for _, c := range []struct {
		name, endpoint, options string
		want, wantOptions       string
	}{
		{"", "h:1", "a=b", "h:1", "a=b"},
		{"rallypoint", " h:1 ", "", "h:1", ""},
		{"c10d", "file:///d", "", "file:///d", ""},
		{"rallypoint-file", "/d e", "", "file:///d%20e", ""},
		{"rallypoint-file", "FILE:///d", "", "FILE:///d", ""},
		{"", "/d", "store_type=File", "file:///d", ""},
		{"c10d", "file:///d", "store_type=file,target=2", "file:///d", "target=2"},
		{"c10d", "h:1", "store_type=file", "h:1", "store_type=file"}, // which SetOptions refuses
		{"rallypoint-etcd", "", "", "etcd://localhost", ""},
		{"etcd", "h1:2379,h2", "", "etcd://h1:2379,h2", ""},
		{"etcd-v2", "etcds://h", "timeout=3", "etcds://h", "timeout=3"},
		{"rallypoint-static", "h:1", "", "static://h:1", ""},
		{"static", "static://h:1", "rank=2,timeout=9", "static://h:1", "rank=2,timeout=9,node_rank=2,join_timeout=9"},
		{"rallypoint", "static://h:1", "rank=2,node_rank=1,timeout=0", "static://h:1", "rank=2,node_rank=1,timeout=0"},
	} {
		given := parse(c.options)
		before := maps.Clone(given)
		got, options, err := Resolve(c.name, c.endpoint, given)
		if err != nil || got != c.want || !maps.Equal(options, parse(c.wantOptions)) {
			t.Errorf("%s %q %s: %q, %v, %v", c.name, c.endpoint, c.options, got, options, err)
		}
		if !maps.Equal(before, given) {
			t.Errorf("%s %q %s: it changed the caller's options to %v", c.name, c.endpoint, c.options, given)
		}
	}
}

func parse(text string) map[string]string {
	options := make(map[string]string)
	for item := range strings.SplitSeq(text, ",") {
		if name, value, ok := strings.Cut(item, "="); ok {
			options[name] = value
		}
	}
	return options
}

func TestResolveRefuses(t *testing.T) {
	for _, c := range []struct{ name, endpoint, says string }{
		{"zookeeper", "h:1", `unknown backend "zookeeper"; there are rallypoint, `},
		{"rallypoint-file", "h:1", `"h:1" is not one of rallypoint-file: write file:///DIRECTORY`},
		{"rallypoint-file", "", "is not one of rallypoint-file"},
		{"etcd", "file:///d", "is not one of etcd: write etcd://HOST"},
		{"rallypoint-etcd", "https://user:secret@h", "is not one of rallypoint-etcd"},
		{"rallypoint-static", "", "host:port of its node 0, and it is missing"},
		{"static", "file:///d", "is not one of rallypoint-static: write HOST:PORT of node 0"},
	} {
		_, _, err := Resolve(c.name, c.endpoint, nil)
		if !errors.Is(err, rendezvous.ErrInvalid) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s %q: %v", c.name, c.endpoint, err)
		}
	}
}
