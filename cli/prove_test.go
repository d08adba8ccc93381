package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"rallypoint/cli/prove"
	"rallypoint/internal/testkit"
)

// prove is a command that has a shell script proven; its folder for temporary files is h.dir/tmp.
func (h *harness) prove(script string, options ...string) *nodeProcess {
	h.t.Helper()
	file := filepath.Join(h.dir, "script")
	testkit.Check(h.t, os.WriteFile(file, []byte("#!/bin/sh\n"+script+"\n"), 0o700))
	testkit.Check(h.t, os.MkdirAll(h.dir+"/tmp", 0o700))
	// The nodes are this program as the command, too, which takes that from its environment.
	command := fmt.Sprintf("#!/bin/sh\nshift 2 # -m rallypoint\n%s=1 exec '%s' \"$@\"\n", asCommand, os.Args[0])
	testkit.Check(h.t, os.WriteFile(h.dir+"/python", []byte(command), 0o700))
	args := append([]string{"prove", "--json", "--no-python", "--settle=0.3s"}, options...)
	p := &nodeProcess{Cmd: exec.Command(os.Args[0], append(args, file)...)}
	p.Env = []string{testkit.EndAtOnce, asCommand + "=1", "PATH=" + os.Getenv("PATH"), "SAY=" + h.dir + "/say", "TMPDIR=" + h.dir + "/tmp", "RANK=7", "TORCHELASTIC_RUN_ID=outer", "RALLYPOINT_PYTHON=" + h.dir + "/python"}
	p.Stdout, p.Stderr = &p.stdout, &p.stderr
	testkit.Check(h.t, p.Start())
	return p
}

// proven is the report of a proof that has ended, and its exit code. Nothing is left of it.
func (h *harness) proven(p *nodeProcess) (r prove.Report, code int) {
	h.t.Helper()
	code = p.end()
	if err := json.Unmarshal([]byte(p.stdout.String()), &r); err != nil {
		h.t.Fatalf("exit code %d, %v: %s%s", code, err, p.stdout.String(), p.stderr.String())
	}
	if left, err := os.ReadDir(h.dir + "/tmp"); err != nil || len(left) > 0 || r.Folder != "" {
		h.t.Errorf("left behind: %v, %v, %s", left, err, r.Folder)
	}
	return r, code
}

func TestProve(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	p := h.prove("exec sleep 100", "--only", "worker-crash,agent-kill,leader-kill", "--only", "newcomer,one-too-many,late-node,slow-end")
	r, code := h.proven(p)
	if code != 0 || len(r.Results) != 7 {
		t.Fatalf("exit code %d: %s", code, p.stderr.String())
	}
	for _, x := range r.Results {
		if x.Launcher != "rallypoint" || x.Outcome != prove.Survived || x.LostS == nil || (*x.LostS == 0) != (x.Scenario == "one-too-many") {
			t.Errorf("%+v", x)
		}
	}
	first, _, _ := strings.Cut(p.stderr.String(), ".")
	if !strings.HasPrefix(first, "7 scenarios of ") {
		t.Errorf("it says at first %q", first)
	}
}

// TestProveFails: a script that cannot begin again in the same folder does not survive.
func TestProveFails(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	p := h.prove(`mkdir "begun$RANK" || { printf 'cannot begin \033[31magain\n'; exit 3; }; exec sleep 100`, "--only=one-too-many,worker-crash")
	r, code := h.proven(p)
	if code != 1 || len(r.Results) != 2 {
		t.Fatalf("exit code %d: %s", code, p.stderr.String())
	}
	if x := r.Results[0]; x.Outcome != prove.Failed || !strings.Contains(x.Text, "ended with exit code 1") || !strings.Contains(strings.Join(x.Output, "\n"), "again") {
		t.Errorf("%+v", x)
	}
	if x := r.Results[1]; x.Outcome != prove.Survived {
		t.Errorf("%+v", x)
	}
	if text := p.stderr.String(); !strings.Contains(text, "worker-crash   FAILED: ") || strings.Contains(text, "\x1b") {
		t.Errorf("%q", text)
	}
}

