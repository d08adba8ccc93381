package journal

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestForeignDirectory has the directory or its file belong to another user, or be such
// that others may write there.
func TestForeignDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	give := func(to int, names ...string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			for _, name := range names {
				if err := os.Chown(filepath.Join(dir, name), to, to); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	mode := func(mode os.FileMode, name string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, test := range map[string]struct {
		change func(t *testing.T, dir string)
		want   string // in the error; "": none
	}{
		"another's directory":      {give(12345, "."), "belongs to user 12345, this process to user 0"},
		"another's file":           {give(12345, FileName), "belongs to user 12345"},
		"group-writable directory": {mode(0o770, "."), "may be written to by others (mode 0770)"},
		"sticky directory":         {mode(0o777|os.ModeSticky, "."), "may be written to by others (mode 0777)"},
		"world-writable file":      {mode(0o602, FileName), "may be written to by others (mode 0602)"},
		"readable":                 {mode(0o755, "."), ""},
	} {
		dir := t.TempDir()
		if err := open(t, dir).Close(); err != nil {
			t.Fatal(err)
		}
		test.change(t, dir)
		j, err := Open(dir, Options{})
		if err == nil {
			j.Close()
		}
		if test.want == "" && err != nil ||
			test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "--data-dir")) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
		if found, err := filepath.Glob(filepath.Join(dir, "new-*")); err != nil || len(found) > 0 {
			t.Errorf("%s: left %v, %v", name, found, err)
		}
	}
}
