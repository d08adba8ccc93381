package cli

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"rallypoint/internal/testkit"
)

// TestRanksFilter: ranks of the whole job, on whichever node they are; also beside the
// filter of local ranks, and where there are no log files.
func TestRanksFilter(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ options, want string }{
		{"--ranks-filter=0,3", "0 3"},
		{"--ranks-filter=3,7 --log-dir=/dev/null", "3"},
		{"--ranks-filter=0,3 --local-ranks-filter=1 -t 3", "3"},
		{"--ranks-filter=2 --fold-logs", "2"},
	} {
		codes, nodes := twoNodes(t, "echo rank $RANK; echo err $RANK >&2", hostedNodes(t, strings.Fields(c.options)...))
		var out, err []string
		for i, p := range nodes {
			if codes[i] != 0 {
				t.Errorf("%s: node %d: exit code %d:\n%s", c.options, i, codes[i], p.stderr.String())
			}
			for _, found := range regexp.MustCompile(`rank (\d)\n`).FindAllStringSubmatch(p.stdout.String(), -1) {
				out = append(out, found[1])
			}
			for _, found := range regexp.MustCompile(`err (\d)\n`).FindAllStringSubmatch(p.stderr.String(), -1) {
				err = append(err, found[1])
			}
		}
		slices.Sort(out)
		slices.Sort(err)
		if got := strings.Join(out, " "); got != c.want || strings.Join(err, " ") != c.want {
			t.Errorf("%s: ranks %s on stdout, %v on stderr, expected %s", c.options, got, err, c.want)
		}
	}
}

// TestFoldLogs: the lines of all workers become one, for each stream; with -t and without.
// The report of a failure has what the worker said last.
func TestFoldLogs(t *testing.T) {
	for _, options := range [][]string{{}, {"-t", "3", "--log-dir=logs"}} {
		h := newHarness(t)
		p := h.run(`echo "hello from $RANK"; echo "warning of $RANK" >&2; touch said$RANK
			[ $RANK != 2 ] && exec sleep 100
			until [ -e said0 ] && [ -e said1 ]; do sleep 0.01; done; echo "the reason" >&2; exit 7`,
			append(options, "--nproc-per-node=3", "--fold-logs")...)
		code := p.end()
		report := p.stderr.String()
		if code != 1 || !strings.Contains(report, "\n  stderr    :\n    warning of 2\n    the reason\n") {
			t.Errorf("%v: exit code %d, stderr:\n%s", options, code, report)
		}
		expand(t, p.stdout.String(), "hello from ", []int{0, 1, 2})
		expand(t, report, "warning of ", []int{0, 1, 2})
		if !strings.Contains(report, "[2] the reason\n") {
			t.Errorf("%v: stderr:\n%s", options, report)
		}
	}
}

// expand checks that the lines with a text are those of some ranks: how many are one is a
// matter of the machine's speed.
func expand(t *testing.T, output, text string, want []int) {
	t.Helper()
	var got []int
	for _, found := range regexp.MustCompile(`(?m)^\[([0-9,-]+)\] `+text+`\d$`).FindAllStringSubmatch(output, -1) {
		for item := range strings.SplitSeq(found[1], ",") {
			var first, last int
			if n, _ := fmt.Sscanf(item, "%d-%d", &first, &last); n < 2 {
				last = first
			}
			for rank := first; rank <= last; rank++ {
				got = append(got, rank)
			}
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%q of the ranks %v, expected %v, in\n%s", text, got, want, output)
	}
}

// TestFoldLogsInOrder: where stdout and stderr are one pipe, a worker's lines keep their
// order over both.
func TestFoldLogsInOrder(t *testing.T) {
	const lines = 200
	var want strings.Builder
	for i := range lines {
		fmt.Fprintf(&want, "[0] out %d\n[0] err %d\n", i, i)
	}
	script := fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo out $i; echo err $i >&2; i=$((i+1)); done", lines)
	p := exec.Command(os.Args[0], "run", "--fold-logs", "--no-python", "sh", "-c", script)
	p.Env = []string{testkit.EndAtOnce, asCommand + "=1", "PATH=" + os.Getenv("PATH"), "TMPDIR=" + t.TempDir(), "LOGLEVEL=ERROR"}
	got, err := p.CombinedOutput()
	if err != nil || string(got) != want.String() {
		t.Errorf("%v: %.300q", err, got)
	}
}
