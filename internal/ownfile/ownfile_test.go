package ownfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"rallypoint/internal/testkit"
)

func TestOpenedAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	f := testkit.Must(Create(path, []byte("text")))(t)
	if _, err := Create(path, nil); !errors.Is(err, fs.ErrExist) {
		t.Errorf("made twice: %v", err)
	}
	if info := testkit.Must(os.Stat(path))(t); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	file := testkit.Must(f.Open())(t)
	_ = testkit.Must(file.WriteAt([]byte("T"), 0))(t)
	if err := file.Close(); err != nil {
		t.Error(err)
	}
	if text := testkit.Must(os.ReadFile(path))(t); string(text) != "Text" {
		t.Errorf("it holds %q", text)
	}
	f.Remove()
	if _, err := f.Open(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("removed: %v", err)
	}
}

// TestReplaced puts something else where the file was: a write must not reach it.
func TestReplaced(t *testing.T) {
	for name, replace := range map[string]func(path, other string) error{
		"another file": func(path, other string) error { return os.Rename(other, path) },
		"hard link":    func(path, other string) error { return os.Link(other, path) },
		"link":         func(path, other string) error { return os.Symlink(other, path) },
		"FIFO":         func(path, _ string) error { return unix.Mkfifo(path, 0o600) },
		"directory":    func(path, _ string) error { return os.Mkdir(path, 0o700) },
		"nothing":      func(string, string) error { return nil },
	} {
		dir := t.TempDir()
		other := filepath.Join(dir, "other")
		if err := os.WriteFile(other, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		f := testkit.Must(Create(filepath.Join(dir, "file"), nil))(t)
		held := testkit.Must(os.Open(f.Path()))(t) // else its number may be given to what replaces it
		f.Remove()
		if err := replace(f.Path(), other); err != nil {
			t.Fatal(err)
		}
		if file, err := f.Open(); err == nil {
			t.Errorf("%s: opened", name)
			_ = file.Close()
		}
		_ = held.Close()
	}
}
