package cli

import (
	"strings"
	"syscall"
	"testing"
)

// told is a worker that is asked for nothing but by its file and the signal USR2.
const told = `trap 'grep -h kind $RALLYPOINT_DIRECTIVE_FILE >$SAY' USR2; trap 'echo bye >$SAY; exit 0' TERM
	echo ready >$SAY; while :; do sleep 0.1; done`

// TestSignalIsADirective: a job of one node is asked for what its signals stand for; at the
// deadline it ends, to be queued again.
func TestSignalIsADirective(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.env = append(h.env, "LOGLEVEL=INFO")
	p := h.run(told, "--standalone", "--on-signal=USR1:save,SIGTERM:stop", "--drain-timeout=1", "--directive-signal=USR2")
	for _, step := range []struct {
		sig  syscall.Signal
		want string
	}{{0, "ready"}, {syscall.SIGUSR1, `"kind": "save",`}, {syscall.SIGTERM, `"kind": "stop",`}} {
		if step.sig != 0 {
			p.kill(t, step.sig)
		}
		if got := h.readLine(); got != step.want {
			t.Errorf("a worker said %q, want %q", got, step.want)
		}
	}
	p.kill(t, syscall.SIGTERM) // sent twice is one request
	if got := h.readLine(); got != "bye" {
		t.Errorf("a worker said %q", got)
	}
	p.expect(t, 95)
	for _, part := range []string{"asked the job to save within 1s", "the job has ended: the run was stopped to be queued again by node "} {
		if !strings.Contains(p.stderr.String(), part) {
			t.Errorf("it does not say %q:\n%s", part, p.stderr.String())
		}
	}
}

// TestDrainBySignal: of two nodes one leaves by a signal, and the other continues without it;
// when that one is drained, too, the job should be queued again.
func TestDrainBySignal(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	options := elastic(t, "1:2", "--on-signal=TERM:drain", "--drain-timeout=1", "--directive-signal=USR2")
	stays := h.run(told, options...)
	h.readLine()
	leaves := h.run(told, options...)
	for range 3 { // the first one's worker ends and starts again
		h.readLine()
	}
	leaves.kill(t, syscall.SIGTERM)
	for _, want := range []string{`"kind": "drain",`, `"kind": "drain",`} {
		if got := h.readLine(); got != want {
			t.Errorf("a worker said %q, want %q", got, want)
		}
	}
	leaves.expect(t, 0)
	for range 3 { // bye, bye, ready
		h.readLine()
	}
	stays.kill(t, syscall.SIGTERM)
	if got := h.readLine(); got != `"kind": "drain",` {
		t.Errorf("a worker said %q", got)
	}
	stays.expect(t, 95)
	if got := h.readLine(); got != "bye" {
		t.Errorf("a worker said %q", got)
	}
	if text := leaves.stderr.String(); !strings.Contains(text, "drained by node") {
		t.Errorf("it does not say why it left:\n%s", text)
	}
}

// TestWrongOnSignal: impossible values are refused before anything starts.
func TestWrongOnSignal(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	for option, want := range map[string]string{
		"--on-signal=USR1":                    `"" says what signal USR1 asks for, it must be one of drain, save, stop`,
		"--on-signal=USR1:scale":              `"scale" says what signal USR1 asks for`,
		"--on-signal=NOPE:save":               `signal "NOPE" is not known`,
		"--on-signal=KILL:save":               "signal KILL cannot be handled",
		"--on-signal=CHLD:save":               "programs also receive signal CHLD for other reasons, so it cannot make a request",
		"--on-signal=SIGURG:save":             "programs also receive signal SIGURG",
		"--directive-signal=NOPE":             `signal "NOPE" is not known`,
		"--drain-timeout=0":                   "it must be greater than 0",
		"--on-signal=TERM:drain,SIGTERM:save": "signal SIGTERM is given twice, first for drain",
		"--on-signal=TERM:drain":              "",
		"--on-signal= term : drain":           `" drain" says what`,
	} {
		p := h.run("exit 0", option, "--standalone")
		if want == "" {
			p.expect(t, 0)
			continue
		}
		p.expect(t, 2)
		if !strings.Contains(p.stderr.String(), want) {
			t.Errorf("%s: %s", option, p.stderr.String())
		}
	}
}
