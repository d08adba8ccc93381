package cli

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"rallypoint/internal/testkit"
)

// What people see of a job of two nodes is held word by word.

var (
	linePrefix = regexp.MustCompile(`(?m)^([DIWE])\d{4} [\d:.]+ +\d+ rallypoint\] `)
	pidOnHost  = regexp.MustCompile(`pid \d+ on `)
	portNumber = regexp.MustCompile(`127\.0\.0\.1:\d+`)
	waitsLine  = regexp.MustCompile(`(?m)^I \d of \d nodes here.*\n`) // of a slow machine
)

// shown is what a node has printed, without what is another one in each run.
func shown(text string) string {
	text = linePrefix.ReplaceAllString(text, "$1 ")
	text = waitsLine.ReplaceAllString(text, "")
	text = pidOnHost.ReplaceAllString(text, "pid PID on ")
	text = portNumber.ReplaceAllString(text, "127.0.0.1:PORT")
	text = timePattern.ReplaceAllString(text, "TIME")
	text = pidPattern.ReplaceAllString(text, "${1}PID")
	text = regexp.MustCompile(`(?m)^(=+|-{20,})$`).ReplaceAllString(text, "RULE")
	return regexp.MustCompile(`(?m) +$`).ReplaceAllString(text, "")
}

// twoShown runs a script on two nodes, gpu-a and gpu-b, and returns what each has printed.
func twoShown(t *testing.T, code int, script string, more ...string) (a, b string) {
	t.Helper()
	h := newHarness(t)
	port := strconv.Itoa(testkit.FreePort(t))
	var nodes []*nodeProcess
	for i, host := range []string{"gpu-a", "gpu-b"} {
		conf := "host_name=" + host + ",node_rank=" + strconv.Itoa(i)
		options := append([]string{"--rdzv-endpoint=127.0.0.1:" + port, "--rdzv-id=job", "--nnodes=2", "--rdzv-conf=" + conf}, more...)
		nodes = append(nodes, h.run(script, options...))
	}
	for _, n := range nodes {
		n.expect(t, code)
	}
	return shown(nodes[0].stderr.String()), shown(nodes[1].stderr.String())
}

func TestHealthyStartIsThreeLines(t *testing.T) {
	t.Parallel()
	a, b := twoShown(t, 0, "exit 0")
	for rank, got := range []string{a, b} {
		host, n := []string{"gpu-a", "gpu-b"}[rank], strconv.Itoa(rank)
		want := "I run job on " + host + ": 2 nodes, rendezvous at 127.0.0.1:PORT, 1 worker here: sh -c exit 0\n" +
			"I round 1: rank " + n + " of 2, store at 127.0.0.1:PORT\n" +
			"I started a worker: rank " + n + " of 2\n"
		if got != want {
			t.Errorf("%s shows\n%swant\n%s", host, got, want)
		}
	}
}

// failsOnce fails on the second node, once the first one's worker runs.
const failsOnce = `if [ $RANK = 1 ]; then until [ -e up$RALLYPOINT_ROUND ]; do sleep 0.01; done; echo "ValueError: loss is nan" >&2; exit 3; fi; touch up$RALLYPOINT_ROUND; exec sleep 100`

const failureBlock = `
RULE
sh FAILED
RULE
Failures:
  <NO_OTHER_FAILURES>
RULE
Root Cause (first observed failure):
[0]:
  time      : TIME
  host      : gpu-b
  rank      : 1 (local_rank: 0)
  exitcode  : 3 (pid: PID)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
  stderr    :
    ValueError: loss is nan
`

// failedBy matches the text of a node that looks only after the failed one has closed the run.
var failedBy = regexp.MustCompile(`the run failed by (\S+) at \S+: (.*); no restarts left: .*`)

