package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"rallypoint/core/control/journal"
)

// TestBackupOfARunningServer copies the directory of a server whose jobs continue, loses the
// directory and the server, and starts another one on the copy: the job keeps its round
// when nothing has happened since, and continues to its end.
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

// TestBackupAsksTheHolder has a lock name a process that does not have it: nothing is sent
// there, which would end it.
func TestBackupAsksTheHolder(t *testing.T) {
	dir := t.TempDir()
	s := &serverProcess{args: []string{"serve", "--listen", "127.0.0.1:0", "--data-dir", dir + "/data", "--log-level", "warn"}}
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	defer s.kill()
	bystander := exec.Command("sleep", "1000")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer bystander.Wait()
	defer bystander.Process.Kill()
	lock := filepath.Join(dir, "data", "lock")
	backup := func(says string) {
		t.Helper()
		if code, _, errs := execute(t, "admin", "backup", dir+"/data", dir+"/copy.db", "--timeout", "5s"); code != 1 || !strings.Contains(errs, says) {
			t.Errorf("exit code %d, %s; expected %q", code, errs, says)
		}
		var status syscall.WaitStatus
		if ended, err := syscall.Wait4(bystander.Process.Pid, &status, syscall.WNOHANG, nil); ended != 0 {
			t.Fatalf("the process that the lock names has ended: %v, %v", status, err)
		}
	}
	if err := os.WriteFile(lock, fmt.Appendf(nil, "pid %d\n", bystander.Process.Pid), 0o600); err != nil {
		t.Fatal(err)
	}
	backup("not by process")
	if err := os.Chmod(dir+"/data", 0o770); err != nil {
		t.Fatal(err)
	}
	backup("may be written to by others")
	if os.Geteuid() != 0 {
		t.Skip("not root: no other users' directories")
	}
	// The server is root's; the directory now another user's, who can write what he likes.
	if err := errors.Join(os.Chmod(dir+"/data", 0o700), os.Chown(dir+"/data", 65533, 65533),
		os.WriteFile(lock, fmt.Appendf(nil, "pid %d\n", s.cmd.Process.Pid), 0o600)); err != nil {
		t.Fatal(err)
	}
	backup("such a process is not asked")
}

// TestBackupFetchesAFile has something else in the place of the server's copy.
func TestBackupFetchesAFile(t *testing.T) {
	dir := t.TempDir()
	made := filepath.Join(dir, backupName)
	for name, make := range map[string]func() error{
		"FIFO": func() error { return unix.Mkfifo(made, 0o600) },
		"link": func() error { return os.Symlink("/dev/zero", made) },
	} {
		if err := make(); err != nil {
			t.Fatal(err)
		}
		if err := fetchBackup(t.Context(), made, dir+"/"+name); err == nil || !strings.Contains(err.Error(), made) {
			t.Errorf("%s: %v", name, err)
		}
		_ = os.Remove(made)
	}
	if err := os.WriteFile(made, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := fetchBackup(t.Context(), made, dir+"/copy"); err != nil {
		t.Error(err)
	}
	late, cancel := context.WithCancel(t.Context())
	cancel()
	if err := fetchBackup(late, made, dir+"/late"); !errors.Is(err, context.Canceled) {
		t.Errorf("after the time-out: %v", err)
	}
	if os.Geteuid() != 0 {
		t.Skip("not root: no other users' directories")
	}
	if err := os.Chown(dir, 65533, 65533); err != nil {
		t.Fatal(err)
	}
	if err := fetchBackup(t.Context(), made, dir+"/foreign"); err == nil || !strings.Contains(err.Error(), "belongs to user 0, its directory to user 65533") {
		t.Errorf("of root's file in another user's directory: %v", err)
	}
}
