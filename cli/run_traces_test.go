package cli

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"rallypoint/internal/testkit"
)

// TestNothingIsLeft: a job whose options name no place for files leaves none, however it ends, but what
// its script has written.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"success": "[ $LOCAL_RANK = 1 ] || echo weights >checkpoint",
		"failure": "[ $LOCAL_RANK = 0 ] || exec sleep 60; echo weights >checkpoint; exit 3",
		"killed":  "[ $LOCAL_RANK = 0 ] || exec sleep 60; echo weights >checkpoint; kill -9 $$",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			for _, folder := range []string{"tmp", "work"} {
				testkit.Check(t, os.Mkdir(filepath.Join(home, folder), 0o700))
			}
			cmd := exec.CommandContext(testkit.Within(t, testkit.Patience), os.Args[0], "run", "--nnodes=1", "--nproc-per-node=2",
				"--rdzv-endpoint=127.0.0.1:0", "--max-restarts=1", "--no-python", "sh", "-c", script)
			cmd.Dir = filepath.Join(home, "work")
			cmd.Env = append(os.Environ(), testkit.EndAtOnce, asCommand+"=1", "HOME="+home, "TMPDIR="+filepath.Join(home, "tmp"), "XDG_RUNTIME_DIR="+filepath.Join(home, "tmp"))
			said, err := cmd.CombinedOutput()
			if (err == nil) != (name == "success") {
				t.Fatalf("%v: %s", err, said)
			}
			var left []string
			testkit.Check(t, filepath.WalkDir(home, func(path string, e fs.DirEntry, err error) error {
				if err == nil && !e.IsDir() || e.IsDir() && filepath.Dir(path) == filepath.Join(home, "tmp") {
					left = append(left, path)
				}
				return err
			}))
			if text, err := os.ReadFile(filepath.Join(home, "work", "checkpoint")); len(left) != 1 || err != nil || string(text) != "weights\n" {
				t.Errorf("left %q; the checkpoint: %q, %v", left, text, err)
			}
		})
	}
}
