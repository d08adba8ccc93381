package cli

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"rallypoint/internal/testkit"
)

// TestCheckOfANode: exit code 1 keeps the node out, with the reason; a check that cannot tell, or
// that hangs, does not. One that is not there is wrong usage.
func TestCheckOfANode(t *testing.T) {
	for name, c := range map[string]struct {
		checks []string
		code   int
		says   string // on stderr
	}{
		"fit":         {[]string{"true", "exit 0"}, 0, "2 checks of this node took "},
		"unfit":       {[]string{"true", `echo noise; echo '{"reason": "gpu_xid", "text": "Xid 79 \u001b[2J"}'; exit 1`}, 94, "is not fit to run workers: gpu_xid: Xid 79 "},
		"of a file":   {[]string{"/bin/false"}, 94, "is not fit to run workers: false; it stays out"},
		"cannot tell": {[]string{"echo no driver; exit 75"}, 0, "cannot tell whether this node is fit: no driver"},
		"killed":      {[]string{"kill -9 $$"}, 0, "it was ended by SIGKILL"},
		"missing":     {[]string{"true", "/no/such/check"}, 2, "the check \"/no/such/check\" cannot be run"},
		"no program":  {[]string{"/etc/passwd"}, 2, "the check \"/etc/passwd\" cannot be run"},
		"hangs":       {[]string{"exec sleep 1000"}, 0, "it had not ended after 300ms"},
		"endless":     {[]string{"yes & exec sleep 1000"}, 0, "it had not ended after 300ms"},
		"at once":     {[]string{"mkfifo f; echo > f", "until [ -p f ]; do :; done; cat f"}, 0, "2 checks of this node took "},
		"variables":   {[]string{`[ "$RALLYPOINT_CHECK $RALLYPOINT_LOCAL_WORLD_SIZE" = "join 1" ]`}, 0, "1 check of this node took "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			h.env = append(h.env, "LOGLEVEL=INFO")
			limit := "--check-timeout=90"
			if strings.Contains(c.says, "300ms") {
				limit = "--check-timeout=0.3"
			}
			options := []string{"--standalone", limit}
			for _, command := range c.checks {
				options = append(options, "--check="+command)
			}
			p := h.run("echo ran > ran", options...)
			p.expect(t, c.code)
			if stderr := p.stderr.String(); !strings.Contains(stderr, c.says) || strings.Contains(stderr, "\x1b") {
				t.Errorf("it says %s", stderr)
			}
			if _, err := os.Stat(h.dir + "/ran"); (err == nil) != (c.code == 0) {
				t.Errorf("the worker: %v", err)
			}
		})
	}
}

// TestCheckLeavesNothing: processes that a check has started end with it, before a worker starts.
func TestCheckLeavesNothing(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	p := h.run(`kill -0 $(cat daemon) 2>/dev/null && echo alive > alive; true`, "--standalone",
		"--check=setsid sh -c 'echo $$ > daemon.new; mv daemon.new daemon; exec sleep 1000' & until [ -e daemon ]; do :; done")
	p.expect(t, 0)
	if _, err := os.Stat(h.dir + "/daemon"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(h.dir + "/alive"); err == nil {
		t.Error("the worker found what its check had started")
	}
}

// TestCheckAfterAFailure: the node whose worker fails is examined again, and leaves; the other
// continues.
func TestCheckAfterAFailure(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	options := elastic(t, "1:2", "--max-restarts=3", `--check=[ $RALLYPOINT_CHECK = join ] || { echo worn out; exit 1; }`)
	bad := h.run(strings.Replace(printPlacement, "until [ -e finish ]; do sleep 0.2; done; exit 0", "until [ -e fail ]; do sleep 0.2; done; exit 3", 1), options...)
	h.readRound(1)
	good := h.run(printPlacement, options...)
	h.readRound(2)
	testkit.WriteFile(t, h.dir+"/fail", nil)
	bad.expect(t, 94)
	if stderr := bad.stderr.String(); !strings.Contains(stderr, "worn out; it is kept out of the job for 1h0m0s") {
		t.Error(stderr)
	}
	h.readRound(1)
	h.finish()
	good.expect(t, 0)
}

// TestSignalDuringACheck: it ends the node, and the check.
func TestSignalDuringACheck(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	p := h.run("echo ran > ran", "--standalone", "--check=echo $$ > $SAY; exec sleep 1000")
	pid := testkit.Must(strconv.Atoi(h.readLine()))(t)
	testkit.Check(t, p.Process.Signal(syscall.SIGTERM))
	p.expect(t, 1)
	if stderr := p.stderr.String(); !strings.Contains(stderr, "got signal: 15") || alive(pid) {
		t.Error(stderr)
	}
	if _, err := os.Stat(h.dir + "/ran"); err == nil {
		t.Error("the worker has run")
	}
}

// TestCheckCommand: the worst answer decides, and is the last line.
func TestCheckCommand(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // without nvidia-smi
	dir := t.TempDir()
	for _, c := range []struct {
		checks []string
		code   int
		last   string
	}{
		{[]string{"disk:" + dir, "disk:" + dir + ":4K"}, 0, "disk:" + dir + ":4K: fit"},
		{[]string{"disk:" + dir, "gpu:2"}, 75, "nvidia-smi: "},
		{[]string{"nic:none", "gpu:2", "disk:" + dir}, 1, `{"reason":"nic_missing","text":"there is no network interface`},
		{[]string{"clock"}, 2, ""},
		{nil, 2, ""},
	} {
		code, stdout, stderr := execute(t, append([]string{"check"}, c.checks...)...)
		lines := strings.Split(strings.TrimSpace(stdout), "\n")
		if code != c.code || !strings.HasPrefix(lines[len(lines)-1], c.last) || (code == 2) != (stderr != "") {
			t.Errorf("%v: code %d, %s%s", c.checks, code, stdout, stderr)
		}
	}
}

// TestCheckBesideAMistake: a check that is none hides nothing of what the others find, whatever their order.
func TestCheckBesideAMistake(t *testing.T) {
	for _, args := range [][]string{{"nic:nosuch", "gpus"}, {"gpus", "nic:nosuch"}} {
		code, stdout, stderr := execute(t, append([]string{"check"}, args...)...)
		if code != 1 || !strings.HasSuffix(stdout, `{"reason":"nic_missing","text":"there is no network interface and no InfiniBand device nosuch"}`+"\n") || !strings.Contains(stderr, `"gpus" is not one of gpu`) {
			t.Errorf("%v: %d, %q, %q", args, code, stdout, stderr)
		}
	}
	if code, stdout, stderr := execute(t, "check", "gpus", "disk:"+t.TempDir()); code != 2 || !strings.Contains(stdout, ": fit\n") || !strings.Contains(stderr, `"gpus" is not one of gpu`) {
		t.Errorf("%d, %q, %q", code, stdout, stderr)
	}
}
