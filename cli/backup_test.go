package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"rallypoint/core/control/journal"
)

// TestBackupOfARunningServer copies the directory of a server whose jobs go on, loses the
// directory and the server, and starts another one on the copy: the job keeps its round
// when nothing has happened since, and goes on to its end.
func TestBackupOfARunningServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	address := fmt.Sprintf("127.0.0.1:%d", quietPort(t))
	s := &serverProcess{args: []string{"serve", "--listen", address, "--data-dir", dir + "/data", "--log-level", "warn"}}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.kill() })
	h := newHarness(t)
	options := []string{"--nnodes=2", "--rdzv-endpoint=" + s.addr,
		"--rdzv-conf=lease_timeout=5,reconnect_grace=3,close_timeout=5,is_host=0"}
	nodes := []*nodeProcess{h.run(printPlacement, options...), h.run(printPlacement, options...)}
	round := h.readRound(2)[0].round

	for range 3 { // one replaces the other
		code, out, errs := execute(t, "admin", "backup", dir+"/data", dir+"/copy.db")
		if code != 0 || !strings.HasPrefix(out, "copied 1 run (") {
			t.Fatalf("backup: exit code %d, %q, %s", code, out, errs)
		}
	}
	if info, err := os.Stat(dir + "/copy.db"); err != nil || info.Mode() != 0o600 {
		t.Errorf("the copy: %v, %v", info, err)
	}
	if left, _ := filepath.Glob(dir + "/.rallypoint-backup-*"); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
	if _, err := os.Stat(filepath.Join(dir, "data", backupName)); err == nil {
		t.Error("the server's copy is left")
	}

	s.kill()
	if err := os.RemoveAll(dir + "/data"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir+"/restored", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir+"/copy.db", filepath.Join(dir, "restored", journal.FileName)); err != nil {
		t.Fatal(err)
	}
	s.args[4] = dir + "/restored"
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	code, out, errs := execute(t, "status", s.addr, "--json")
	if code != 0 || !strings.Contains(out, fmt.Sprintf(`"round": %d,`, round)) && !strings.Contains(out, fmt.Sprintf(`"round":%d,`, round)) {
		t.Errorf("status of the restored server: %d, %s%s", code, out, errs)
	}
	h.finish()
	for _, p := range nodes {
		p.expect(t, 0)
	}
}

// TestBackupWithoutAServer copies a directory that no server uses, and refuses what is no
// data directory or belongs to a process that makes no copy.
func TestBackupWithoutAServer(t *testing.T) {
	dir := t.TempDir()
	s := &serverProcess{args: []string{"serve", "--listen", "127.0.0.1:0", "--data-dir", dir + "/data", "--log-level", "warn"}}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	s.kill()
	if code, out, errs := execute(t, "admin", "backup", dir+"/data", dir+"/copy.db"); code != 0 || !strings.HasPrefix(out, "copied 0 runs (") {
		t.Errorf("exit code %d, %q, %s", code, out, errs)
	}
	for _, c := range []struct{ from, to, want string }{
		{dir + "/none", "x.db", "name that of its --data-dir"},
		{dir + "/data", dir + "/none/x.db", "no such file"},
	} {
		if code, _, errs := execute(t, "admin", "backup", c.from, c.to); code != 1 || !strings.Contains(errs, c.want) {
			t.Errorf("of %s: exit code %d, %s", c.from, code, errs)
		}
	}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	defer s.kill()
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := execute(t, "admin", "backup", dir+"/data", dir+"/copy.db", "--timeout", "50ms"); code != 1 || !strings.Contains(errs, "made no copy in") {
		t.Errorf("of a stopped server: exit code %d, %s", code, errs)
	}
}
