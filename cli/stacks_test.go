package cli

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"rallypoint/backend"
	"rallypoint/core/control"
	"rallypoint/internal/testkit"
)

// hangingRank is a job of Python in which rank 3 waits for its data, and all others for it.
const hangingRank = `
exec(open(%q).read())
register()
import os, time
def data_wait():
    open(os.environ["SAY"], "w").write("up\n")
    time.sleep(1e6)
def all_reduce():
    open(os.environ["SAY"], "w").write("up\n")
    time.sleep(1e6)
data_wait() if os.environ["RANK"] == "3" else all_reduce()
`

// askedPython returns a Python whose workers can be asked for their stacks, and the file by which
// a script has itself asked; it skips the test if there is none.
func askedPython(t *testing.T) (python, register string) {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip(err)
	}
	if exec.Command(python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))").Run() != nil {
		t.Skip("python3 is older than 3.11: it is not asked")
	}
	register, err = filepath.Abs("../python/rallypoint/_launch/stacks.py")
	testkit.Check(t, err)
	return python, register
}

// TestStacksOfHangingJob: of eight workers on two nodes the one that hangs is named with its line.
func TestStacksOfHangingJob(t *testing.T) {
	t.Parallel()
	python, register := askedPython(t)
	script := filepath.Join(t.TempDir(), "train.py")
	testkit.WriteFile(t, script, []byte(fmt.Sprintf(hangingRank, register)))
	h := newHarness(t)
	options := elastic(t, "2", "--nproc-per-node=4")
	endpoint := strings.TrimPrefix(options[1], "--rdzv-endpoint=")
	run := "exec " + python + " " + script
	nodes := []*nodeProcess{h.run(run, options...), h.run(run, options...)}
	for range 8 {
		testkit.Equal(t, h.readLine(), "up")
	}
	var s backend.Stacks
	testkit.Eventually(t, "all workers wait", func() bool { // one may be between its line and the pause
		code, stdout, stderr := execute(t, "stacks", endpoint, "--json")
		if code != 0 {
			t.Fatal(stderr)
		}
		testkit.Check(t, json.Unmarshal([]byte(stdout), &s))
		return slices.Equal(s.Suspects, []int{3})
	})
	if s.Schema != 1 || s.Nodes != 2 || s.Ranks != 8 || len(s.Silent) != 0 || len(s.Groups) != 2 || s.Groups[0].Threads[0].Frames[0].Function != "data_wait" {
		t.Errorf("%+v", s)
	}
	code, stdout, stderr := execute(t, "stacks", endpoint)
	if code != 0 || !strings.HasPrefix(stdout, "run \"none\", round 1: 8 ranks on 2 nodes\nrank 3: data_wait ("+script+":7); most ranks (7 of 8): all_reduce (") ||
		!strings.Contains(stdout, "\nrank 3 (suspect)\n  > data_wait  "+script+":7\n") || !strings.Contains(stdout, "\nranks 0-2, 4-7\n  > all_reduce  ") {
		t.Errorf("code %d: %s%s", code, stdout, stderr)
	}
	code, stdout, stderr = execute(t, "status", endpoint, "--workers")
	_, workers, found := strings.Cut(stdout, "\nWorkers\n")
	rows := strings.Split(workers, "\n")
	if code != 0 || !found || len(rows) != 10 || !strings.HasPrefix(rows[0], "NODE") {
		t.Fatalf("code %d: %s%s", code, stdout, stderr)
	}
	for rank, w := range s.Workers {
		function := "all_reduce ("
		if rank == 3 {
			function = "data_wait ("
		}
		if row := rows[1+rank]; !strings.Contains(row, fmt.Sprint(w.Pid)) || !strings.Contains(row, w.Node) || !strings.Contains(row, function) {
			t.Errorf("rank %d: %s", rank, row)
		}
	}
	if code, _, stderr := execute(t, "status", endpoint, "--workers", "--watch"); code == 0 || !strings.Contains(stderr, "stacks --json") {
		t.Errorf("code %d: %s", code, stderr)
	}
	for _, p := range nodes {
		testkit.Check(t, p.Process.Kill())
		p.end()
	}
}

// uninterruptibleRank is a job of Python in which rank 3 starts a program that is not executed before
// someone writes into a pipe: until then it is in uninterruptible sleep.
const uninterruptibleRank = `
exec(open(%q).read())
register()
import os, time
open(os.environ["SAY"], "w").write("up\n")
if os.environ["RANK"] == "3":
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, %q, os.O_RDONLY, 0)])
else:
    time.sleep(1e6)
`

// TestStacksOfUninterruptibleWorker: a worker in uninterruptible sleep is the suspect, and the stacks
// and the status have that state.
func TestStacksOfUninterruptibleWorker(t *testing.T) {
	t.Parallel()
	python, register := askedPython(t)
	folder := t.TempDir()
	script, pipe := filepath.Join(folder, "train.py"), filepath.Join(folder, "pipe")
	testkit.Check(t, unix.Mkfifo(pipe, 0o600))
	testkit.WriteFile(t, script, []byte(fmt.Sprintf(uninterruptibleRank, register, pipe)))
	h := newHarness(t)
	options := elastic(t, "1", "--nproc-per-node=4")
	endpoint := strings.TrimPrefix(options[1], "--rdzv-endpoint=")
	node := h.run("exec "+python+" "+script, options...)
	for range 4 {
		testkit.Equal(t, h.readLine(), "up")
	}
	const state = "in uninterruptible sleep (D)"
	testkit.Eventually(t, "rank 3 is shown with its state", func() bool {
		_, stdout, _ := execute(t, "stacks", endpoint)
		return strings.Contains(stdout, "\nrank 3 (suspect)\n  "+state) && strings.Contains(stdout, "(no stack: it did not answer in time)\n")
	})
	if _, stdout, _ := execute(t, "status", endpoint, "--workers"); strings.Count(stdout, state) == 0 {
		t.Error(stdout)
	}
	release := testkit.Must(os.OpenFile(pipe, os.O_WRONLY, 0))(t)
	testkit.Check(t, release.Close())
	testkit.Check(t, node.Process.Kill())
	node.end()
}

// TestStacksRefused says what is wrong, and what to do.
func TestStacksRefused(t *testing.T) {
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	s := control.Start(control.Config{}, l)
	defer s.Close()
	silent := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer silent.Close()
	for want, args := range map[string][]string{
		"no answer from":           {silent.Addr().String(), "--timeout", "200ms"},
		"ENDPOINT":                 {},
		"needs a port":             {"static://127.0.0.1"},
		"there is no run":          {l.Addr().String()},
		"knows no run \"x\"":       {l.Addr().String(), "--rdzv-id", "x"},
		"there is no run \"x\" at": {"file://" + t.TempDir(), "--rdzv-id", "x"},
		"--timeout":                {l.Addr().String(), "--timeout", "-1s"},
		"no such file":             {l.Addr().String(), "--token-file", "/nowhere/token"},
		"nothing listens at":       {"127.0.0.1:1"},
	} {
		if code, _, stderr := execute(t, append([]string{"stacks"}, args...)...); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%v: code %d, %s", args, code, stderr)
		}
	}
}
