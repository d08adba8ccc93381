package backend

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

func TestResolve(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		name, endpoint, options string
		want, wantOptions       string
	}{
		{"", "h:1", "a=b", "h:1", "a=b"},
		{"rallypoint", " h:1 ", "", "h:1", ""},
		{"c10d", "file:///d", "", "file:///d", ""},
		{"rallypoint-file", "/d e", "", "file:///d%20e", ""},
		{"rallypoint-file", "FILE:///d", "", "FILE:///d", ""},
		{"", dir, "store_type=File", "file://" + dir, ""},
		{"c10d", "file://" + dir, "store_type=file,target=2", "file://" + dir, "target=2"},
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

// TestFileOfTorch: store_type=file names a file, which may be there or not.
func TestFileOfTorch(t *testing.T) {
	dir := t.TempDir()
	existing, absent := filepath.Join(dir, "a file"), filepath.Join(dir, "absent")
	testkit.Check(t, os.WriteFile(existing, nil, 0o600))
	options := map[string]string{"store_type": "file"}
	for _, path := range []string{existing, absent, existing} { // the second node finds what the first has made
		got, _, err := Resolve("c10d", path, options)
		testkit.Check(t, err)
		at, err := directoryOf(got)
		testkit.Check(t, err)
		testkit.Equal(t, string(at), path+".rallypoint")
		info, err := os.Stat(string(at))
		testkit.Check(t, err)
		testkit.Equal(t, info.Mode(), fs.ModeDir|0o700)
	}
	foreign := filepath.Join(dir, "foreign")
	testkit.Check(t, os.Mkdir(foreign+".rallypoint", 0o700))
	testkit.Check(t, os.Chmod(foreign+".rallypoint", 0o777))
	linked := filepath.Join(dir, "linked")
	testkit.Check(t, os.Symlink(dir, linked+".rallypoint"))
	for path, says := range map[string]string{
		filepath.Join(dir, "none", "f"): "all nodes have to share its folder", foreign: "only this user can write", linked: "only this user can write",
	} {
		if _, _, err := Resolve("", path, options); !errors.Is(err, rendezvous.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", path, err)
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
		{"zookeeper", "h:1", `unknown backend "zookeeper"; choose one of rallypoint, `},
		{"rallypoint-file", "h:1", `"h:1" is not one of rallypoint-file: write file:///DIRECTORY`},
		{"rallypoint-file", "", "is not one of rallypoint-file"},
		{"etcd", "file:///d", "is not one of etcd: write etcd://HOST"},
		{"rallypoint-etcd", "https://user:secret@h", "is not one of rallypoint-etcd"},
		{"rallypoint-static", "", "a static job needs host:port of its node 0"},
		{"static", "file:///d", "is not one of rallypoint-static: write HOST:PORT of node 0"},
	} {
		_, _, err := Resolve(c.name, c.endpoint, nil)
		if !errors.Is(err, rendezvous.ErrInvalid) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s %q: %v", c.name, c.endpoint, err)
		}
	}
}