// inStep is a job of two whose rank 0 waits in each step for rank 1, and both report their steps.
const inStep = `exec python3 -c '
import os, struct, time
record = open(os.environ["RALLYPOINT_PROGRESS_FILE"], "r+b", buffering=0)
first = os.environ["RANK"] == "0"
try:
    os.mkfifo("beat")
except FileExistsError:
    pass
pipe = open("beat", "rb" if first else "wb", buffering=0)
step = 0
while True:
    step += 1
    record.seek(16)
    record.write(struct.pack("<q", step))
    if not first:
        pipe.write(b"x")
        time.sleep(0.02)
    elif not pipe.read(1):
        time.sleep(100)  # the other one has been ended, and this one is
'`

// TestProveHang: the worker that stands is started again, which is seen by its steps.
func TestProveHang(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	p := h.prove(inStep, "--only=hang", "--limit=60s", "--settle=5s")
	r, code := h.proven(p)
	if code != 0 || len(r.Results) != 1 || r.Results[0].Outcome != prove.Survived || r.Results[0].LostS == nil || *r.Results[0].LostS == 0 || r.FirstStepS == nil {
		t.Errorf("exit code %d: %+v, %s", code, r, p.stderr.String())
	}
}

// TestProveLostNetwork: each node has a network of its own; the one that is left goes on alone, and
// can reach nothing else.
func TestProveLostNetwork(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	p := h.prove("grep -q eth0 /proc/net/dev && [ $(wc -l </proc/net/dev) = 4 ] || exit 3; exec sleep 100", "--only=lost-network", "--limit=60s")
	r, code := h.proven(p)
	if len(r.Results) == 1 && strings.Contains(r.Results[0].Text, "no network namespace") {
		t.Skip(r.Results[0].Text)
	}
	if code != 0 || len(r.Results) != 1 || r.Results[0].Outcome != prove.Survived || r.Results[0].LostS == nil || *r.Results[0].LostS == 0 {
		t.Errorf("exit code %d: %+v, %s", code, r, p.stderr.String())
	}
}

// TestProveCannotTell: a script that ends too soon, a hang of one without steps, and a budget that is
// spent tell nothing.
func TestProveCannotTell(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		script, text string
		options      []string
	}{
		"ends":   {"exit 0", "the script ended before the fault", []string{"--only=worker-crash"}},
		"steps":  {"exec sleep 100", "this one reports none", []string{"--only=hang"}},
		"budget": {"exec sleep 100", "the budget is spent", []string{"--only=worker-crash", "--budget=1ms"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			p := h.prove(test.script, test.options...)
			if r, code := h.proven(p); code != exitCannotTell || len(r.Results) != 1 || r.Results[0].Outcome != prove.Unknown || !strings.Contains(r.Results[0].Text, test.text) {
				t.Errorf("exit code %d, %+v", code, r.Results)
			}
		})
	}
}

// TestProveInterrupted: Ctrl-C ends all that it started, also a daemon that a worker has started.
func TestProveInterrupted(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	p := h.prove("setsid sleep 100 & echo $$ $! >$SAY; exec sleep 100", "--only=worker-crash", "--settle=1h")
	var pids []int
	for range 2 {
		for _, field := range strings.Fields(h.readLine()) {
			pid, err := strconv.Atoi(field)
			testkit.Check(t, err)
			pids = append(pids, pid)
		}
	}
	testkit.Check(t, p.Process.Signal(syscall.SIGINT))
	_, code := h.proven(p)
	if code != 1 || !strings.Contains(p.stderr.String(), "interrupted") {
		t.Errorf("exit code %d: %s", code, p.stderr.String())
	}
	for _, pid := range pids {
		testkit.Eventually(t, "its processes have ended", func() bool { return !alive(pid) })
	}
}

func TestProveUsage(t *testing.T) {
	for want, args := range map[string][]string{
		"SCRIPT is missing":                           {},
		`there is no scenario "none": worker-crash, `: {"--only=worker-crash,none", "x.py"},
		"--budget":                 {"--budget=0s", "x.py"},
		`there is no file "no.py"`: {"no.py"},
	} {
		if code, stdout, stderr := execute(t, append([]string{"prove"}, args...)...); code == 0 || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%v: %d, %q, %q", args, code, stdout, stderr)
		}
	}
}
