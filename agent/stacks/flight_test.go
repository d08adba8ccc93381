package stacks

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"rallypoint/internal/testkit"
)

func TestFlightRecord(t *testing.T) {
	dir := t.TempDir()
	began := time.Now().Add(-time.Minute)
	testkit.Check(t, os.MkdirAll(filepath.Join(dir, ".cache", "torch"), 0o700))
	for _, name := range []string{".cache/torch/comm_lib_trace_rank_1", "own_1", "old_1"} {
		testkit.Check(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	testkit.Check(t, os.Chtimes(filepath.Join(dir, "old_1"), began, began.Add(-time.Second)))
	testkit.Check(t, os.Symlink(filepath.Join(dir, "own_1"), filepath.Join(dir, "link_1")))
	for want, env := range map[string]map[string]string{
		".cache/torch/comm_lib_trace_rank_1": {"HOME": dir},
		"own_1":                              {"HOME": dir, "TORCH_FR_DUMP_TEMP_FILE": dir + "/own_", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": dir + "/old_"},
	} {
		getenv := func(name string) string { return env[name] }
		if got := FlightRecord(getenv, 1, began); got != filepath.Join(dir, want) {
			t.Errorf("%v: %q", env, got)
		}
		if got := FlightRecord(getenv, 2, began); got != "" {
			t.Errorf("%v: %q of another rank", env, got)
		}
	}
	for _, name := range []string{"old_", "link_", "none_"} {
		if got := FlightRecord(func(string) string { return dir + "/" + name }, 1, began); got != "" {
			t.Errorf("%q", got)
		}
	}
}
