package main

import (
	"archive/zip"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var at = time.Unix(1700000000, 0).UTC()

func write(t *testing.T, name, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// TestTarIsTheSame: neither times, nor the order of creation, nor the umask are in it.
func TestTarIsTheSame(t *testing.T) {
	var archives [2]bytes.Buffer
	for i := range archives {
		folder := t.TempDir()
		names := []string{"b/two", "a"}
		mode := os.FileMode(0o644)
		if i == 1 {
			names, mode = []string{"a", "b/two"}, 0o600
		}
		for _, name := range names {
			write(t, filepath.Join(folder, name), name, mode)
		}
		write(t, filepath.Join(folder, "run"), "run", mode|0o100)
		if err := os.Chtimes(filepath.Join(folder, "a"), at, at.Add(time.Duration(i)*time.Hour)); err != nil {
			t.Fatal(err)
		}
		if err := writeTar(&archives[i], folder, "under", at); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(archives[0].Bytes(), archives[1].Bytes()) {
		t.Error("two folders of the same files give different archives")
	}
	link := t.TempDir()
	if err := os.Symlink("/etc/passwd", filepath.Join(link, "link")); err != nil {
		t.Fatal(err)
	}
	if err := writeTar(io.Discard, link, "", at); err == nil {
		t.Error("a link is taken")
	}
}

// TestWheelIsPackedAgain: what compressed it is no more to be seen; names, texts, modes and
// times are.
func TestWheelIsPackedAgain(t *testing.T) {
	var packed [2][]byte
	for i, method := range []uint16{zip.Store, zip.Deflate} {
		var old bytes.Buffer
		w := zip.NewWriter(&old)
		header := zip.FileHeader{Name: "rallypoint/rallypoint", Method: method, Modified: at}
		header.SetMode(0o755)
		entry, err := w.CreateHeader(&header)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(entry, strings.Repeat("text ", 1000)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(t.TempDir(), "a.whl")
		write(t, name, old.String(), 0o644)
		if err := packAgain(name); err != nil {
			t.Fatal(err)
		}
		if packed[i], err = os.ReadFile(name); err != nil {
			t.Fatal(err)
		}
		r, err := zip.NewReader(bytes.NewReader(packed[i]), int64(len(packed[i])))
		if err != nil {
			t.Fatal(err)
		}
		file := r.File[0]
		if len(r.File) != 1 || file.Name != header.Name || file.Mode() != 0o755 || !file.Modified.Equal(at) || file.UncompressedSize64 != 5000 {
			t.Errorf("%+v", file.FileHeader)
		}
	}
	if !bytes.Equal(packed[0], packed[1]) {
		t.Error("what compressed a wheel is seen in it")
	}
}

// TestLicencesOfThePage reads the page itself: rows of one module, of several with one
// licence, and of several with one each.
func TestLicencesOfThePage(t *testing.T) {
	licences, err := readLicences("../../DEPENDENCIES.md")
	if err != nil {
		t.Fatal(err)
	}
	for module, licence := range map[string]string{
		goModule:                               "BSD-3-Clause",
		"go.etcd.io/etcd/api/v3":               "Apache-2.0",
		"github.com/golang/protobuf":           "BSD-3-Clause",
		"go.yaml.in/yaml/v3":                   "MIT AND Apache-2.0",
		"github.com/coreos/go-systemd/v22":     "Apache-2.0",
		"google.golang.org/grpc":               "Apache-2.0",
		"github.com/clipperhouse/uax29/v2":     "MIT",
		"github.com/vmihailenco/msgpack/v5":    "BSD-2-Clause",
		"github.com/inconshreveable/mousetrap": "Apache-2.0",
	} {
		if licences[module] != licence {
			t.Errorf("%s: %q, not %q", module, licences[module], licence)
		}
	}
	if _, tools := licences["helm.sh/helm/v3"]; tools {
		t.Error("what is not linked is read, too")
	}
}