// TestFailureIsOneBlock: what failed, where, its last line and what is done about it, once on
// the node that failed; the other one says why it stops before.
func TestFailureIsOneBlock(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		flags      []string
		a, b, next string
	}{
		"no restarts": {nil,
			"W stopping the workers: node gpu-b failed: worker of rank 1 (local rank 0, pid PID on gpu-b) exited with code 3: ValueError: loss is nan\n",
			"",
			"no restarts left: give --max-restarts"},
		"one restart": {[]string{"--max-restarts=1"},
			"W stopping the workers: node gpu-b failed: worker of rank 1 (local rank 0, pid PID on gpu-b) exited with code 3: ValueError: loss is nan; restart 1 of 1\n" +
				"I round 2: rank 0 of 2, store at 127.0.0.1:PORT\nI started a worker: rank 0 of 2, after 1 of 1 restarts\n" +
				"W stopping the workers: node gpu-b failed: worker of rank 1 (local rank 0, pid PID on gpu-b) exited with code 3: ValueError: loss is nan\n",
			"W worker of rank 1 (local rank 0, pid PID on gpu-b) exited with code 3: ValueError: loss is nan; restarting the workers: restart 1 of 1\n" +
				"I round 2: rank 1 of 2, store at 127.0.0.1:PORT\nI started a worker: rank 1 of 2, after 1 of 1 restarts\n",
			"no restarts left: --max-restarts allows 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := twoShown(t, 1, failsOnce, c.flags...)
			for i, got := range []string{a, b} {
				got = strings.ReplaceAll("\n"+got, "\nValueError: loss is nan\n", "\n") // the worker's own word may come at any time
				got = failedBy.ReplaceAllString(got, "node $1 failed: $2")
				_, after, _ := strings.Cut(got, "I started a worker: rank "+strconv.Itoa(i)+" of 2\n")
				want := []string{c.a, c.b}[i] + failureBlock + "  next      : " + c.next + "\nRULE\n"
				if after != want {
					t.Errorf("node %d shows\n%s\nwant\n%s", i, after, want)
				}
			}
		})
	}
}

// TestRefusedNodeIsNamed: the node that waits says who was refused, and over what, as it was typed.
func TestRefusedNodeIsNamed(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	endpoint := "--rdzv-endpoint=127.0.0.1:" + strconv.Itoa(testkit.FreePort(t))
	waits := h.command("exit 0", endpoint, "--rdzv-id=job", "--nnodes=3", "--rdzv-conf=host_name=gpu-a")
	log := new(testkit.Log)
	waits.Stderr = log
	testkit.Check(t, waits.Start())
	log.Await(t, "1 of 3 nodes here", 1)
	refused := h.run("exit 0", endpoint, "--rdzv-id=job", "--nnodes=4", "--rdzv-conf=host_name=gpu-d")
	refused.expect(t, 2)
	if got, want := refused.stderr.String(), `node gpu-d wants --nnodes=4, but the run has --nnodes=3, as node gpu-a started it; start all nodes with the same --nnodes and options`; !strings.Contains(got, want) {
		t.Errorf("gpu-d shows %s\nwant %s", got, want)
	}
	log.Await(t, "; node gpu-d was refused: it wants --nnodes=4, but the run has --nnodes=3, as node gpu-a started it", 1)
	_, text, _ := execute(t, "status", strings.TrimPrefix(endpoint, "--rdzv-endpoint="))
	if !strings.Contains(strings.Join(strings.Fields(text), " "), "node gpu-d was refused: it wants --nnodes=4, but the run has --nnodes=3, as node gpu-a started it") {
		t.Errorf("the status is\n%s", text)
	}
	testkit.Check(t, waits.Process.Kill())
	waits.end()
}

// TestUsageInJSON: with --log-format json wrong usage is a line of JSON, too.
func TestUsageInJSON(t *testing.T) {
	t.Parallel()
	p := newHarness(t).run("exit 0", "--log-format=json", "--nnodes=2:1")
	p.expect(t, 2)
	if text := p.stderr.String(); !json.Valid([]byte(text)) || strings.Count(text, "\n") != 1 || !strings.Contains(text, `"level":"ERROR"`) {
		t.Errorf("%q", text)
	}
}
